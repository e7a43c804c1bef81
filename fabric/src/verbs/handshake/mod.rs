//! The handshake: over TCP, it exchanges addresses, queue pairs and keys, and makes the links of a connection.

mod agree;
pub(super) mod connect;
#[doc(hidden)]
pub mod fuzzing;
pub(super) mod join;
pub(super) mod message;
pub(super) mod pairing;
mod partners;
pub(super) mod stream;
mod trial;
