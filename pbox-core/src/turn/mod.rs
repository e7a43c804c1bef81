//! The turn of a core: what arrives, what follows from it, and what leaves.

mod arrival;
mod clocks;
mod core;
mod layer_parts;
mod pace;
mod replies;
mod roster;
mod send_queue;
#[allow(unsafe_code)]
mod shard;
mod violation;

pub use core::{Core, JobId, Notice, Tally};
pub use pace::Front;
pub use send_queue::SendQueue;
pub use shard::{Shard, ShardSpec};
pub use violation::Violation;
