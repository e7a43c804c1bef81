//! libFuzzer's program for `phub_fuzz::shm::rings`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| phub_fuzz::shm::rings::run(bytes));
