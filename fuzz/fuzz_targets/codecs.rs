//! libFuzzer's program for `phub_fuzz::codecs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| phub_fuzz::codecs::run(bytes));
