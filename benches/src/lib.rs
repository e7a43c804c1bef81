//! What sees both roles: the zero-compute probe, kernel benchmarks, peers.

#![deny(unsafe_code)] // exceptions: docs/unsafe.md

pub mod child;
pub mod cluster;
pub mod compute;
pub mod peers;
pub mod probe;
pub mod train;
