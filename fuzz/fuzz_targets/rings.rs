//! libFuzzer's door to `phub_fuzz::rings`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| phub_fuzz::rings::run(bytes));
