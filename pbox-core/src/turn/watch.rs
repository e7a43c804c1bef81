//! Whom a core waits for: a window over the last rounds of one shard, with the time for which each worker was waited for.
//!
//! ```text
//!   the core has done all that arrived, and waits    --> look: who owes the push that others have made?
//!   the core wakes                                   --> the time since goes to these
//!   the core has done all again                      --> the time since goes to those who still owe
//! ```
//!
//! Between two turns, when a core begins or ends to wait: the path of a chunk does not know of it. A core that never waits looks
//! at nothing: then nobody is late. Must not read clocks: whoever drives the core says what time it is.

use super::shard::{Pace, ShardOf};
use crate::layout::Round;
use crate::weights::Mode;

/// The most rounds of a window.
const ROUNDS: usize = 200;
/// Numbers in a window, which bounds it for jobs with many workers.
const NUMBERS: usize = 1 << 16;
/// The fewest rounds of a window.
const FEWEST: usize = 16;
/// Chunks of which one look sees whether they wait. The next look goes on behind them.
const CHUNKS: usize = 64;

/// For how long a core, or several, waited for the workers of a job in its last rounds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Watched {
    /// The first round of the window.
    pub first: Round,
    /// Its last, which is in flight.
    pub last: Round,
    /// Rounds in which somebody was waited for: by rank, microseconds.
    pub rows: Vec<(Round, Vec<u32>)>,
    /// Whose pushes others wait for now.
    pub waits_for: Vec<u32>,
}

/// The window of one shard.
#[derive(Debug)]
pub(super) struct Watch {
    workers: usize,
    /// The chunk that was looked at last.
    place: usize,
    /// Its round.
    round: Round,
    /// Who owed its push, in order.
    owes: Vec<u32>,
    /// Who owes it now.
    still: Vec<u32>,
    /// Everything before is charged, in microseconds.
    since: u64,
    /// The first round in which somebody was waited for, and the last that was seen.
    seen: Option<(Round, Round)>,
    /// By round modulo their number.
    rounds: Vec<Option<Round>>,
    /// By the same, and rank.
    waits: Vec<u32>,
}

impl Watch {
    pub fn new(workers: u32) -> Self {
        let workers = workers as usize;
        let rounds = (NUMBERS / workers.max(1)).clamp(FEWEST, ROUNDS);
        Watch {
            workers,
            place: 0,
            round: Round(0),
            owes: Vec::with_capacity(workers),
            still: Vec::with_capacity(workers),
            since: 0,
            seen: None,
            rounds: vec![None; rounds],
            waits: vec![0; rounds * workers],
        }
    }

    /// The core has done all that arrived, and waits from now on.
    pub fn look<P: Pace, M: Mode>(&mut self, shard: &ShardOf<P, M>, now: u64) {
        let chunks = shard.keys().len();
        self.still.clear();
        if !shard.held && chunks > 0 {
            for place in (self.place..chunks).chain(0..self.place).take(CHUNKS) {
                self.place = place;
                let still = &mut self.still;
                shard.pace.each_waiting(place, &mut |rank, owes| {
                    if owes {
                        still.push(rank);
                    }
                });
                if !still.is_empty() {
                    break;
                }
            }
            let round = shard.pace.round(self.place);
            if round == self.round {
                self.owes.retain(|rank| self.still.contains(rank));
                self.passed(now);
            }
            self.round = round;
            self.seen = match self.seen {
                Some((first, last)) => Some((first, last.max(round))),
                None => (!self.still.is_empty()).then_some((round, round)),
            };
        }
        self.since = now;
        std::mem::swap(&mut self.owes, &mut self.still);
    }

    /// This time has come, and who owed a push at the last look was waited for until now.
    pub fn passed(&mut self, now: u64) {
        let waited = now.saturating_sub(self.since).min(u32::MAX.into()) as u32;
        self.since = self.since.max(now);
        if self.owes.is_empty() {
            return;
        }
        let row = self.round.0 as usize % self.rounds.len();
        let waits = &mut self.waits[row * self.workers..][..self.workers];
        if self.rounds[row].replace(self.round) != Some(self.round) {
            waits.fill(0);
        }
        for &rank in &self.owes {
            let wait = &mut waits[rank as usize];
            *wait = wait.saturating_add(waited);
        }
    }

    /// The window.
    pub fn watched(&self) -> Watched {
        let Some((first, last)) = self.seen else { return Watched::default() };
        let first = first.max(Round((last.0 + 1).saturating_sub(self.rounds.len() as u32)));
        let rows = self.rounds.iter().zip(self.waits.chunks_exact(self.workers.max(1)));
        let rows = rows.filter_map(|(round, waits)| Some(((*round)?, waits.to_vec())));
        let rows = rows.filter(|&(round, _)| (first..=last).contains(&round)).collect();
        Watched { first, last, rows, waits_for: self.owes.clone() }
    }
}

impl Watched {
    /// What two cores, or two shards, saw together: of each wait the longer one.
    pub fn with(mut self, other: Watched) -> Self {
        if other.is_empty() || self.is_empty() {
            return if self.is_empty() { other } else { self };
        }
        (self.first, self.last) = (self.first.max(other.first), self.last.max(other.last));
        for (round, theirs) in other.rows {
            match self.rows.iter_mut().find(|(of, _)| *of == round) {
                Some((_, waits)) => {
                    waits.iter_mut().zip(theirs).for_each(|(wait, other)| *wait = (*wait).max(other))
                }
                None => self.rows.push((round, theirs)),
            }
        }
        self.rows.retain(|&(round, _)| round >= self.first);
        self.rows.sort_unstable_by_key(|&(round, _)| round);
        self.waits_for.extend(other.waits_for);
        self.waits_for.sort_unstable();
        self.waits_for.dedup();
        self
    }

    fn is_empty(&self) -> bool {
        *self == Watched::default()
    }
}
