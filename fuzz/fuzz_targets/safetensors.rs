//! libFuzzer's program for `phub_fuzz::safetensors`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| phub_fuzz::safetensors::run(bytes));
