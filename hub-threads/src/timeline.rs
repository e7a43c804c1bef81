//! The timeline of a core: the last events of one core thread, for a trace.
//!
//! The core thread owns the timeline. The timeline reads the clock once for each poll that returned messages,
//! and twice for each chunk that the core steps. It names jobs and chunks only by their numbers.

use std::time::{Duration, Instant};

use pbox_core::{ChunkId, Immediate, JobId, Onlooker, Round};
use timeline::Ring;

/// The number of events that are kept, in 5 MB. With four workers they cover 13,000 chunks.
const EVENTS: usize = 1 << 16;
/// The shortest wait that is recorded, if the core polls.
const WAIT: Duration = Duration::from_micros(1);

/// An event of a core.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // each variant says what its fields are for
pub enum Event {
    /// The core waited, and nothing arrived before the wait ended.
    Waited { begin: Instant, end: Instant },
    /// A message of a worker, or of a hub above, arrived.
    Arrived { at: Instant, job: JobId, rank: u32, immediate: Immediate },
    /// A chunk was summed and stepped, and then its answers were posted.
    Stepped { begin: Instant, posted: Instant, end: Instant, job: JobId, chunk: ChunkId, round: Round },
    /// Answers were posted that had waited for room.
    CaughtUp { begin: Instant, end: Instant, job: JobId },
}

/// The recorder of a core's events.
#[derive(Debug)]
pub struct CoreTimeline {
    ring: Ring<Event>,
    /// The time up to which events are recorded.
    since: Instant,
    /// The time of the first message that the core posted after `since`.
    posted: Option<Instant>,
}

impl CoreTimeline {
    pub fn new() -> Self {
        let now = Instant::now();
        CoreTimeline {
            ring: Ring::new(EVENTS, Event::Waited { begin: now, end: now }),
            since: now,
            posted: None,
        }
    }

    /// Returns the last events, and the number of earlier events.
    pub fn events(&self) -> (Vec<Event>, u64) {
        (self.ring.events(), self.ring.lost())
    }
}

impl Onlooker for CoreTimeline {
    #[inline]
    fn polled(&mut self) {
        let now = Instant::now();
        if now - self.since >= WAIT {
            self.ring.note(Event::Waited { begin: self.since, end: now });
        }
        (self.since, self.posted) = (now, None);
    }

    #[inline]
    fn arrived(&mut self, job: JobId, rank: u32, immediate: Immediate) {
        self.ring.note(Event::Arrived { at: self.since, job, rank, immediate });
    }

    #[inline]
    fn posted(&mut self) {
        if self.posted.is_none() {
            self.posted = Some(Instant::now());
        }
    }

    #[inline]
    fn done(&mut self, job: JobId, chunk: ChunkId, round: Round, steps: u32) {
        let (begin, posted, end) = (self.since, self.posted.take(), Instant::now());
        if steps > 0 {
            let posted = posted.unwrap_or(end);
            self.ring.note(Event::Stepped { begin, posted, end, job, chunk, round });
        }
        self.since = end;
    }

    fn caught_up(&mut self, job: JobId) {
        let end = Instant::now();
        let begin = self.posted.take().unwrap_or(end);
        self.ring.note(Event::CaughtUp { begin, end, job });
        self.since = end;
    }
}
