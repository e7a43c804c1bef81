//! libFuzzer's program for `phub_fuzz::verbs_messages`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| phub_fuzz::verbs_messages::run(bytes));
