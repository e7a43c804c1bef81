//! The progress of a job, as its cores saw it at their last look.

use std::time::{Duration, Instant};

use pbox_core::{Look, Round};

/// How far a job was at the last look.
#[derive(Debug)]
pub struct Progress {
    done: u64,
    since: Instant,
    round: Round,
}

impl Progress {
    /// Begins the clock of a job.
    pub fn new(now: Instant) -> Self {
        Progress { done: 0, since: now, round: Round(0) }
    }

    /// Returns the job's round.
    pub fn round(&self) -> Round {
        self.round
    }

    /// Notes a look. Returns for how long nothing has moved.
    pub fn note(&mut self, look: &Look, now: Instant) -> Duration {
        if look.is_moving || look.done != self.done {
            (self.done, self.since) = (look.done, now);
        }
        self.round = look.round;
        now - self.since
    }
}
