//! The memory that is promised to jobs, and the check whether there is room for more. A job touches its memory late. A
//! worker's windows (memory for its links) are touched when the worker connects. Memory for a snapshot is touched when
//! the snapshot is taken. So promised memory that is not resident yet counts as used.
//!
//! ```text
//!   room of the process now  -  (promised - resident since the start, at least 0)  >=  what a new job needs
//! ```
//!
//! Memory is promised to jobs that have not failed, to jobs that are being made, and to joins whose bodies are being read.
//! A promise ends together with its job or join.

use std::fmt;

use fabric::{Amount, MemoryRoom};
use pbox_core::JobTerms;
use pbox_core::control::RefusalCode;
use serde::{Deserialize, Serialize};

use super::Hub;
use crate::refused::Refused;

/// The memory of this process.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Memory {
    /// The memory that the process may still use, in bytes.
    pub room: u64,
    /// A text about this memory and its limit.
    pub words: String,
    /// The bytes that have become resident since the process had no job.
    pub used: u64,
}

impl Memory {
    /// Creates the description from the room of the process. `used` are the bytes that have become resident since the
    /// process had no job.
    pub fn new(room: &MemoryRoom, used: u64) -> Self {
        Memory { room: room.bytes, words: room.to_string(), used }
    }
}

/// A request for the memory of a job that is being made.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Promise {
    /// The job's name, which is reserved.
    pub name: String,
    /// The number of its workers.
    pub workers: u32,
    /// The bytes of its model.
    pub model_bytes: u64,
    /// The name of its optimizer.
    pub optimizer: String,
    /// The memory that the job needs at this hub, in bytes.
    pub needed: u64,
    /// The memory of this process, if it is known.
    pub memory: Option<Memory>,
}

impl Promise {
    /// Computes the memory request of a job with these terms.
    pub fn new(name: &str, terms: &JobTerms, needed: u64, memory: Option<Memory>) -> Self {
        Promise {
            name: name.to_owned(),
            workers: terms.workers,
            model_bytes: terms.keys.iter().filter_map(|key| key.bytes()).fold(0, u64::saturating_add),
            optimizer: terms.optimizer.name().to_owned(),
            needed,
            memory,
        }
    }
}

/// An error: there is not enough free memory.
#[derive(Debug)]
pub struct NoRoom {
    needed: u64,
    room: String,
    /// The bytes that are promised to other jobs and not resident yet.
    waiting: u64,
}

impl fmt::Display for NoRoom {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} of memory, {}", Amount(self.needed), self.room)?;
        if self.waiting > 0 {
            write!(out, ", of which {} are promised to other jobs", Amount(self.waiting))?;
        }
        Ok(())
    }
}

impl Hub {
    /// Returns the sum of all promises.
    pub fn promised(&self) -> u64 {
        let of_jobs = self.living().map(|job| job.spec.made.promised);
        let of_making = self.names.reserved.values().map(|reserved| reserved.promised);
        of_jobs.chain(of_making).fold(self.joins_bytes, u64::saturating_add)
    }

    /// Checks that `needed` more bytes may be promised. Passes if the memory that the process may still use is not known.
    ///
    /// # Errors
    /// Returns an error if there is not enough memory.
    pub fn check_room(&self, needed: u64, memory: Option<Memory>) -> Result<(), NoRoom> {
        let Some(Memory { room, words, used }) = memory else { return Ok(()) };
        let waiting = self.promised().saturating_sub(used);
        match needed <= room.saturating_sub(waiting) {
            true => Ok(()),
            false => Err(NoRoom { needed, room: words, waiting }),
        }
    }

    /// Promises a job that is being made all its memory, or refuses the job. Without this check, the kernel could kill the
    /// hub for lack of memory. A refused job has no promise.
    pub(crate) fn promise(&mut self, promise: Promise) -> Result<(), Refused> {
        let Promise { name, workers, model_bytes, optimizer, needed, memory } = promise;
        let owner = self.names.promise(&name, 0);
        let owned = || owner.map_or_else(Vec::new, |owner| self.owned_by(owner));
        self.settings.quotas.check_memory_of((&name, needed), owner, owned)?;
        self.check_room(needed, memory).map_err(|why| {
            let why = format!(
                "job {name:?}: {workers} workers with a model of {} and {optimizer} need {why}; use fewer workers, larger \
                 chunks or a smaller model, or end other jobs",
                Amount(model_bytes),
            );
            Refused::new(RefusalCode::NoMemory, why)
        })?;
        self.names.promise(&name, needed);
        Ok(())
    }
}
