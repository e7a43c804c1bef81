//! libFuzzer's door to `phub_fuzz::topology_text`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| phub_fuzz::topology_text::run(bytes));
