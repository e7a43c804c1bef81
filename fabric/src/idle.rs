//! How a thread with nothing to do waits: spin, then yield, then sleep.
//!
//! Used by the hub's core threads and by workers alike. Knows a port, never what arrives over it.

use std::time::Duration;

use crate::port::{Port, Until};

/// The three stages, in polls rather than in time: a poll of an idle port costs tens of
/// nanoseconds, and no clock has to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdlePolicy {
    /// Empty polls with a pause instruction between them. A spinning round trip takes 0.1 us, a
    /// futex 20 us: worth it only if a core has nothing better to do.
    pub spins: u32,
    /// Empty polls with a `sched_yield` between them.
    pub yields: u32,
    /// Whether the thread sleeps after that; otherwise it spins for ever (busy-poll).
    pub sleeps: bool,
    /// The longest sleep. After it the thread looks around.
    pub nap: Duration,
}

impl IdlePolicy {
    /// For a machine with enough cores for its threads: spin some microseconds, then sleep.
    pub const DEDICATED: IdlePolicy =
        IdlePolicy { spins: 2000, yields: 0, sleeps: true, nap: Duration::from_millis(500) };
    /// For a machine with fewer cores than runnable threads: leave the core at once.
    pub const SHARED: IdlePolicy =
        IdlePolicy { spins: 0, yields: 1, sleeps: true, nap: Duration::from_millis(500) };
    /// Never sleep: the lowest latency, for a thread that has a core of its own.
    pub const BUSY_POLL: IdlePolicy =
        IdlePolicy { spins: u32::MAX, yields: 0, sleeps: false, nap: Duration::ZERO };
}

/// Where a thread stands in its policy.
#[derive(Debug)]
pub struct Idle {
    policy: IdlePolicy,
    polls: u32,
}

impl Idle {
    /// Awake.
    pub fn new(policy: IdlePolicy) -> Self {
        Idle { policy, polls: 0 }
    }

    /// There was work: starts over.
    pub fn reset(&mut self) {
        self.polls = 0;
    }

    /// Whether the next step sleeps.
    pub fn sleeps_next(&self) -> bool {
        let IdlePolicy { spins, yields, sleeps, .. } = self.policy;
        sleeps && self.polls >= spins.saturating_add(yields)
    }

    /// There was no work: spin, yield, or sleep on the port until `until` may hold. True when it slept.
    pub fn step<P: Port>(&mut self, port: &mut P, until: Until) -> bool {
        let sleeps = self.sleeps_next();
        self.polls = self.polls.saturating_add(1);
        if self.polls <= self.policy.spins || !self.policy.sleeps {
            std::hint::spin_loop();
            return false;
        }
        if !sleeps {
            std::thread::yield_now();
            return false;
        }
        port.wait(until, self.policy.nap);
        true
    }
}
