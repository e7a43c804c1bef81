//! The search for the best credit (bytes that a link may hold), with [`Credit::Auto`](pbox_core::Credit::Auto).
//!
//! Plain arithmetic on times that the session measures. Too little credit leaves the wire idle; too much
//! credit makes the order FIFO again (ByteScheduler, section 4). Between these extremes the time of a round hardly
//! changes, so a power of two is near enough.

use std::time::{Duration, Instant};

use pbox_core::Round;

/// The credits that are tried: from two chunks to the bytes that a fast network has in flight.
pub const TRIALS: [usize; 8] =
    [64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20, 8 << 20];
/// The number of rounds of a trial. The first round is not counted, because posts of the previous trial are in flight.
/// Of the other rounds only the fastest is counted, because a disturbance can only make a round longer.
pub const LAPS: u32 = 4;

/// The result of trying a credit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trial {
    /// The credit, in bytes on each link.
    pub bytes: usize,
    /// The time of the fastest round.
    pub round: Duration,
}

/// The search for the best credit.
#[derive(Debug, Default)]
pub(crate) struct Tuner {
    /// The last round that has begun, and when it began.
    begun: Option<(Round, Instant)>,
    laps: u32,
    fastest: Option<Duration>,
    tried: Vec<Trial>,
}

impl Tuner {
    /// Notes the push of a key for a round. The first push of a round ends the previous round. Returns the
    /// credit for this round if it changes.
    pub fn push(&mut self, round: Round) -> Option<usize> {
        if self.begun.is_some_and(|(last, _)| round <= last) {
            return None;
        }
        let now = Instant::now();
        let (_, begun) = self.begun.replace((round, now))?;
        self.lap(now - begun)
    }

    /// Counts the time of a round. Returns the credit for the next round if it changes.
    fn lap(&mut self, took: Duration) -> Option<usize> {
        let bytes = *TRIALS.get(self.tried.len())?;
        self.laps += 1;
        if self.laps == 1 {
            return Some(bytes).filter(|_| self.tried.is_empty());
        }
        let fastest = self.fastest.map_or(took, |fastest| fastest.min(took));
        self.fastest = Some(fastest);
        if self.laps < LAPS {
            return None;
        }
        self.tried.push(Trial { bytes, round: fastest });
        (self.laps, self.fastest) = (0, None);
        let best = || self.tried.iter().min_by_key(|trial| trial.round).map(|trial| trial.bytes);
        TRIALS.get(self.tried.len()).copied().or_else(best)
    }

    /// Returns the trials so far.
    pub fn tried(&self) -> &[Trial] {
        &self.tried
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pbox_core::Credit;

    /// Checks for each credit: if this credit is the best, the search finds and keeps it, even if every third round is
    /// disturbed.
    #[test]
    fn the_search_ends_with_the_best_trial() {
        for best in TRIALS {
            let mut tuner = Tuner::default();
            let mut now = Credit::AT_FIRST;
            for lap in 0..LAPS * TRIALS.len() as u32 + 20 {
                let far = (now as f64 / best as f64).log2().abs();
                let disturbed = if lap % 3 == 0 { 1000.0 } else { 0.0 };
                let took = Duration::from_secs_f64(1.0 + far + disturbed);
                now = tuner.lap(took).unwrap_or(now);
            }
            assert_eq!(now, best, "{:?}", tuner.tried());
            assert_eq!(tuner.tried().iter().map(|trial| trial.bytes).collect::<Vec<_>>(), TRIALS);
        }
    }
}
