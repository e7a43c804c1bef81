//! Counts of a job's readers. The tasks that send to readers count without the registry's lock.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pbox_core::Round;
use pbox_core::control::{Followed, ReadersReply};
use tokio::time::Instant;

/// The most readers whose rounds a job remembers.
const READERS: usize = 64;
/// The time after which a reader that has read nothing no longer counts.
const SILENT: Duration = Duration::from_secs(3600);

/// A process that reads a job's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Reader {
    pub address: IpAddr,
    /// The number of the process, if the reader gives it.
    pub process: Option<u32>,
}

/// The last complete state that a reader got.
#[derive(Clone, Copy, Debug)]
struct Got {
    before: Round,
    at: Instant,
    /// Whether the reader had got a state before. A process that reads only once does not follow the job.
    follows: bool,
}

/// The counts of a job's readers.
#[derive(Debug, Default)]
pub(crate) struct Reads {
    now: AtomicU64,
    reads: AtomicU64,
    copies: AtomicU64,
    bytes: AtomicU64,
    saved: AtomicU64,
    refused: AtomicU64,
    done: AtomicU64,
    delay_ns: AtomicU64,
    round: AtomicU32,
    got: Mutex<HashMap<Reader, Got>>,
}

impl Reads {
    /// Counts a request that got no state.
    pub fn refused(&self) {
        self.refused.fetch_add(1, Relaxed);
    }

    pub fn copied(&self, before: Round) {
        self.copies.fetch_add(1, Relaxed);
        self.round.store(before.0, Relaxed);
    }

    /// Counts a reader of the state before a round, until the returned value is dropped.
    pub(super) fn begin(self: Arc<Self>, reader: Reader, before: Round) -> Reading {
        self.now.fetch_add(1, Relaxed);
        self.reads.fetch_add(1, Relaxed);
        Reading { reads: self, reader, before }
    }

    /// Remembers the state that a reader has got. If there are too many readers, forgets the reader that was silent for
    /// longest.
    pub(super) fn got(&self, reader: Reader, before: Round, at: Instant) {
        let mut all = self.got.lock().unwrap_or_else(PoisonError::into_inner);
        let follows = all.contains_key(&reader);
        if !follows && all.len() == READERS {
            let oldest = all.iter().min_by_key(|(_, got)| got.at).map(|(&reader, _)| reader);
            oldest.inspect(|oldest| _ = all.remove(oldest));
        }
        all.insert(reader, Got { before, at, follows });
    }

    /// Returns the progress of the readers that have read more than once.
    fn followed(&self, now: Instant) -> Option<Followed> {
        let all = self.got.lock().unwrap_or_else(PoisonError::into_inner);
        let follows = |got: &&Got| got.follows && now.duration_since(got.at) < SILENT;
        let rounds = || all.values().filter(follows).map(|got| got.before);
        Some(Followed { newest: rounds().max()?, slowest: rounds().min()? })
    }

    /// Whether a reader has read in the last hour.
    pub(super) fn is_read(&self, now: Instant) -> bool {
        let all = self.got.lock().unwrap_or_else(PoisonError::into_inner);
        all.values().any(|got| now.duration_since(got.at) < SILENT)
    }

    /// Whether readers follow the job at this time, which means that they have read more than once.
    pub(super) fn is_followed(&self, now: Instant) -> bool {
        self.followed(now).is_some()
    }

    /// Returns the counts, if there are any.
    pub fn reply(&self) -> Option<ReadersReply> {
        let counts = [
            &self.now,
            &self.reads,
            &self.copies,
            &self.bytes,
            &self.saved,
            &self.refused,
            &self.done,
            &self.delay_ns,
        ];
        let [now, reads, copies, bytes, saved, refused, done, delay_ns] =
            counts.map(|count| count.load(Relaxed));
        let (round, followed) = (Round(self.round.load(Relaxed)), self.followed(Instant::now()));
        let reply =
            ReadersReply { now, reads, copies, bytes, saved, refused, done, delay_ns, round, followed };
        (reply != ReadersReply::default()).then_some(reply)
    }
}

/// A reader that gets bytes.
#[derive(Debug)]
pub(super) struct Reading {
    reads: Arc<Reads>,
    reader: Reader,
    before: Round,
}

impl Reading {
    /// Counts bytes that went to the reader.
    pub fn got(&self, bytes: usize) {
        self.reads.bytes.fetch_add(bytes as u64, Relaxed);
    }

    /// Counts a whole state, whose snapshot was taken at this time, and the bytes that deltas have saved.
    pub fn got_all(&self, taken: Instant, saved: u64) {
        let now = Instant::now();
        self.reads.done.fetch_add(1, Relaxed);
        self.reads.saved.fetch_add(saved, Relaxed);
        self.reads.delay_ns.fetch_add(now.duration_since(taken).as_nanos() as u64, Relaxed);
        self.reads.got(self.reader, self.before, now);
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.reads.now.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reader(process: u32) -> Reader {
        Reader { address: [127, 0, 0, 1].into(), process: Some(process) }
    }

    #[test]
    fn the_newest_and_the_slowest_follower_are_known() {
        let (reads, begun) = (Reads::default(), Instant::now());
        let after = |minutes: u64| begun + Duration::from_secs(60 * minutes);
        let followed = |minutes| reads.followed(after(minutes)).map(|both| (both.newest.0, both.slowest.0));
        reads.got(reader(1), Round(4), after(0));
        assert_eq!(followed(0), None, "it may have read once alone");
        assert_eq!([59, 60].map(|minutes| reads.is_read(after(minutes))), [true, false]);
        reads.got(reader(1), Round(5), after(1));
        assert_eq!(followed(1), Some((5, 5)));
        reads.got(reader(2), Round(2), after(1));
        assert_eq!(followed(1), Some((5, 5)));
        reads.got(reader(2), Round(3), after(2));
        assert_eq!(followed(2), Some((5, 3)));
        reads.got(reader(2), Round(9), after(3));
        assert_eq!(followed(3), Some((9, 5)), "the first one is the slower one now");
        assert_eq!(followed(61), Some((9, 9)), "the first one was silent for an hour");
        assert_eq!(followed(63), None);
    }

    #[test]
    fn readers_have_a_bound() {
        let (reads, begun) = (Reads::default(), Instant::now());
        for time in 0..3 {
            for process in 0..2 * READERS as u32 {
                let at = begun + Duration::from_millis(u64::from(1000 * time + process));
                reads.got(reader(process), Round(time), at);
            }
        }
        assert_eq!(reads.got.lock().unwrap().len(), READERS);
        let address = Reader { process: None, ..reader(0) };
        (0..2).for_each(|round| reads.got(address, Round(round), begun + SILENT / 2));
        assert_eq!(reads.got.lock().unwrap().len(), READERS);
        let followed = reads.followed(begun + SILENT / 2);
        assert_eq!(followed, Some(Followed { newest: Round(1), slowest: Round(1) }));
    }
}
