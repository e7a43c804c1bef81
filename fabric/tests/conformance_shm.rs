//! The conformance suite over shared memory: either end under test, with peers in this process and in others.
//! A peer dies by `kill -9`.
#![forbid(unsafe_code)]

mod shm_bed;

use shm_bed::Shm;

fabric::conformance_of_hub_and_workers!(Shm: [Shm]);
