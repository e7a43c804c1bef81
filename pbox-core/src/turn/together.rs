//! A shard whose workers are in step (BSP): the last push of a round steps the chunk, and all are answered.

use super::arrival::{Arrivals, OutOfTurn};
use super::pace::{Front, Pace};
use super::shard::{Finished, ShardOf};
use crate::job::Consistency;
use crate::kernels::Kernels;
use crate::layout::Round;
use crate::weights::Stages;

impl Pace for Arrivals {
    fn new(_: Consistency, chunks: usize, workers: u32, first: Round) -> Self {
        Arrivals::new(chunks, workers, first)
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

    #[inline]
    fn round(&self, place: usize) -> Round {
        self.round(place)
    }

    #[inline]
    fn next_round(&self, place: usize, _: u32) -> Round {
        self.round(place)
    }

    #[inline]
    fn first_round(&self, rank: u32) -> Round {
        self.roster().first(rank)
    }

    #[inline]
    fn check(&self, place: usize, rank: u32, round_bits: u8) -> Result<Round, OutOfTurn> {
        self.check(place, rank, round_bits)
    }

    /// Who takes part in the next round is sent the weights of this one.
    #[inline]
    fn answer_due(&mut self, finished: &Finished, rank: u32) -> Option<Round> {
        self.roster().has(rank, finished.round.next()).then_some(finished.round)
    }

    #[inline]
    fn note_answer(&mut self, _: usize, _: u32) {}

    fn has_finished_before(&self, place: usize, from: Round) -> bool {
        from > Round(0) && self.round(place) == from
    }

    /// A worker asks between rounds: no chunk is before the round that it has just finished.
    fn oldest(&self, from: Round) -> Round {
        Round(from.0.saturating_sub(1))
    }

    #[inline]
    fn take_push<S: Stages>(
        shard: &mut ShardOf<Self, S>,
        kernels: &Kernels,
        place: usize,
        rank: u32,
        round: Round,
    ) -> Option<Finished> {
        let can_step = shard.pace.note(place, rank) && !shard.held && !shard.stages.awaits_task(round);
        can_step.then(|| finish_round(shard, kernels, place))
    }

    fn settle<S: Stages>(shard: &mut ShardOf<Self, S>, kernels: &Kernels, place: usize) -> Option<Finished> {
        if !shard.pace.is_whole(place) {
            return skip_deserted(shard, place);
        }
        let round = shard.pace.round(place);
        (!shard.stages.awaits_task(round)).then(|| finish_round(shard, kernels, place))
    }
}

/// Sum and step of a chunk whose slots are all in; it is then in its next round.
#[inline]
fn finish_round<S: Stages>(shard: &mut ShardOf<Arrivals, S>, kernels: &Kernels, place: usize) -> Finished {
    let ShardOf { pace, stages, .. } = shard;
    let round = pace.round(place);
    // SAFETY: all who take part have pushed this chunk, and are answered after this function.
    unsafe { stages.step(kernels, place, pace.roster().ranks(round), round, round) };
    if pace.roster().has_newcomers(round.next()) {
        stages.greet(place);
    }
    pace.advance(place);
    shard.capture(place, round.next());
    shard.finished(place, round, 1)
}

/// All who took part in a chunk's round are gone, and others wait for its end, who come after it: they are sent the
/// weights as they are.
fn skip_deserted<S: Stages>(shard: &mut ShardOf<Arrivals, S>, place: usize) -> Option<Finished> {
    let skipped = shard.pace.skip_deserted(place);
    if skipped == 0 {
        return None;
    }
    let round = shard.pace.round(place);
    shard.stages.greet(place);
    (round.0 - skipped + 1..=round.0).for_each(|round| shard.capture(place, Round(round)));
    let last = Round(round.0 - 1);
    Some(Finished { skipped, ..shard.finished(place, last, 0) })
}
