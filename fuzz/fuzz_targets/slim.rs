//! libFuzzer's program for `phub_fuzz::slim`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| phub_fuzz::slim::run(bytes));
