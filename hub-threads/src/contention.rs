//! The contention for a core's cpu: the core's thread wants to run, and the kernel runs other threads there.
//!
//! A pinned thread of another program takes time from one core alone. The next job then gives this core fewer chunks.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// The least time that a thread must have wanted to run, in nanoseconds, so that its part of the cpu is not chance.
const LEAST: u64 = 1_000_000_000;

/// The age at which a part no longer counts: the other threads may have ended.
const OLD: Duration = Duration::from_secs(60);

/// The longest text that the kernel writes: three numbers of 20 digits.
const TEXT_BYTES: usize = 64;

/// The part of its cpu's time that a core's thread got, of the time in which it wanted to run.
#[derive(Debug, Default)]
pub struct Contention {
    /// The kernel's counts of the thread.
    counts: OnceLock<File>,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    /// The counts when the part was last computed.
    last: Counts,
    part: Option<(f64, Instant)>,
}

/// The counts of the kernel for a thread, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    ran: u64,
    /// The time for which the thread could have run, and another thread ran in its place.
    waited: u64,
}

impl Counts {
    /// Parses the text of `/proc/PID/task/TID/schedstat`: the two times, and a number of time slices.
    fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.split_ascii_whitespace().map(|number| number.parse().ok());
        Some(Counts { ran: numbers.next()??, waited: numbers.next()?? })
    }
}

impl Seen {
    /// Computes the part again, if the thread has wanted to run for long enough since the last time.
    fn update(&mut self, now: Counts, at: Instant) {
        let (ran, waited) =
            (now.ran.saturating_sub(self.last.ran), now.waited.saturating_sub(self.last.waited));
        let wanted = ran.saturating_add(waited);
        if wanted >= LEAST {
            *self = Seen { last: now, part: Some((ran as f64 / wanted as f64, at)) };
        }
    }

    fn part_at(&self, now: Instant) -> f64 {
        let young = self.part.filter(|(_, at)| now.saturating_duration_since(*at) <= OLD);
        young.map_or(1.0, |(part, _)| part)
    }
}

impl Contention {
    /// Creates a measurement with this result, for a core without a thread.
    pub fn of_part(part: f64) -> Self {
        let seen = Seen { part: Some((part, Instant::now())), ..Seen::default() };
        Contention { seen: Mutex::new(seen), ..Contention::default() }
    }

    /// Begins with the calling thread. If the kernel does not count, nothing is measured.
    pub(crate) fn begin(&self) {
        if let Ok(counts) = File::open("/proc/thread-self/schedstat") {
            let _ = self.counts.set(counts);
        }
    }

    /// Reads the kernel's counts. Call it several times a second, so that [`part`](Self::part) is of the last second of
    /// work.
    pub fn measure(&self) {
        let mut text = [0; TEXT_BYTES];
        let read = self.counts.get().and_then(|counts| counts.read_at(&mut text, 0).ok());
        let counts = read.and_then(|read| Counts::parse(str::from_utf8(&text[..read]).ok()?));
        if let Some(counts) = counts {
            self.seen().update(counts, Instant::now());
        }
    }

    /// Returns the part, from 0 to 1. It is 1 before the thread has wanted to run for a second, and again a minute after
    /// the last measurement.
    pub fn part(&self) -> f64 {
        self.seen().part_at(Instant::now())
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::channel;

    use fabric::{IdlePolicy, any};
    use pbox_core::kernels::Kernels;
    use rustix::thread::CpuSet;
    use tokio::sync::mpsc::unbounded_channel;

    use super::*;
    use crate::handle::pin;
    use crate::{Command, CoreHandle, Lane};

    #[test]
    fn a_part_is_of_the_last_second_of_work() {
        let (mut seen, begun) = (Seen::default(), Instant::now());
        let mut after = |ran: u64, waited: u64| {
            seen.update(Counts { ran: ran * 1_000_000, waited: waited * 1_000_000 }, begun);
            seen.part_at(begun + OLD)
        };
        assert_eq!(after(600, 300), 1.0);
        assert_eq!(after(600, 400), 0.6);
        assert_eq!(after(1100, 800), 0.6, "only 0.9 s since");
        assert_eq!(after(1600, 800), 1000.0 / 1400.0);
        assert_eq!(seen.part_at(begun + 2 * OLD), 1.0);
    }

    #[test]
    fn texts_of_the_kernel_are_parsed() {
        assert_eq!(Counts::parse("12 34 5\n"), Some(Counts { ran: 12, waited: 34 }));
        assert_eq!(Counts::parse("0 0 0\n"), Some(Counts::default()));
        for text in ["", "1", "1 x 2", "-1 2 3"] {
            assert_eq!(Counts::parse(text), None, "{text}");
        }
    }

    /// Three threads spin on the core's cpu. On a busy machine the core's part is smaller still.
    #[test]
    fn a_core_gets_a_part_of_a_cpu_that_other_threads_use() {
        let cpus = rustix::thread::sched_getaffinity(None).unwrap();
        let cpu = (0..CpuSet::MAX_CPU).find(|&cpu| cpus.is_set(cpu)).unwrap() as u32;
        let (_group, mut ports) = any::group(1, None).unwrap();
        let (lane, idle) = (Lane { cpu, node: 0, nic: None }, IdlePolicy::BUSY_POLL);
        let (reports, discard) = (unbounded_channel().0, channel().0);
        let core =
            CoreHandle::start(0, lane, ports.remove(0), Kernels::detect(), idle, reports, discard, false)
                .unwrap();
        assert_eq!(core.contention.part(), 1.0);
        let stops = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    pin(cpu);
                    while !stops.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            let limit = Instant::now() + Duration::from_secs(60);
            while core.contention.seen().part.is_none() && Instant::now() < limit {
                core.contention.measure();
                std::thread::yield_now();
            }
            stops.store(true, Ordering::Relaxed);
        });
        core.tell(Command::Stop);
        core.join();
        let part = core.contention.part();
        assert!(part < 0.7, "{part}");
    }
}
