//! Pulls in batches of layers (iBatch): which weights are requested together, and when.

pub mod batch;
mod batches;
mod greedy;
mod planner;
mod pulling;
mod timeline;

pub use batches::{Batches, Counts};
pub use planner::{DRIFT, DRIFT_ROUNDS, PROFILE_ROUNDS, PullPlan};
pub(crate) use pulling::Pulling;
pub use pulling::{Pull, PullError};
