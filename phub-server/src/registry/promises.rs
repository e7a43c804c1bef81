//! The memory of this process, parts of which the coordinator promises to jobs and joins.

use coordinator::Memory;
use coordinator::input::{EndJoin, PromiseJoin};
use pbox_core::Discarded;

use super::{Refusal, Registry};

/// The memory that is promised to a join while its body is being read. Dropping this value ends the promise.
#[derive(Debug)]
pub(crate) struct Promise<'a> {
    registry: &'a Registry,
    bytes: u64,
}

impl Drop for Promise<'_> {
    fn drop(&mut self) {
        self.registry.lock().ask(EndJoin { bytes: self.bytes });
        // The allocator still holds memory of the join. The thread that frees memory returns it to the
        // operating system.
        self.registry.free(Discarded::default());
    }
}

impl Registry {
    pub(super) fn memory(&self) -> Option<Memory> {
        let others = self.resident_at_start.saturating_add(self.for_readers.all());
        let used = fabric::resident_bytes().unwrap_or(0).saturating_sub(others);
        fabric::memory_room().map(|room| Memory::new(&room, used))
    }

    /// Promises memory to a join whose body is about to be read. A parsed manifest is several times as large
    /// as its text.
    pub fn promise_join(&self, text_bytes: usize) -> Result<Promise<'_>, Refusal> {
        let bytes = crate::job_memory::parsed_bytes(text_bytes);
        let memory = self.memory();
        self.lock().ask(PromiseJoin { bytes, memory })?;
        Ok(Promise { registry: self, bytes })
    }
}

#[cfg(test)]
mod tests {
    use pbox_core::JobId;
    use pbox_core::control::RefusalCode;

    use super::*;
    use crate::registry::test_bed::{registry, request, runtime};

    #[test]
    fn the_promises_are_as_before_when_a_job_is_refused_fails_or_ends() {
        let (registry, _core) = registry();
        runtime().block_on(async {
            let promised = || registry.lock().hub().promised();
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
            let shown = registry.describe().jobs.iter().map(|job| job.promised_bytes).sum::<u64>();
            assert_eq!(shown, of_one, "the page and the metrics show what is promised");
            registry.end(&mut registry.lock(), JobId(0));
            assert_eq!(promised(), 0);
        });
    }

    /// Formerly, memory of readers counted as memory of jobs, and a new job got memory that was promised to another job
    /// and not touched yet.
    #[test]
    fn memory_for_readers_is_no_promised_memory_that_is_in_use() {
        let (registry, _core) = registry();
        let touched = std::hint::black_box(vec![1_u8; 64 << 20]); // more than other tests release meanwhile
        let is_used = || registry.memory().unwrap().used > 0;
        assert!(is_used());
        let copy = registry.for_readers.beside(1 << 50);
        let row = copy.beside(1 << 50);
        drop(copy);
        assert!(!is_used(), "the row counts");
        drop(row);
        assert!(is_used());
        drop(touched);
    }

    #[test]
    fn a_join_that_is_read_has_a_promise_meanwhile() {
        let (registry, _core) = registry();
        let promise = registry.promise_join(1000).unwrap();
        assert!(registry.lock().hub().promised() >= 1000);
        drop(promise);
        assert_eq!(registry.lock().hub().promised(), 0);
        let Refusal { code, why, .. } =
            registry.promise_join(1 << 50).map(|_| ()).expect_err("it fits nowhere");
        assert_eq!(code, RefusalCode::NoMemory);
        assert!(why.contains("GB of memory"), "{why}");
        assert_eq!(registry.lock().hub().promised(), 0);
    }
}
