//! Training of a small network over a hub: samples and their shards, the network, the plan of a run, and a worker's round.
//! A run over a hub must equal the one-process run bit for bit.
//!
//! In the example `train`, each worker is a process. In `phub-server demo`, each worker is a thread.

#![forbid(unsafe_code)]

mod network;
mod plan;
mod random;
mod reference;
mod round;
mod samples;
mod shard;
mod weights;

pub use network::{Network, NetworkPass};
pub use plan::{MAX_WORKERS, TrainingPlan};
pub use random::Random;
pub use reference::one_process;
pub use round::round;
pub use samples::Samples;
pub use shard::Shard;
pub use weights::{OtherBits, Weights};
