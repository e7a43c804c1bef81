//! The memory that jobs were promised, and whether there is room for more. A job touches its memory late: its workers'
//! windows when they connect, its snapshots when one is taken. So what was promised and is not resident yet counts as used.
//!
//! ```text
//!   room of the process now  -  (promised - resident since the start, at least 0)  >=  what a new job needs
//! ```
//!
//! The promises are those of the jobs that have not failed, of jobs that are being made, and of joins that are being read:
//! when one of these ends, its promise goes with it.

use std::fmt;
use std::ops::DerefMut;

use fabric::MemoryRoom;
use pbox_core::JobTerms;
use pbox_core::control::RefusalCode;

use super::Hub;
use crate::job::Job;
use crate::refused::Refused;

/// The memory of this process.
#[derive(Clone, Debug)]
pub struct Memory {
    /// Its room for more.
    pub room: MemoryRoom,
    /// The memory that has become resident since it had no job, in bytes.
    pub used: u64,
}

/// There is no room for what is needed.
#[derive(Debug)]
pub struct NoRoom {
    needed: u64,
    room: MemoryRoom,
    /// Promised, and not used yet.
    waiting: u64,
}

impl fmt::Display for NoRoom {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gb = |bytes: u64| bytes as f64 / 1e9;
        write!(out, "{:.2} GB of memory, {}", gb(self.needed), self.room)?;
        if self.waiting > 0 {
            write!(out, ", of which {:.2} GB are promised to other jobs", gb(self.waiting))?;
        }
        Ok(())
    }
}

impl<J: DerefMut<Target = Job>, L: Default> Hub<J, L> {
    /// Returns the sum of all promises.
    pub fn promised(&self) -> u64 {
        let of_jobs = self.living().map(|job| job.made.promised);
        let of_making = self.names.reserved.values().map(|reserved| reserved.promised);
        of_jobs.chain(of_making).fold(self.joins_bytes, u64::saturating_add)
    }

    /// Checks that this memory more may be promised. The room of some machines is not known.
    ///
    /// # Errors
    /// When there is no room.
    pub fn check_room(&self, needed: u64, memory: Option<Memory>) -> Result<(), NoRoom> {
        let Some(Memory { room, used }) = memory else { return Ok(()) };
        let waiting = self.promised().saturating_sub(used);
        match needed <= room.bytes.saturating_sub(waiting) {
            true => Ok(()),
            false => Err(NoRoom { needed, room, waiting }),
        }
    }

    /// Promises the memory of a join that is being read.
    ///
    /// # Errors
    /// When there is no room.
    pub fn promise_join(&mut self, bytes: u64, memory: Option<Memory>) -> Result<(), Refused> {
        self.check_room(bytes, memory).map_err(|why| {
            let why = format!("reading this join needs {why}; try again later");
            Refused::new(RefusalCode::NoMemory, why)
        })?;
        self.joins_bytes += bytes;
        Ok(())
    }

    /// Takes the promise of a join back, which is read.
    pub fn end_join(&mut self, bytes: u64) {
        self.joins_bytes -= bytes;
    }

    /// Promises a job that is being made all its memory, or refuses it: otherwise the kernel would kill the hub for it.
    ///
    /// # Errors
    /// When there is no room, or a quota is used up. The job has no promise then.
    pub fn promise(
        &mut self,
        name: &str,
        terms: &JobTerms,
        needed: u64,
        memory: Option<Memory>,
    ) -> Result<(), Refused> {
        self.set_promise(name, 0);
        self.check_memory_of(name, needed)?;
        self.check_room(needed, memory).map_err(|why| {
            let elements = terms.keys.iter().filter_map(|key| key.bytes()).fold(0, u64::saturating_add);
            let why = format!(
                "job {name:?}: {} workers of a {:.2} GB model with {} need {why}; use fewer workers, larger chunks or a \
                 smaller model, or end other jobs",
                terms.workers,
                elements as f64 / 1e9,
                terms.optimizer.name(),
            );
            Refused::new(RefusalCode::NoMemory, why)
        })?;
        self.set_promise(name, needed);
        Ok(())
    }

    fn set_promise(&mut self, name: &str, bytes: u64) {
        self.names.reserved.get_mut(name).expect("its name is reserved").promised = bytes;
    }
}
