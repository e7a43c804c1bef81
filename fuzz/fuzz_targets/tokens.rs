//! libFuzzer's program for `phub_fuzz::tokens`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| phub_fuzz::tokens::run(bytes));
