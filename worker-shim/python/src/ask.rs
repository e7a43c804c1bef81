//! What the package asks hubs, as every worker asks: with this process's token, and trusting whom it trusts.

use std::time::{Duration, Instant};

use membership::Named;
use pbox_core::control::JobState;
use pyo3::prelude::*;

use crate::errors::of_member;
use crate::setting::credential_of;

const LIMIT: Duration = Duration::from_secs(5);

/// Whether a hub answers at this address.
#[pyfunction]
pub fn answers(py: Python<'_>, address: &str) -> bool {
    py.detach(|| membership::wait_for(&[address], &Named::Here, Instant::now(), &|| false)).is_ok()
}

/// Whether all jobs of the hub at this address have ended.
#[pyfunction]
pub fn is_done(py: Python<'_>, address: &str, token: Option<&str>) -> PyResult<bool> {
    let credential = credential_of(token)?;
    let hub = py.detach(|| membership::describe(address, LIMIT, credential.as_ref()));
    let jobs = hub.map_err(|error| of_member(&error))?.jobs;
    Ok(jobs.iter().all(|job| matches!(job.state, JobState::Failed { .. })))
}
