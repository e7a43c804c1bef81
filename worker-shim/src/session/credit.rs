//! Credit: how many bytes of a link may be under way, so that what is urgent does not wait behind them; and the
//! search for how many are best.
//!
//! Plain arithmetic on times that the session measures. Too little credit leaves the wire idle, too much is FIFO
//! again (ByteScheduler, section 4); between the two the round's time is flat, so a power of two is near enough.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use pbox_core::Schedule;

/// Bytes that may be under way on each of a worker's links, each way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Credit {
    /// Any number.
    None,
    /// So many; at least 1. A chunk that is larger goes alone.
    Bytes(usize),
    /// Found by trying [`TRIALS`] in the first rounds, each for [`LAPS`]; for the hub's answers [`AT_FIRST`].
    Auto,
}

/// What is tried: from two chunks to what a fast network has under way.
pub const TRIALS: [usize; 8] =
    [64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20, 8 << 20];
/// Rounds for each. The first one has posts of the trial before under way, and does not count; of the others the
/// fastest does, because what disturbs a round makes it longer.
pub const LAPS: u32 = 4;
/// Before anything is known: on links of 4 Gbit/s everything from 64 KiB to 4 MiB was as good for P3, and a network
/// that is faster needs more, for as long as a worker takes to wake up.
pub const AT_FIRST: usize = 1 << 20;

/// A text that names no credit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("credit {seen:?}: expected none, auto, or a number of bytes from 1 on")]
pub struct NotACredit {
    seen: String,
}

impl Credit {
    /// What a schedule has unless told otherwise. Without credit [`Schedule::P3`] is a FIFO wherever a transport holds
    /// bytes; the others gain nothing from it.
    pub fn of(schedule: Schedule) -> Self {
        if schedule == Schedule::P3 { Credit::Bytes(AT_FIRST) } else { Credit::None }
    }

    /// What links begin with.
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

/// A credit that was tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trial {
    /// Bytes on each link.
    pub bytes: usize,
    /// The fastest round.
    pub round: Duration,
}

/// The search.
#[derive(Debug, Default)]
pub(crate) struct Tuner {
    laps: u32,
    fastest: Option<Duration>,
    tried: Vec<Trial>,
}

impl Tuner {
    /// A round took so long; the credit of the next one, where it changes.
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

    /// What was tried so far.
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

    /// Whatever the best one is, and though a round in three is disturbed, it is found, and kept.
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
