//! libFuzzer's program for `phub_fuzz::immediates`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| phub_fuzz::immediates::run(bytes));
