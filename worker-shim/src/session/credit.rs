//! Credit: how many bytes of a link may be under way, so that urgent slices do not wait behind them; and the search for
//! the best number.
//!
//! Plain arithmetic on times that the session measures. Too little credit leaves the wire idle, too much is FIFO
//! again (ByteScheduler, section 4). Between the two the round's time is flat, so that a power of two is near enough.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use pbox_core::Schedule;

/// Bytes that may be under way on each of a worker's links, each way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Credit {
    /// Any number.
    None,
    /// So many bytes, at least 1. A larger chunk goes alone.
    Bytes(usize),
    /// The session tries each of [`TRIALS`] for [`LAPS`] rounds and keeps the best. The hub's answers have [`AT_FIRST`].
    Auto,
}

/// The credits that are tried: from two chunks to what a fast network has under way.
pub const TRIALS: [usize; 8] =
    [64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20, 8 << 20];
/// Rounds of a trial. The first round does not count, because posts of the trial before are under way. Of the others
/// only the fastest counts, because a disturbance makes a round longer.
pub const LAPS: u32 = 4;
/// The first credit. On links of 4 Gbit/s all credits from 64 KiB to 4 MiB were equally good for P3. A faster network
/// needs more, to stay busy while a worker wakes up.
pub const AT_FIRST: usize = 1 << 20;

/// A text that names no credit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("credit {seen:?}: expected none, auto, or a number of bytes from 1 on")]
pub struct NotACredit {
    seen: String,
}

impl Credit {
    /// The default credit of a schedule. Without credit [`Schedule::P3`] is a FIFO on each transport that holds bytes.
    /// The other schedules gain nothing from it.
    pub fn of(schedule: Schedule) -> Self {
        if schedule == Schedule::P3 { Credit::Bytes(AT_FIRST) } else { Credit::None }
    }

    /// The credit that links begin with.
    pub fn at_first(self) -> Option<usize> {
        match self {
            Credit::None => None,
            Credit::Bytes(bytes) => Some(bytes),
            Credit::Auto => Some(AT_FIRST),
        }
    }
}

impl fmt::Display for Credit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Credit::None => f.write_str("none"),
            Credit::Bytes(bytes) => write!(f, "{bytes}"),
            Credit::Auto => f.write_str("auto"),
        }
    }
}

impl FromStr for Credit {
    type Err = NotACredit;

    fn from_str(text: &str) -> Result<Self, NotACredit> {
        match text {
            "none" => Ok(Credit::None),
            "auto" => Ok(Credit::Auto),
            _ => match text.parse() {
                Ok(bytes) if bytes > 0 => Ok(Credit::Bytes(bytes)),
                _ => Err(NotACredit { seen: text.to_owned() }),
            },
        }
    }
}

/// The result of trying a credit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trial {
    /// Bytes on each link.
    pub bytes: usize,
    /// The fastest round.
    pub round: Duration,
}

/// The search for the best credit.
#[derive(Debug, Default)]
pub(crate) struct Tuner {
    laps: u32,
    fastest: Option<Duration>,
    tried: Vec<Trial>,
}

impl Tuner {
    /// Takes in the time of a round. Returns the credit of the next round if it changes.
    pub fn lap(&mut self, took: Duration) -> Option<usize> {
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

    /// The trials so far.
    pub fn tried(&self) -> &[Trial] {
        &self.tried
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_words() {
        for (text, credit) in
            [("none", Credit::None), ("auto", Credit::Auto), ("65536", Credit::Bytes(65_536))]
        {
            assert_eq!((text.parse(), credit.to_string().as_str()), (Ok(credit), text));
        }
        for wrong in ["", "0", "-1", "1k"] {
            assert!(wrong.parse::<Credit>().unwrap_err().to_string().contains("expected none, auto"));
        }
    }

    /// The best credit is found and kept, whichever it is, although every third round is disturbed.
    #[test]
    fn the_search_ends_with_the_best_trial() {
        for best in TRIALS {
            let mut tuner = Tuner::default();
            let mut now = AT_FIRST;
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
