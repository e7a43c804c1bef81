//! Programs that run hubs and workers: the zero-compute probe, a cluster's timeline, and peers.

#![deny(unsafe_code)] // exceptions: docs/unsafe.md

pub mod child;
pub mod cluster;
pub mod compute;
pub mod peers;
#[allow(unsafe_code)]
pub mod private_memory;
pub mod probe;
