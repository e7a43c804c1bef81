//! The package's requests to hubs. They use this process's token and trusted certificates, as a worker does.

use std::io::Read;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use membership::{MemberError, Named, StateReader, Values};
use pbox_core::control::{JobReply, StateQuery};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors::{HubLostError, chain, of_member};
use crate::setting::credential_of;

const LIMIT: Duration = Duration::from_secs(5);

/// The time limit for a hub's first reply with a state.
const STATE_LIMIT: Duration = Duration::from_secs(60);

/// The most bytes of a state that one call reads.
const MOST_BYTES: usize = 1 << 20;

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
    Ok(jobs.iter().all(JobReply::has_failed))
}

/// Returns the addresses of the hubs to which the hub at this address sends a job's sums; none without hubs above.
#[pyfunction]
pub fn above(py: Python<'_>, address: &str, job: &str, token: Option<&str>) -> PyResult<Vec<String>> {
    let credential = credential_of(token)?;
    let hub = py.detach(|| membership::describe(address, STATE_LIMIT, credential.as_ref()));
    let hub = hub.map_err(|error| lost(&error, address, job))?;
    Ok(hub.job(job).map_or(Vec::new(), |each| each.above.clone()))
}

/// Returns the number of the machine of the hub at this address, among the members of the hubs above. Returns None if the hub was
/// not started below other hubs.
#[pyfunction]
pub fn machine_below(py: Python<'_>, address: &str, token: Option<&str>) -> PyResult<Option<u32>> {
    let credential = credential_of(token)?;
    let hub = py.detach(|| membership::describe(address, LIMIT, credential.as_ref()));
    Ok(hub.map_err(|error| of_member(&error))?.machine.map(|machine| machine.number))
}

/// Returns the part of a job's state that the hub at this address has; None if it has no part. `bytes` is the
/// approximate length.
#[pyfunction]
pub fn fetch_state(
    py: Python<'_>,
    address: &str,
    job: &str,
    bytes: u64,
    token: Option<&str>,
) -> PyResult<Option<StateBytes>> {
    let credential = credential_of(token)?;
    let found = py.detach(|| {
        let (query, values) = (StateQuery::default(), Values::Sent);
        membership::fetch_state(address, job, query, (values, bytes), credential.as_ref())
    });
    let found = found.map_err(|error| lost(&error, address, job))?;
    Ok(found.map(|reader| StateBytes { reader: Mutex::new(reader), job: job.to_owned() }))
}

/// Returns the exception for a hub that had answered when the session joined, and cannot be reached now.
fn lost(error: &MemberError, address: &str, job: &str) -> PyErr {
    match error {
        MemberError::Unreachable { .. } => HubLostError::new_err(format!(
            "the state of job {job:?} did not arrive from the hub at {address}: {}",
            chain(error)
        )),
        _ => of_member(error),
    }
}

/// The bytes of a job's state, as they arrive from a hub.
#[pyclass(frozen, module = "phub._phub")]
pub struct StateBytes {
    reader: Mutex<StateReader>,
    job: String,
}

#[pymethods]
impl StateBytes {
    /// Returns the next bytes, at most `most`; none at the end.
    fn read<'py>(&self, py: Python<'py>, most: usize) -> PyResult<Bound<'py, PyBytes>> {
        let read = py.detach(|| {
            let mut bytes = vec![0; most.min(MOST_BYTES)];
            let mut reader = self.reader.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            let count = reader.read(&mut bytes)?;
            bytes.truncate(count);
            Ok(bytes)
        });
        let lost = |error: std::io::Error| {
            HubLostError::new_err(format!("the state of job {:?} did not arrive whole: {error}", self.job))
        };
        read.map(|bytes| PyBytes::new(py, &bytes)).map_err(lost)
    }
}
