//! The time of a session by activity: computing, pushing, or waiting for the hub.
//!
//! Runs on the session's thread, or under the lock of a background session's callers. Does not depend on
//! links.
//!
//! ```text
//!   computing | push | computing | push | wait: spins, sleeps | computing
//!               one of 61 is timed       begin and end of each wait that finds an answer missing
//! ```
//!
//! Reading a clock takes some 25 ns, which would slow down the push of a small key. So only one of [`EVERY`] pushes is
//! timed. The time of all pushes is the time of the timed pushes, times the number of pushes, divided by the number of
//! timed pushes.

use std::fmt;
use std::time::{Duration, Instant};

use pbox_core::{KeyId, Round};

use super::timeline::{Timeline, Who};
use crate::exchange::Traffic;

/// The interval of timed pushes: one of 61 pushes is timed, beginning with the first push. It is a prime number, so
/// that different keys are timed in each round.
const EVERY: u32 = 61;

/// The times of a session since it has weights: since the broadcast, or since its join to a job that has
/// weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// The number of finished rounds.
    pub rounds: u32,
    /// The time since the start.
    pub total: Duration,
    /// The time in calls of push. One of 61 pushes is timed, and the other pushes count as equally long. This estimate
    /// is never longer than `total` minus `waiting`.
    pub pushing: Duration,
    /// The time in calls that waited for the hub, or for a lost hub to return. If the first check of a wait
    /// finds the answer, the wait is not timed, and counts as computing.
    pub waiting: Duration,
    /// The part of `waiting` in which the thread slept. In the rest of `waiting`, the thread polls for the
    /// answer, and decodes the answer.
    pub asleep: Duration,
    /// The bytes of gradients and weights that were sent and received.
    pub traffic: Traffic,
}

impl Times {
    /// Returns the time outside of pushes and waits.
    pub fn computing(&self) -> Duration {
        self.total.saturating_sub(self.pushing + self.waiting)
    }
}

/// Writes the times as text: `1200 rounds in 61.2 s: 78% computing, 3% pushing, 19% waiting for the hub`.
impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total = self.total.as_secs_f64();
        let percent = |part: Duration| (100.0 * part.as_secs_f64() / total.max(1e-9)).round() as u32;
        let (pushing, waiting) = (percent(self.pushing), percent(self.waiting));
        let computing = 100u32.saturating_sub(pushing + waiting);
        write!(
            f,
            "{} rounds in {total:.1} s: {computing}% computing, {pushing}% pushing, {waiting}% waiting for the hub",
            self.rounds
        )
    }
}

/// The stopwatch of one session.
#[derive(Debug)]
pub(crate) struct Stopwatch {
    begun: Instant,
    /// The round that the session had reached when the measurement began.
    round: Round,
    traffic: Traffic,
    pushes: u64,
    timed: u64,
    /// The number of pushes before the next timed push.
    untimed: u32,
    /// The time in pushes that were timed.
    pushing: Duration,
    waiting: Duration,
    asleep: Duration,
    /// The number of calls that wait now. `since` is the time at which the first of these calls began to wait.
    waits: u32,
    since: Instant,
    /// The timeline, if one is recorded, and the track for this stopwatch. With a timeline all pushes are
    /// timed.
    timeline: Option<(Timeline, Who)>,
    every: u32,
}

/// A push that is timed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimedPush {
    of: (KeyId, Round),
    begun: Instant,
    /// The time of all waits before this push.
    waited: Duration,
}

impl Stopwatch {
    /// Creates the times of a session that has reached this round.
    pub fn begin(round: Round, traffic: Traffic) -> Self {
        let (now, zero) = (Instant::now(), Duration::ZERO);
        Stopwatch {
            begun: now,
            round,
            traffic,
            pushes: 0,
            timed: 0,
            untimed: 0,
            pushing: zero,
            waiting: zero,
            asleep: zero,
            waits: 0,
            since: now,
            timeline: None,
            every: EVERY,
        }
    }

    /// Records pushes and waits in this timeline from now on.
    pub fn show(&mut self, timeline: Timeline, who: Who) {
        (self.timeline, self.every) = (Some((timeline, who)), 1);
    }

    /// Ends the timeline, and returns it.
    pub fn hide(&mut self) -> Option<Timeline> {
        self.timeline.take().map(|(timeline, _)| timeline)
    }

    /// Returns the timeline, if there is one.
    pub fn timeline(&self) -> Option<&Timeline> {
        self.timeline.as_ref().map(|(timeline, _)| timeline)
    }

    /// Restarts the times, because the session now has its weights. Earlier times are dropped. Calls that wait now
    /// count as waiting from now on.
    pub fn restart(&mut self, round: Round, traffic: Traffic) {
        let (waits, every, timeline) = (self.waits, self.every, self.timeline.take());
        *self = Stopwatch { waits, every, timeline, ..Stopwatch::begin(round, traffic) };
    }

    /// Notes that a push begins. If the push is timed, returns a value for [`push_ends`](Self::push_ends).
    #[inline]
    pub fn push_begins(&mut self, key: KeyId, round: Round) -> Option<TimedPush> {
        self.pushes += 1;
        if self.untimed > 0 {
            self.untimed -= 1;
            return None;
        }
        self.untimed = self.every - 1;
        Some(TimedPush { of: (key, round), begun: Instant::now(), waited: self.waiting })
    }

    /// Notes that a timed push has ended. If the push waited for a lost hub, that time counts as waiting.
    pub fn push_ends(&mut self, TimedPush { of, begun, waited }: TimedPush) {
        let now = Instant::now();
        self.timed += 1;
        self.pushing += (now - begun).saturating_sub(self.waiting - waited);
        if let Some((timeline, who)) = &self.timeline {
            timeline.pushed(*who, of, (begun, now));
        }
    }

    /// Notes that a call begins to wait. Waits may be nested, or be in several threads at once.
    pub fn wait_begins(&mut self) {
        if self.waits == 0 {
            self.since = Instant::now();
        }
        self.waits += 1;
    }

    /// Notes that a call has ended its wait.
    pub fn wait_ends(&mut self) {
        self.waits -= 1;
        if self.waits == 0 {
            let now = Instant::now();
            self.waiting += now - self.since;
            if let Some((timeline, who)) = &self.timeline {
                timeline.waited(*who, self.since, now);
            }
        }
    }

    /// Notes that the session's thread slept.
    pub fn slept(&mut self, time: Duration) {
        self.asleep += time;
    }

    /// Returns the times of the session so far. A wait that is not over counts up to now.
    pub fn times(&self, round: Round, traffic: Traffic) -> Times {
        let goes_on = if self.waits > 0 { self.since.elapsed() } else { Duration::ZERO };
        let all_by_timed = self.pushes as f64 / self.timed.max(1) as f64;
        let Traffic { sent, received } = self.traffic;
        let (total, waiting) = (self.begun.elapsed(), self.waiting + goes_on);
        Times {
            rounds: round.0.saturating_sub(self.round.0),
            total,
            pushing: self.pushing.mul_f64(all_by_timed).min(total.saturating_sub(waiting)),
            waiting,
            asleep: self.asleep,
            traffic: Traffic { sent: traffic.sent - sent, received: traffic.received - received },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_adds_up() {
        let ms = Duration::from_millis;
        let (total, pushing, waiting) = (ms(61_240), ms(1_850), ms(11_640));
        let times = Times { rounds: 1200, total, pushing, waiting, ..Times::default() };
        assert_eq!(
            times.to_string(),
            "1200 rounds in 61.2 s: 78% computing, 3% pushing, 19% waiting for the hub"
        );
        assert_eq!(times.computing(), ms(47_750));
        assert_eq!(
            Times::default().to_string(),
            "0 rounds in 0.0 s: 100% computing, 0% pushing, 0% waiting for the hub"
        );
    }

    #[test]
    fn waits_within_waits_count_once_and_pushes_are_taken_to_be_alike() {
        let mut stopwatch = Stopwatch::begin(Round(1), Traffic { sent: 10, received: 20 });
        let long = Duration::from_secs(3600);
        stopwatch.begun -= 123 * long;
        for number in 0..122 {
            let push = stopwatch.push_begins(KeyId(0), Round(1 + number / 10));
            assert_eq!(push.is_some(), number == 0 || number == 61);
            if let Some(push) = push {
                stopwatch.push_ends(TimedPush { begun: push.begun - long, ..push });
            }
        }
        stopwatch.wait_begins();
        stopwatch.since -= long;
        stopwatch.wait_begins();
        stopwatch.wait_ends();
        assert_eq!(stopwatch.waiting, Duration::ZERO, "the outer one goes on");
        assert!(stopwatch.times(Round(1), Traffic { sent: 10, received: 20 }).waiting >= long);
        stopwatch.wait_ends();
        let times = stopwatch.times(Round(17), Traffic { sent: 15, received: 29 });
        assert_eq!((times.rounds, times.traffic), (16, Traffic { sent: 5, received: 9 }));
        assert_eq!((times.pushing.as_secs() / 3600, times.waiting.as_secs() / 3600), (122, 1));
        stopwatch.begun += 122 * long;
        let times = stopwatch.times(Round(17), Traffic { sent: 15, received: 29 });
        assert_eq!(times.pushing + times.waiting, times.total, "no more than there is room for");
        // During this push the session waits for a lost hub.
        let push = stopwatch.push_begins(KeyId(0), Round(25)).expect("60 were not timed");
        stopwatch.waiting += long;
        stopwatch.push_ends(TimedPush { begun: push.begun - long, ..push });
        assert_eq!(
            stopwatch.times(Round(25), Traffic { sent: 15, received: 29 }).waiting.as_secs() / 3600,
            2
        );
        assert_eq!(stopwatch.pushing.as_secs() / 3600, 2);
    }
}
