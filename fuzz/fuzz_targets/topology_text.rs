//! libFuzzer's program for `phub_fuzz::machine::text`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| phub_fuzz::machine::text::run(bytes));
