//! The speed of a job's rounds, and the lateness of each rank. The speed and the lateness are computed from the
//! [windows](Watched) of the cores. A window has the times that a core waited in the last rounds.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use pbox_core::control::{GradientNorm, GradientsReply, LatenessReply, RankReply, RoundsReply};
use pbox_core::{Gauged, GaugedRound, Round, Watched};

/// The time for which an answer of the cores is reused. Within this time, the cores are not asked again.
const FRESH: Duration = Duration::from_millis(200);
/// The time over which rounds per second are averaged. If the last two times in `seen` are further apart, the average
/// is over these two times.
const RATE_OVER: Duration = Duration::from_secs(10);

/// The last rounds of a job, as of the last answer of the cores.
#[derive(Debug, Default)]
pub struct LastRounds {
    pub(crate) watched: Watched,
    gauged: Gauged,
    asked: Option<Instant>,
    /// The lateness of each rank in the rounds before `counted`.
    all: Vec<LatenessReply>,
    counted: Round,
    /// The times at which new rounds were first seen.
    seen: VecDeque<(Instant, Round)>,
}

impl LastRounds {
    /// Notes that the cores are asked again, if it is time to ask them. Returns false otherwise.
    pub fn mark_asked_if_due(&mut self, now: Instant) -> bool {
        let is_stale = self.asked.is_none_or(|at| now - at > FRESH);
        self.asked = if is_stale { Some(now) } else { self.asked };
        is_stale
    }

    /// Records the observations of the cores.
    pub fn note(&mut self, watched: Watched, gauged: Gauged, now: Instant) {
        if self.seen.back().is_none_or(|&(_, round)| round != watched.last) {
            self.seen.push_back((now, watched.last));
        }
        while self.seen.len() > 2 && now - self.seen[0].0 > RATE_OVER {
            self.seen.pop_front();
        }
        self.count(&watched);
        (self.watched, self.gauged) = (watched, gauged);
    }

    /// Counts the rounds that are new and complete. The last round is perhaps not complete, because chunks may be one
    /// round apart.
    fn count(&mut self, Watched { first, last, rows, .. }: &Watched) {
        let Some((_, ranks)) = rows.first() else { return };
        let (from, until) = (self.counted.max(*first), Round(last.0.saturating_sub(1)));
        if from >= until {
            return;
        }
        self.all.resize_with(ranks.len(), LatenessReply::default);
        let new = rows.iter().filter(|(round, _)| (from..until).contains(round));
        let waited = new.clone().count() as u64;
        new.for_each(|(_, waits)| {
            self.all.iter_mut().zip(waits).for_each(|(all, &wait)| all.add(wait, 1));
        });
        // If a round has no row, no core waited for a worker in this round.
        let rest = u64::from(until.0 - from.0) - waited;
        self.all.iter_mut().for_each(|all| all.add(0, rest));
        self.counted = until;
    }

    fn per_second(&self) -> f64 {
        let (Some(first), Some(last)) = (self.seen.front(), self.seen.back()) else { return 0.0 };
        let seconds = (last.0 - first.0).as_secs_f64();
        if seconds > 0.0 { f64::from(last.1.0.saturating_sub(first.1.0)) / seconds } else { 0.0 }
    }

    /// Returns the norms of gradients; `None` if no round was measured yet.
    pub fn gradients(&self) -> Option<GradientsReply> {
        let norm = |GaugedRound { round, mean, .. }| GradientNorm {
            round,
            norm: mean.squares.sqrt(),
            not_finite: mean.not_finite,
        };
        let recent: Vec<GradientNorm> = self.gauged.whole().map(norm).collect();
        let looked_at = *recent.last()?;
        let Gauged { not_finite, found, .. } = self.gauged;
        let of_found = found.filter(|found| found.sum.is_finite()).map(|found| GradientNorm {
            round: found.round,
            norm: found.sum.value().sqrt(),
            not_finite: 0,
        });
        let last = of_found.filter(|found| found.round > looked_at.round).unwrap_or(looked_at);
        let skipped = found.map(|found| found.skipped);
        Some(GradientsReply { every: self.gauged.every(), not_finite, skipped, last, recent })
    }

    /// Returns the progress of rounds; `None` if no core has waited for a worker yet.
    pub fn reply(&self) -> Option<RoundsReply> {
        let Watched { first, last, rows, waits_for } = &self.watched;
        let ranks = rows.first()?.1.len();
        let window = last.0 - first.0 + 1;
        let longest: Vec<u32> =
            rows.iter().map(|(_, waits)| waits.iter().copied().max().unwrap_or(0)).collect();
        let of_rank = |rank: usize| {
            let mut all: Vec<u32> = rows.iter().map(|(_, waits)| waits[rank]).collect();
            let was_last = |&(&wait, &longest): &(&u32, &u32)| wait > 0 && wait == longest;
            let mut late: Vec<u32> =
                all.iter().zip(&longest).filter(was_last).map(|(&wait, _)| wait).collect();
            // If a round of the window has no row, no core waited for a worker in this round.
            all.resize(all.len().max(window as usize), 0);
            RankReply {
                rank: rank as u32,
                last: late.len() as u32,
                late_us: median(&mut late),
                median_us: median(&mut all),
                greatest_us: all.last().copied().unwrap_or(0).into(),
                all: self.all.get(rank).copied().unwrap_or_default(),
            }
        };
        let now = rows.last().filter(|(round, _)| round == last).and_then(|(_, waits)| waits.iter().max());
        Some(RoundsReply {
            round: *last,
            per_second: self.per_second(),
            window,
            waits_for: waits_for.clone(),
            waited_us: now.copied().filter(|_| !waits_for.is_empty()).unwrap_or(0).into(),
            ranks: (0..ranks).map(of_rank).collect(),
            recent: rows.clone(),
        })
    }
}

/// Sorts the values, and returns the median.
fn median(values: &mut [u32]) -> u64 {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or(0).into()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns the last rounds of three ranks with these waits, at 50 or 100 rounds a second.
    pub fn rows(waits: impl Iterator<Item = [u32; 3]>) -> LastRounds {
        let rows: Vec<_> = (0..).map(Round).zip(waits.map(|waits| waits.to_vec())).collect();
        let last = rows.last().unwrap().0;
        let at = Instant::now();
        LastRounds {
            watched: Watched { first: Round(0), last, rows, waits_for: vec![] },
            gauged: Gauged::default(),
            asked: None,
            all: Vec::new(),
            counted: Round(0),
            seen: [(at, Round(0)), (at + Duration::from_secs(2), last)].into(),
        }
    }

    #[test]
    fn each_round_that_is_over_is_counted_once() {
        let mut rounds = LastRounds::default();
        let watched = |first: u32, last: u32, waits: &[(u32, [u32; 2])]| Watched {
            first: Round(first),
            last: Round(last),
            rows: waits.iter().map(|&(round, waits)| (Round(round), waits.to_vec())).collect(),
            waits_for: vec![],
        };
        rounds.count(&watched(0, 4, &[(1, [0, 100]), (2, [0, 101]), (3, [0, 1])]));
        let [none, late] = rounds.all[..] else { panic!("{:?}", rounds.all) };
        assert_eq!((none.sum_us, none.rounds), (0, [3, 0, 0, 0, 0, 0, 0]));
        assert_eq!((late.sum_us, late.rounds), (201, [2, 1, 0, 0, 0, 0, 0]), "round 3 may not be over");
        // The window no longer has rounds 3 to 9.
        rounds.count(&watched(10, 14, &[(11, [20_000_000, 0])]));
        rounds.count(&watched(10, 14, &[(11, [20_000_000, 0])]));
        let [first, second] = rounds.all[..] else { unreachable!() };
        assert_eq!((first.sum_us, first.rounds), (20_000_000, [5, 0, 0, 0, 0, 0, 1]));
        assert_eq!((second.sum_us, second.rounds), (201, [5, 1, 0, 0, 0, 0, 0]));
    }
}
