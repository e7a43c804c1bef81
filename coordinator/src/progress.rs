//! The progress of a job, according to the last check of its cores.

use std::time::{Duration, Instant};

use pbox_core::{Look, Round};

/// The progress of a job at the last check of its cores.
#[derive(Debug)]
pub struct Progress {
    done: u64,
    since: Instant,
    round: Round,
    /// Whether a chunk waited for a push of a worker that has left, at the last check of the cores.
    waits_for_left: bool,
}

impl Progress {
    /// Creates the progress of a job that begins now.
    pub fn new(now: Instant) -> Self {
        Progress { done: 0, since: now, round: Round(0), waits_for_left: false }
    }

    /// Returns the job's round.
    pub fn round(&self) -> Round {
        self.round
    }

    /// Notes the result of a check. Returns the time for which nothing has moved.
    pub fn note(&mut self, look: &Look, now: Instant) -> Duration {
        if look.is_moving || look.done != self.done {
            (self.done, self.since) = (look.done, now);
        }
        self.round = look.round;
        now - self.since
    }

    /// Notes the reason why an awaited push will never come, if there is one. Returns the reason if the previous check
    /// also had a reason, and nothing has changed for `time`. The delay is for pushes in flight: a worker may leave
    /// without waiting for the answers to its last pushes.
    pub fn note_stall(&mut self, why: Option<String>, time: Duration) -> Option<String> {
        let did = std::mem::replace(&mut self.waits_for_left, why.is_some());
        why.filter(|_| did && time > Duration::ZERO)
    }
}
