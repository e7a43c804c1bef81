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

use fabric::MemoryRoom;
use pbox_core::Discarded;
use pbox_core::control::RefusalCode;

use super::{Because, Inner, Refusal, Registry};

/// There is no room for what is needed.
#[derive(Debug)]
pub(super) struct NoRoom {
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

/// A promise to a join that is being read. Dropping it gives the memory back.
#[derive(Debug)]
pub(crate) struct Promise<'a> {
    registry: &'a Registry,
    bytes: u64,
}

impl Drop for Promise<'_> {
    fn drop(&mut self) {
        self.registry.lock().joins_bytes -= self.bytes;
        // What the join left behind in the allocator goes back to the machine, by the thread that frees.
        self.registry.free(Discarded::default());
    }
}

impl Inner {
    /// All promises.
    pub(super) fn promised(&self) -> u64 {
        let of_jobs = self.jobs.values().filter(|job| !job.failed()).map(|job| job.made.promised);
        let of_making = self.making.values().map(|making| making.promised);
        of_jobs.chain(of_making).fold(self.joins_bytes, u64::saturating_add)
    }
}

impl Registry {
    /// Whether so many bytes more may be promised.
    pub(super) fn check_room(&self, inner: &Inner, needed: u64) -> Result<(), NoRoom> {
        let Some(room) = fabric::memory_room() else { return Ok(()) };
        let used = fabric::resident_bytes().unwrap_or(0).saturating_sub(self.resident_at_start);
        fits(needed, room, inner.promised(), used)
    }

    /// Promises the memory of a request that is being read: a join's parsed manifest is several times its text.
    pub fn promise_join(&self, text_bytes: usize) -> Result<Promise<'_>, Refusal> {
        let bytes = crate::job_memory::parsed_bytes(text_bytes);
        let mut inner = self.lock();
        self.check_room(&inner, bytes).map_err(|why| {
            RefusalCode::NoMemory.because(format!("reading this join needs {why}; try again later"))
        })?;
        inner.joins_bytes += bytes;
        Ok(Promise { registry: self, bytes })
    }
}

fn fits(needed: u64, room: MemoryRoom, promised: u64, used: u64) -> Result<(), NoRoom> {
    let waiting = promised.saturating_sub(used);
    match needed <= room.bytes.saturating_sub(waiting) {
        true => Ok(()),
        false => Err(NoRoom { needed, room, waiting }),
    }
}

#[cfg(test)]
mod tests {
    use fabric::MemoryBound;
    use pbox_core::JobId;

    use super::*;
    use crate::registry::test_bed::{registry, request, runtime};

    const GB: u64 = 1_000_000_000;

    #[test]
    fn what_is_promised_and_not_used_is_used() {
        let room = |gb| MemoryRoom { bytes: gb * GB, bound: MemoryBound::Machine };
        assert!(fits(14 * GB, room(23), 0, 0).is_ok());
        let refused = fits(14 * GB, room(23), 14 * GB, 0).unwrap_err().to_string();
        assert!(refused.contains("14.00 GB of memory, this machine has 23.00 GB"), "{refused}");
        assert!(refused.contains("14.00 GB are promised to other jobs"), "{refused}");
        assert!(fits(9 * GB, room(23), 14 * GB, 0).is_ok());
        // The first job has touched its memory: it is missing in the room, and is not counted twice.
        assert!(fits(9 * GB, room(9), 14 * GB, 14 * GB).is_ok());
        assert!(fits(9 * GB, room(16), 14 * GB, 7 * GB).is_ok());
        assert!(fits(10 * GB, room(16), 14 * GB, 7 * GB).is_err());
        // What else the process has is no room.
        assert!(fits(9 * GB, room(8), 0, 14 * GB).is_err());
    }

    #[test]
    fn the_promises_are_as_before_when_a_job_is_refused_fails_or_ends() {
        let (registry, _core) = registry();
        runtime().block_on(async {
            let promised = || registry.lock().promised();
            registry.join("first".into(), request()).await.unwrap();
            let of_one = promised();
            assert!(of_one > 0);
            let mut large = request();
            large.terms.keys[0].shape = vec![1 << 38]; // 1 TiB
            large.terms.chunk_bytes = 1 << 30;
            let refused = registry.join("large".into(), large).await.unwrap_err();
            assert_eq!(refused.code, RefusalCode::NoMemory);
            assert!(refused.why.contains("GB of memory"), "{refused:?}");
            assert_eq!(promised(), of_one, "a refused job has no promise");
            registry.join("second".into(), request()).await.unwrap();
            assert_eq!(promised(), 2 * of_one);
            registry.fail(&mut registry.lock(), JobId(2), "a test");
            assert_eq!(promised(), of_one);
            registry.end(&mut registry.lock(), JobId(0));
            assert_eq!(promised(), 0);
        });
    }

    #[test]
    fn a_join_that_is_read_has_a_promise_meanwhile() {
        let (registry, _core) = registry();
        let promise = registry.promise_join(1000).unwrap();
        assert!(registry.lock().promised() >= 1000);
        drop(promise);
        assert_eq!(registry.lock().promised(), 0);
        let Refusal { code, why } = registry.promise_join(1 << 50).map(|_| ()).expect_err("it fits nowhere");
        assert_eq!(code, RefusalCode::NoMemory);
        assert!(why.contains("GB of memory"), "{why}");
        assert_eq!(registry.lock().promised(), 0);
    }
}
