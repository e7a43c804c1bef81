//! libFuzzer's program for `phub_fuzz::checkpoint`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| phub_fuzz::checkpoint::run(bytes));
