//! libFuzzer's program for `phub_fuzz::tcp_frames`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| phub_fuzz::tcp_frames::run(bytes));
