//! libFuzzer's program for `phub_fuzz::control`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| phub_fuzz::control::run(bytes));
