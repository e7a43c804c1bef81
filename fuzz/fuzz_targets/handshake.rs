//! libFuzzer's program for `phub_fuzz::shm::handshake`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| phub_fuzz::shm::handshake::run(bytes));
