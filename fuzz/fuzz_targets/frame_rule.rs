//! libFuzzer's program for `phub_fuzz::frame_rule`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| phub_fuzz::frame_rule::run(bytes));
