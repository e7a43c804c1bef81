//! Counts of a job's readers. The tasks that send to readers count without the registry's lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use pbox_core::Round;
use pbox_core::control::ReadersReply;

/// The counts of a job's readers.
#[derive(Debug, Default)]
pub(crate) struct Reads {
    now: AtomicU64,
    reads: AtomicU64,
    copies: AtomicU64,
    bytes: AtomicU64,
    refused: AtomicU64,
    round: AtomicU32,
}

impl Reads {
    /// Counts a request that got no state.
    pub fn refused(&self) {
        self.refused.fetch_add(1, Relaxed);
    }

    /// Counts a copy of the state before a round.
    pub fn copied(&self, before: Round) {
        self.copies.fetch_add(1, Relaxed);
        self.round.store(before.0, Relaxed);
    }

    /// Counts a reader, until the result is dropped.
    pub(super) fn begin(self: Arc<Self>) -> Reading {
        self.now.fetch_add(1, Relaxed);
        self.reads.fetch_add(1, Relaxed);
        Reading(self)
    }

    /// Returns the counts, if there are some.
    pub fn reply(&self) -> Option<ReadersReply> {
        let [now, reads, copies, bytes, refused] =
            [&self.now, &self.reads, &self.copies, &self.bytes, &self.refused]
                .map(|count| count.load(Relaxed));
        let reply =
            ReadersReply { now, reads, copies, bytes, refused, round: Round(self.round.load(Relaxed)) };
        (reply != ReadersReply::default()).then_some(reply)
    }
}

/// A reader that gets bytes.
#[derive(Debug)]
pub(super) struct Reading(Arc<Reads>);

impl Reading {
    /// Counts bytes that went to the reader.
    pub fn got(&self, bytes: usize) {
        self.0.bytes.fetch_add(bytes as u64, Relaxed);
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Relaxed);
    }
}
