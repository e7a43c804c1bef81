//! libFuzzer's door to `phub_fuzz::handshake`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| phub_fuzz::handshake::run(bytes));
