//! The terms of a job, on which all its ends agree.
//!
//! Plain data with its checks. This module must not depend on hubs, links or memory.

mod compression;
mod consistency;
mod credit;
mod members;
mod numbers;
mod on_loss;
mod refused;
mod schedule;
mod terms;

pub use compression::{Compression, InvalidCompression, NotACompression};
pub use consistency::{Consistency, NotAConsistency};
pub use credit::{Credit, NotACredit};
pub use members::Members;
pub use numbers::{InvalidNumbers, InvalidRate};
pub use on_loss::OnLoss;
pub use refused::Refused;
pub use schedule::{NotASchedule, Schedule};
pub use terms::{Difference, InvalidTerms, JobTerms, LevelTerms, MAX_HUBS, MAX_WORKERS, SPLIT_ABOVE};
