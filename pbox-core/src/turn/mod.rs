//! The turn of a core: what arrives, what follows from it, and what leaves.

#[allow(unsafe_code)]
mod alone;
mod arrival;
mod clocks;
mod core;
mod layer_parts;
mod notice;
mod pace;
mod replies;
mod roster;
mod send_queue;
mod shard;
mod spec;
#[allow(unsafe_code)]
mod together;
mod violation;

pub use core::Core;
pub use notice::{JobId, Notice, Tally};
pub use pace::Front;
pub use send_queue::SendQueue;
pub use spec::ShardSpec;
pub use violation::Violation;
