//! The part of the training example that knows no process and no hub: samples and their shards, a small network, the plan of
//! a run, and the one-process run that a run over a hub must equal bit for bit.
//!
//! The example `train` puts the processes around it.

mod network;
mod plan;
mod random;
mod reference;
mod samples;
mod shard;
mod weights;

pub use network::{Network, NetworkPass};
pub use plan::{MAX_WORKERS, TrainingPlan};
pub use reference::one_process;
pub use samples::Samples;
pub use shard::Shard;
pub use weights::{OtherBits, Weights};
