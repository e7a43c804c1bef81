//! The waits of a core: a window over the last rounds of one shard, with the time that the core waited for each worker.
//!
//! ```text
//!   the core has handled all arrivals, and waits     --> look: who owes a push that other workers have made?
//!   the core wakes                                   --> the time since the look is counted for each of them
//!   the core has handled all arrivals again          --> the time since then is counted for those who still owe
//! ```
//!
//! The watch runs between two turns, when a core begins or ends a wait. The code that handles pushes does not know of
//! the watch. A core that never waits takes no look, and then no worker is late. This module must not read clocks: the
//! driver of the core passes the time.

use super::pace::Pace;
use crate::layout::Round;

/// The most rounds of a window.
const ROUNDS: usize = 200;
/// The limit on the entries of a window: one for each round and worker. Jobs with many workers have fewer rounds in a window.
const NUMBERS: usize = 1 << 16;
/// The fewest rounds of a window.
const FEWEST: usize = 16;
/// The most chunks that one call of `Watch::look` checks for a wait. The next call continues with the following chunk.
const CHUNKS: usize = 64;

/// The time for which one or several cores waited for each worker of a job, over its last rounds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Watched {
    /// The first round of the window.
    pub first: Round,
    /// The last round, which is in flight.
    pub last: Round,
    /// Each round in which the core waited for a worker, with the microseconds of the wait by rank.
    pub rows: Vec<(Round, Vec<u32>)>,
    /// The workers for which other workers wait now.
    pub waits_for: Vec<u32>,
}

/// The window of one shard.
#[derive(Debug)]
pub(super) struct Watch {
    workers: usize,
    /// The index of the chunk that was checked last.
    place: usize,
    /// The round of that chunk at the last check.
    round: Round,
    /// The workers that owed a push at the last check, by rank.
    owes: Vec<u32>,
    /// The workers that still owe a push now.
    still: Vec<u32>,
    /// The time up to which waits have been counted, in microseconds.
    since: u64,
    /// The first and the last round in which the core waited for a worker.
    seen: Option<(Round, Round)>,
    /// For each row of `waits`, its round. The row of a round is the round's number modulo the number of rows.
    rounds: Vec<Option<Round>>,
    /// The time of the waits in microseconds, by row, then by rank.
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

    /// Begins a wait: the core has handled all that arrived. `chunks` is 0 while no worker can be late.
    pub fn look(&mut self, pace: &impl Pace, chunks: usize, now: u64) {
        self.still.clear();
        if chunks > 0 {
            for place in (self.place..chunks).chain(0..self.place).take(CHUNKS) {
                self.place = place;
                let still = &mut self.still;
                pace.each_waiting(place, &mut |rank, owes| {
                    if owes {
                        still.push(rank);
                    }
                });
                if !still.is_empty() {
                    break;
                }
            }
            let round = pace.round(self.place);
            if round == self.round {
                // Both lists are in order.
                let mut still = self.still.iter().peekable();
                self.owes.retain(|rank| {
                    while still.next_if(|still| *still < rank).is_some() {}
                    still.peek() == Some(&rank)
                });
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

    /// Counts the time until `now` for each worker that owed a push at the last check.
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

    /// Returns the round of the chunk that was checked last.
    pub fn round(&self) -> Round {
        self.round
    }

    /// Returns the window.
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
    /// Combines the windows of two cores, or of two shards. For each wait, keeps the longer time.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Content;
    use crate::turn::pace::Arrivals;

    const CHUNKS: usize = 3;

    /// A core's window and the arrivals of three workers.
    struct Seen(Watch, Arrivals);

    impl Seen {
        fn new() -> Self {
            let mut arrivals = Arrivals::new(CHUNKS, 3, false);
            (0..3).for_each(|rank| arrivals.admit(rank, Round(0)));
            Seen(Watch::new(3), arrivals)
        }

        /// Simulates a turn: the core wakes at `woke`, does these arrivals, and waits again from `now` on.
        fn turn(&mut self, woke: u64, pushes: &[(usize, u32)], now: u64) {
            let Seen(watch, arrivals) = self;
            watch.passed(woke);
            for &(chunk, rank) in pushes {
                if arrivals.note(chunk, rank) {
                    arrivals.advance(chunk, Content::Gradient);
                }
            }
            watch.look(arrivals, CHUNKS, now);
        }

        fn rows(&self) -> Vec<(u32, Vec<u32>)> {
            let mut rows = self.0.watched().rows;
            rows.sort_by_key(|&(round, _)| round);
            rows.into_iter().map(|(round, waits)| (round.0, waits)).collect()
        }
    }

    #[test]
    fn waits_are_charged_to_those_who_owe() {
        let mut seen = Seen::new();
        seen.turn(0, &[], 5);
        assert_eq!(seen.0.watched(), Watched::default(), "nobody has pushed, and nobody waits");
        seen.turn(10, &[(1, 0)], 12);
        assert_eq!(seen.0.watched().waits_for, [1, 2]);
        seen.turn(112, &[(1, 1)], 115);
        seen.turn(1115, &[(1, 2)], 1120);
        assert_eq!(seen.rows(), [(0, vec![0, 100, 1103])], "3 of them while the core worked");
        assert!(seen.0.watched().waits_for.is_empty());
        // A push that came while the core worked was not waited for.
        seen.turn(2000, &[(0, 2), (0, 1), (0, 0)], 2900);
        assert_eq!(seen.rows(), [(0, vec![0, 100, 1103])]);
    }

    #[test]
    fn a_window_has_the_last_rounds() {
        let mut seen = Seen::new();
        let mut now = 0;
        for round in 0..500 {
            seen.turn(now, &[(0, 0), (0, 2)], now);
            now += 10 + round;
            seen.turn(now, &[(0, 1)], now);
        }
        seen.turn(now, &[(0, 0)], now);
        let watched = seen.0.watched();
        assert_eq!((watched.first, watched.last), (Round(301), Round(500)));
        let rows = seen.rows();
        assert_eq!(
            (rows.len(), &rows[0], &rows[198]),
            (199, &(301, vec![0, 311, 0]), &(499, vec![0, 509, 0]))
        );
    }

    #[test]
    fn of_two_cores_the_longer_wait_counts() {
        let of = |first, rows: &[(u32, [u32; 2])], waits_for: &[u32]| Watched {
            first: Round(first),
            last: Round(7),
            rows: rows.iter().map(|&(round, waits)| (Round(round), waits.to_vec())).collect(),
            waits_for: waits_for.to_vec(),
        };
        let both = of(2, &[(2, [1, 5]), (7, [0, 9])], &[1]).with(of(3, &[(3, [4, 4]), (7, [2, 3])], &[0, 1]));
        assert_eq!(both, of(3, &[(3, [4, 4]), (7, [2, 9])], &[0, 1]));
        assert_eq!(Watched::default().with(both.clone()), both);
        assert_eq!(both.clone().with(Watched::default()), both);
    }

    #[test]
    fn a_window_of_many_workers_is_bounded() {
        let watch = Watch::new(1024);
        assert_eq!((watch.rounds.len(), watch.waits.len()), (64, NUMBERS));
        assert_eq!(Watch::new(1 << 20).rounds.len(), FEWEST);
    }
}
