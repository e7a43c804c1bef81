//! The clock of a timeline: the machine's clock, which all processes of a machine share.

use std::time::Instant;

use rustix::time::{ClockId, Timespec, clock_gettime};
use serde::{Deserialize, Serialize};

/// Attempts to read two clocks at once; the quickest counts.
const ATTEMPTS: usize = 8;

/// Nanoseconds of `CLOCK_MONOTONIC`, which all processes of a machine share.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
    monotonic_ns: u64,
    realtime_ns: u64,
}

/// The clock of a process, as a file describes it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Source {
    clock: &'static str,
    /// Times with the same id can be compared.
    id: String,
    /// One moment on this clock, and the same moment in the time of day.
    monotonic_ns: u64,
    realtime_ns: u64,
}

/// The difference between the clock of another machine and this clock, if it is known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ahead {
    /// The [id](Clock::id) of the other machine's clock.
    pub id: String,
    /// The nanoseconds that the other clock is ahead of this one.
    pub ns: i64,
    /// The most by which that can be wrong.
    pub within_ns: u64,
}

fn nanoseconds(Timespec { tv_sec, tv_nsec }: Timespec) -> u64 {
    tv_sec as u64 * 1_000_000_000 + tv_nsec as u64
}

impl Clock {
    /// Returns which clock this process has. Machines, starts of a machine, and containers with a time of their own
    /// have different ones.
    pub fn id() -> String {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let time = std::fs::read_link("/proc/self/ns/time").unwrap_or_default();
        format!("{} {}", boot.trim(), time.display())
    }

    /// Returns the time now, in nanoseconds.
    pub fn now_ns() -> u64 {
        nanoseconds(clock_gettime(ClockId::Monotonic))
    }

    /// Reads the clocks.
    pub fn start() -> Self {
        let read = || {
            let before = Instant::now();
            let monotonic_ns = Self::now_ns();
            let took = before.elapsed();
            let realtime_ns = nanoseconds(clock_gettime(ClockId::Realtime));
            (took, Clock { start: before, monotonic_ns, realtime_ns })
        };
        let quickest = (0..ATTEMPTS).map(|_| read()).min_by_key(|&(took, _)| took);
        quickest.expect("there are several attempts").1
    }

    /// Returns a time on this clock, in nanoseconds. A time before its start is its start.
    pub fn ns(&self, time: Instant) -> u64 {
        self.monotonic_ns + time.saturating_duration_since(self.start).as_nanos() as u64
    }

    pub(crate) fn source(&self) -> Source {
        let Clock { monotonic_ns, realtime_ns, .. } = *self;
        Source { clock: "CLOCK_MONOTONIC", id: Self::id(), monotonic_ns, realtime_ns }
    }

    pub(crate) fn started_ns(&self) -> u64 {
        self.monotonic_ns
    }
}
