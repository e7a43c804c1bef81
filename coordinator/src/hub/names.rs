//! Names of jobs. A name belongs to a job that has not failed, or it is reserved.
//!
//! ```text
//!   free --reserve--> reserved --release--> free, or in use by the job that was made
//!    ^                    ^
//!    |                    | keep, until the job's last state is saved
//!    +--- fails, ends --- in use by a job
//! ```

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use pbox_core::JobId;

/// A reserved name, and the memory that its job will need.
#[derive(Debug, Default)]
pub(super) struct Reserved {
    /// The memory that the job was promised.
    pub promised: u64,
    /// The address that will own the job.
    pub owner: Option<IpAddr>,
    /// Whether the name belongs to a failed job whose last state is being saved.
    saves: bool,
}

/// The names of a hub's jobs.
#[derive(Debug, Default)]
pub struct Names {
    /// The number of each job that has not failed, by name.
    jobs: HashMap<String, JobId>,
    pub(super) reserved: BTreeMap<String, Reserved>,
    /// The number of the next job.
    next: u64,
}

impl Names {
    /// Returns the job of this name that has not failed.
    pub fn job(&self, name: &str) -> Option<JobId> {
        self.jobs.get(name).copied()
    }

    /// Whether a name is free.
    pub fn is_free(&self, name: &str) -> bool {
        !self.jobs.contains_key(name) && !self.is_reserved(name)
    }

    /// Whether the job of a name is being made, or its last state is being saved.
    pub fn is_reserved(&self, name: &str) -> bool {
        self.reserved.contains_key(name)
    }

    /// Whether the last state of a failed job is being saved.
    pub fn saves_any(&self) -> bool {
        self.reserved.values().any(|reserved| reserved.saves)
    }

    /// Returns the number of names that are not free.
    pub fn len(&self) -> usize {
        self.jobs.len() + self.reserved.len()
    }

    /// Whether all names are free.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the names that are not free, in order.
    pub(crate) fn all(&self) -> Vec<String> {
        let mut all: Vec<String> = self.jobs.keys().chain(self.reserved.keys()).cloned().collect();
        all.sort();
        all
    }

    /// Reserves a free name for a job of this owner. Returns the job's number.
    pub(crate) fn reserve(&mut self, name: &str, owner: Option<IpAddr>) -> JobId {
        debug_assert!(self.is_free(name), "{name:?} has an owner");
        self.reserved.insert(name.to_owned(), Reserved { owner, ..Reserved::default() });
        self.next += 1;
        JobId(self.next - 1)
    }

    /// Promises memory to the job of a reserved name. This promise replaces an earlier promise. Returns the address
    /// that will own the job.
    pub(super) fn promise(&mut self, name: &str, bytes: u64) -> Option<IpAddr> {
        let reserved = self.reserved.get_mut(name).expect("the name of a job that is being made is reserved");
        reserved.promised = bytes;
        reserved.owner
    }

    /// Frees a name that was reserved.
    pub(crate) fn release(&mut self, name: &str) {
        self.reserved.remove(name);
    }

    /// Reserves the name of a failed job, until the job's last state is saved.
    pub(crate) fn keep(&mut self, name: &str) {
        self.reserved.insert(name.to_owned(), Reserved { saves: true, ..Reserved::default() });
    }

    /// Gives a free name to a job.
    pub(crate) fn give(&mut self, name: &str, id: JobId) {
        debug_assert!(self.is_free(name), "{name:?} has an owner");
        self.jobs.insert(name.to_owned(), id);
    }

    /// Frees a name if it still belongs to this job.
    pub(crate) fn take(&mut self, name: &str, id: JobId) {
        if self.job(name) == Some(id) {
            self.jobs.remove(name);
        }
    }
}
