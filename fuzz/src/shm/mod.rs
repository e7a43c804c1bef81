//! The shared-memory transport against a hostile peer: its handshake and its rings.

pub mod handshake;
mod raw_peer;
pub mod rings;
