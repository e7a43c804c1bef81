//! Compute that takes time: traces of a model's forward and backward pass, layer by layer, and a worker that
//! waits instead of computing.
//!
//! ```text
//!   a file, or a built-in network and a device        Trace     the time of each layer
//!        |                                               |
//!        +--- the job's keys, a time scale ------> ComputePlan   keys by number, times to wait
//!                                                        |
//!   Iteration: forward, first layer first: wait for its weights, compute; backward, last layer first:
//!   compute, push its gradients                          |
//!                                                      Times    what the probe reports
//! ```
//!
//! The worker's thread owns these values. This module must not depend on a transport, or on how gradients are
//! summed.

mod bound;
mod built_in;
mod file;
mod iteration;
mod report;
mod session;
mod trace;

pub use bound::shortest_iteration;
pub use built_in::{BUILT_IN, built_in};
pub use file::read;
pub use iteration::{Iteration, Worker};
pub use report::{ComputeReport, Times};
pub use session::Clocked;
pub use trace::{ComputePlan, ComputeStep, Layer, Trace};

/// Returns a trace by its built-in name, or from a file.
pub fn trace(name_or_file: &str) -> anyhow::Result<Trace> {
    built_in(name_or_file).map_or_else(|| read(name_or_file.as_ref()), Ok)
}

#[cfg(test)]
mod tests;
