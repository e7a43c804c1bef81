//! The clock of a timeline: the machine's clock, which all processes of a machine share.

use std::time::Instant;

use rustix::time::{ClockId, Timespec, clock_gettime};
use serde::{Deserialize, Serialize};

/// The number of attempts to read two clocks at the same time. The quickest attempt counts.
const ATTEMPTS: usize = 8;

/// A reading of `CLOCK_MONOTONIC`, which all processes of a machine share.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
    monotonic_ns: u64,
    realtime_ns: u64,
}

/// The description of a process's clock in a file.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Source {
    clock: &'static str,
    /// The identity of the clock. Times of clocks with the same identity can be compared.
    id: String,
    /// One moment on this clock. The same moment is also given as time of day.
    monotonic_ns: u64,
    realtime_ns: u64,
}

/// The difference between the clock of another machine and this clock, if it is known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ahead {
    /// The [id](Clock::id) of the other machine's clock.
    pub id: String,
    /// The time by which the other clock is ahead of this clock, in nanoseconds.
    pub ns: i64,
    /// The largest error of this time.
    pub within_ns: u64,
}

fn nanoseconds(Timespec { tv_sec, tv_nsec }: Timespec) -> u64 {
    tv_sec as u64 * 1_000_000_000 + tv_nsec as u64
}

impl Clock {
    /// Returns the identity of this process's clock. It differs between machines, between starts of a machine, and for
    /// containers with their own time.
    pub fn id() -> String {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let time = std::fs::read_link("/proc/self/ns/time").unwrap_or_default();
        format!("{} {}", boot.trim(), time.display())
    }

    /// Returns the current time of the clock, in nanoseconds.
    pub fn now_ns() -> u64 {
        nanoseconds(clock_gettime(ClockId::Monotonic))
    }

    /// Reads the clock and the time of day together.
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

    /// Returns a time as nanoseconds of this clock. A time before the start of this `Clock` counts as its
    /// start.
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
