//! libFuzzer's program for `phub_fuzz::file_names`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| phub_fuzz::file_names::run(bytes));
