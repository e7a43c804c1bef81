//! Bad input to the shared-memory handshake. Each case causes a clear error at the right end in bounded time,
//! and the listener continues.
#![forbid(unsafe_code)]

mod hub;
mod raw_peer;
mod worker;
