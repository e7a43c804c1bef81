//! The terms of a job: what all its ends agree on.
//!
//! Plain data with its checks. Must not know hubs, links or memory.

mod compression;
mod consistency;
mod schedule;
pub(crate) mod strict_json;

pub use compression::{Compression, InvalidCompression, NotACompression};
pub use consistency::{Consistency, NeedsBsp, NotAConsistency};
pub use schedule::{NotASchedule, Schedule};
