//! A shard whose workers step alone (SSP and ASP): each push is a step of its own, and its worker is answered when it
//! is not too far ahead of the slowest.

use super::arrival::OutOfTurn;
use super::clocks::Clocks;
use super::pace::{Front, Pace};
use super::shard::{Finished, ShardOf};
use crate::job::Consistency;
use crate::kernels::Kernels;
use crate::layout::Round;
use crate::weights::Stages;

impl Pace for Clocks {
    fn new(consistency: Consistency, chunks: usize, workers: u32, first: Round) -> Self {
        Clocks::new(consistency, chunks, workers, first)
    }

    fn admit(&mut self, rank: u32, from: Round) {
        self.admit(rank, from);
    }

    fn remove(&mut self, rank: u32) {
        self.remove(rank);
    }

    fn front(&self) -> Option<Front> {
        self.front().map(|(lowest, highest)| Front { lowest, highest })
    }

    fn round(&self, place: usize) -> Round {
        self.round(place)
    }

    #[inline]
    fn next_round(&self, place: usize, rank: u32) -> Round {
        self.next(place, rank)
    }

    #[inline]
    fn first_round(&self, rank: u32) -> Round {
        self.first(rank)
    }

    #[inline]
    fn check(&self, place: usize, rank: u32, round_bits: u8) -> Result<Round, OutOfTurn> {
        self.check(place, rank, round_bits)
    }

    #[inline]
    fn answer_due(&mut self, finished: &Finished, rank: u32) -> Option<Round> {
        self.allow(finished.place, rank)
    }

    #[inline]
    fn note_answer(&mut self, place: usize, rank: u32) {
        self.answer(place, rank);
    }

    fn has_finished_before(&self, _: usize, _: Round) -> bool {
        false
    }

    fn oldest(&self, from: Round) -> Round {
        self.front().map_or(from, |(lowest, _)| lowest.min(from))
    }

    /// The worker may be answered now, and so may others, if they waited for it.
    #[inline]
    fn take_push<S: Stages>(
        shard: &mut ShardOf<Self, S>,
        kernels: &Kernels,
        place: usize,
        rank: u32,
        round: Round,
    ) -> Option<Finished> {
        shard.pace.note(place, rank);
        if shard.held {
            return None;
        }
        let moved = step(shard, kernels, place, rank)?;
        let ranks = if moved { 0..shard.terms.workers } else { rank..rank + 1 };
        Some(Finished { ranks, ..shard.finished(place, round, 1) })
    }

    fn settle<S: Stages>(shard: &mut ShardOf<Self, S>, kernels: &Kernels, place: usize) -> Option<Finished> {
        let (former, now) = (shard.pace.round(place), shard.pace.settle(place));
        // Without its slowest worker a chunk may pass several rounds at once.
        (former.0 + 1..=now.0).for_each(|round| shard.capture(place, Round(round)));
        let ranks = 0..shard.terms.workers;
        let steps = ranks.clone().filter(|&rank| step(shard, kernels, place, rank).is_some()).count() as u32;
        let is_due = steps > 0 || ranks.into_iter().any(|rank| shard.pace.may_answer(place, rank));
        is_due.then(|| shard.finished(place, now, steps))
    }
}

/// The step of a push that is noted, if one is; whether the chunk is then in its next round.
fn step<S: Stages>(
    shard: &mut ShardOf<Clocks, S>,
    kernels: &Kernels,
    place: usize,
    rank: u32,
) -> Option<bool> {
    let ShardOf { pace, stages, .. } = shard;
    let round = pace.pushed(place, rank)?;
    // Of the broadcast only rank 0's slot counts.
    if round > Round(0) || rank == 0 {
        let number = pace.next_step(place);
        // SAFETY: this worker has pushed the chunk, and is answered after this function.
        unsafe { stages.step(kernels, place, std::iter::once(rank), round, number) };
    }
    let moved = pace.advance(place, rank);
    if moved {
        let round = pace.round(place);
        shard.capture(place, round);
    }
    Some(moved)
}
