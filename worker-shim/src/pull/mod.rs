//! Pulls in batches of layers (iBatch): which weights are asked for together, and when.

pub mod batch;
mod greedy;
mod planner;
mod pulling;
mod pulls;

pub use planner::{DRIFT, DRIFT_ROUNDS, PROFILE_ROUNDS, PullPlan};
pub(crate) use pulling::Pulling;
pub use pulling::{Pull, PullError};
pub(crate) use pulls::Pulls;
