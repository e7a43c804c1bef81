//! The progress of a job, as its cores saw it at their last look.

use std::time::{Duration, Instant};

use pbox_core::{Look, Round};

/// The progress of a job at the last look.
#[derive(Debug)]
pub struct Progress {
    done: u64,
    since: Instant,
    round: Round,
    /// Whether a push by a worker that has left was waited for at that look.
    waits_for_left: bool,
}

impl Progress {
    /// Begins the clock of a job.
    pub fn new(now: Instant) -> Self {
        Progress { done: 0, since: now, round: Round(0), waits_for_left: false }
    }

    /// Returns the job's round.
    pub fn round(&self) -> Round {
        self.round
    }

    /// Notes a look. Returns the time for which nothing has moved.
    pub fn note(&mut self, look: &Look, now: Instant) -> Duration {
        if look.is_moving || look.done != self.done {
            (self.done, self.since) = (look.done, now);
        }
        self.round = look.round;
        now - self.since
    }

    /// Notes the reason why an awaited push never comes, if there is one. Returns the reason if it held at the previous look,
    /// too, and nothing has moved for `time` since. The delay is for pushes that a worker sent before it left, without waiting
    /// for the answer.
    pub fn waits_for_ever(&mut self, why: Option<String>, time: Duration) -> Option<String> {
        let did = std::mem::replace(&mut self.waits_for_left, why.is_some());
        why.filter(|_| did && time > Duration::ZERO)
    }
}
