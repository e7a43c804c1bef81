//! Bad input to the shared-memory handshake: each a clear error at the right end, in bounded time,
//! and the listener lives on.
#![forbid(unsafe_code)]

mod hub;
mod raw_peer;
mod worker;
