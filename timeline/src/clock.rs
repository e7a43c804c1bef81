//! The clock of a timeline: that of the machine, so that processes of one machine have one.

use std::time::Instant;

use rustix::time::{ClockId, Timespec, clock_gettime};
use serde::Serialize;

/// Attempts to read two clocks at once; the quickest counts.
const ATTEMPTS: usize = 8;

/// Nanoseconds of `CLOCK_MONOTONIC`, which all processes of a machine share.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
    monotonic_ns: u64,
    realtime_ns: u64,
}

/// What a file says about the clock of a process.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Source {
    clock: &'static str,
    /// Machines, and starts of one machine, have different ones: times with the same id can be compared.
    boot_id: String,
    /// The same moment on this clock and in the time of day.
    monotonic_ns: u64,
    realtime_ns: u64,
}

impl Clock {
    /// Reads the clocks.
    pub fn start() -> Self {
        let nanoseconds =
            |Timespec { tv_sec, tv_nsec }: Timespec| tv_sec as u64 * 1_000_000_000 + tv_nsec as u64;
        let read = || {
            let before = Instant::now();
            let monotonic_ns = nanoseconds(clock_gettime(ClockId::Monotonic));
            let took = before.elapsed();
            let realtime_ns = nanoseconds(clock_gettime(ClockId::Realtime));
            (took, Clock { start: before, monotonic_ns, realtime_ns })
        };
        let quickest = (0..ATTEMPTS).map(|_| read()).min_by_key(|&(took, _)| took);
        quickest.expect("there are several attempts").1
    }

    /// A time on this clock, in nanoseconds. A time before its start is its start.
    pub fn ns(&self, time: Instant) -> u64 {
        self.monotonic_ns + time.saturating_duration_since(self.start).as_nanos() as u64
    }

    pub(crate) fn source(&self) -> Source {
        let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let Clock { monotonic_ns, realtime_ns, .. } = *self;
        Source { clock: "CLOCK_MONOTONIC", boot_id: boot_id.trim().to_owned(), monotonic_ns, realtime_ns }
    }

    pub(crate) fn started_ns(&self) -> u64 {
        self.monotonic_ns
    }
}
