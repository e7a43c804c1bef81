//! libFuzzer's program for `phub_fuzz::deltas`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| phub_fuzz::deltas::run(bytes));
