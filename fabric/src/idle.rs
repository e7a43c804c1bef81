//! The waiting of a thread without work: it spins, then yields, then sleeps.
//!
//! The hub's core threads and the workers use it. It depends on a port, but not on the meaning of the port's
//! arrivals.

use std::time::{Duration, Instant};

use crate::port::{Port, Until};

/// The number of polls that a spinning thread makes between two reads of the clock. Reading the clock costs
/// about as much as polling one idle link.
const POLLS_PER_LOOK: u32 = 32;

/// The three stages of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdlePolicy {
    /// The time in which empty polls have only a pause instruction between them. A round trip between
    /// spinning threads takes about 0.1 us, a wake-up by futex about 20 us. Spinning pays off only if the
    /// processor has nothing better to do. The limit is a time and not a number of polls, because a poll of
    /// 128 links takes 30 times as long as a poll of one link.
    pub spin: Duration,
    /// The number of empty polls with a `sched_yield` between them.
    pub yields: u32,
    /// Whether the thread sleeps after the yields. Otherwise it spins for ever (busy-poll).
    pub sleeps: bool,
    /// The longest sleep. After the sleep, the thread checks its other work.
    pub nap: Duration,
}

impl IdlePolicy {
    /// The policy for a machine with enough processors for its threads: spin for the time of a few wake-ups,
    /// then sleep.
    pub const DEDICATED: IdlePolicy = IdlePolicy {
        spin: Duration::from_micros(100),
        yields: 0,
        sleeps: true,
        nap: Duration::from_millis(500),
    };
    /// The policy for a machine with fewer processors than runnable threads: yield at once.
    pub const SHARED: IdlePolicy =
        IdlePolicy { spin: Duration::ZERO, yields: 1, sleeps: true, nap: Duration::from_millis(500) };
    /// The policy that never sleeps. It has the lowest latency, and needs a core that no other thread uses.
    pub const BUSY_POLL: IdlePolicy =
        IdlePolicy { spin: Duration::MAX, yields: 0, sleeps: false, nap: Duration::ZERO };
}

/// The step that a thread has reached in its policy.
#[derive(Debug)]
pub struct Idle {
    policy: IdlePolicy,
    spins: bool,
    /// The number of empty polls in this wait, while the thread spins.
    polls: u32,
    /// The first time that the thread read from the clock in this wait.
    since: Option<Instant>,
    yields_left: u32,
}

impl Idle {
    /// Creates the state of a thread that is awake.
    pub fn new(policy: IdlePolicy) -> Self {
        let mut idle = Idle { policy, spins: false, polls: 0, since: None, yields_left: 0 };
        idle.reset();
        idle
    }

    /// Starts again with the first stage, because there was work.
    pub fn reset(&mut self) {
        let IdlePolicy { spin, yields, sleeps, .. } = self.policy;
        (self.spins, self.polls, self.since, self.yields_left) =
            (!sleeps || !spin.is_zero(), 0, None, yields);
    }

    /// Whether the next step sleeps.
    pub fn sleeps_next(&self) -> bool {
        !self.spins && self.yields_left == 0
    }

    /// Idles once, because there was no work: spins, yields, or sleeps on the port. A sleep ends when `until`
    /// may hold. Returns true if the thread slept.
    pub fn step<P: Port>(&mut self, port: &mut P, until: Until) -> bool {
        if self.spins {
            std::hint::spin_loop();
            self.spin(Instant::now);
            return false;
        }
        if !self.sleeps_next() {
            self.yields_left -= 1;
            std::thread::yield_now();
            return false;
        }
        port.wait(until, self.policy.nap);
        true
    }

    /// Counts a poll. Ends the spinning when the clock `now` says that the time for it is over.
    fn spin(&mut self, now: impl FnOnce() -> Instant) {
        self.polls = self.polls.wrapping_add(1);
        if self.policy.sleeps && self.polls.is_multiple_of(POLLS_PER_LOOK) {
            let now = now();
            let since = *self.since.get_or_insert(now);
            self.spins = now.saturating_duration_since(since) < self.policy.spin;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how many polls a thread makes and how often it reads the clock until it stops spinning. Each
    /// poll takes `poll`.
    fn spun(idle: &mut Idle, poll: Duration) -> (u32, u32) {
        let begun = Instant::now();
        let (mut polls, mut looks) = (0, 0);
        while idle.spins {
            polls += 1;
            idle.spin(|| {
                looks += 1;
                begun + poll * polls
            });
        }
        (polls, looks)
    }

    #[test]
    fn a_spin_lasts_as_long_whatever_a_poll_takes() {
        let mut idle = Idle::new(IdlePolicy::DEDICATED);
        // The first read of the clock starts the 100 us, so the 32 polls before that read are additional.
        assert_eq!(spun(&mut idle, Duration::from_nanos(50)), (32 + 2016, 64), "63 looks of 1.6 us each");
        assert!(idle.sleeps_next());
        idle.reset();
        assert!(!idle.sleeps_next());
        assert_eq!(spun(&mut idle, Duration::from_nanos(1000)), (32 + 128, 5), "as with 128 links");
    }

    #[test]
    fn policies_spin_or_yield_or_neither() {
        let mut busy = Idle::new(IdlePolicy::BUSY_POLL);
        (0..1000).for_each(|_| busy.spin(|| unreachable!("it needs no clock")));
        assert!(busy.spins && !busy.sleeps_next());
        let shared = Idle::new(IdlePolicy::SHARED);
        assert!(!shared.spins && !shared.sleeps_next(), "it yields first");
    }
}
