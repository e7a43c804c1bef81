//! The pace of a job's workers on one core: *together*, when a round is one step (BSP), or *alone*, when each push is
//! a step (SSP and ASP).
//!
//! Owned by the core: what a shard asks of either.

#[allow(unsafe_code)]
mod alone;
#[allow(unsafe_code)]
mod together;

pub(super) use alone::Clocks;
pub(super) use together::Arrivals;

use super::shard::{Finished, ShardOf};
use crate::job::Consistency;
use crate::kernels::Kernels;
use crate::layout::Round;
use crate::weights::Mode;

/// The rounds in flight of a shard's chunks. When workers step alone, a chunk's round is that of its slowest worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Front {
    /// Of the chunk that is furthest behind.
    pub lowest: Round,
    /// Of the chunk that is furthest ahead.
    pub highest: Round,
}

/// The worker may not push this chunk for this round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutOfTurn {
    /// It has pushed the chunk already.
    Again(Round),
    /// Its last push has no answer yet.
    Unanswered(Round),
    /// Another round is next.
    OtherRound { expected: Round },
    /// It does not take part in the round in flight.
    NotYet(Round),
}

/// Which workers have pushed what. Plain memory, no atomics.
pub(crate) trait Pace: Sized {
    /// All chunks begin with round `first`, and nobody takes part.
    fn new(consistency: Consistency, chunks: usize, workers: u32, first: Round) -> Self;

    /// Worker `rank` takes part from round `from` on, which no chunk is past. Settle every chunk afterwards.
    fn admit(&mut self, rank: u32, from: Round);

    /// Worker `rank` takes part no more. What it pushed that is not stepped does not count. Settle every chunk
    /// afterwards.
    fn remove(&mut self, rank: u32);

    /// The round in flight of the chunk at a place.
    fn round(&self, place: usize) -> Round;

    /// The round that worker `rank` pushes next of a chunk whose last push may be answered.
    fn next_round(&self, place: usize, rank: u32) -> Round;

    /// From which round on worker `rank` takes part.
    fn first_round(&self, rank: u32) -> Round;

    /// Whether it is worker `rank`'s turn to push a chunk, and for which round.
    fn check(&self, place: usize, rank: u32, round_bits: u8) -> Result<Round, OutOfTurn>;

    /// Whether worker `rank` may be answered after what has finished; the round that the answer is of.
    fn answer_due(&mut self, finished: &Finished, rank: u32) -> Option<Round>;

    /// Worker `rank` is answered for a chunk: it may push the chunk again.
    fn note_answer(&mut self, _place: usize, _rank: u32) {}

    /// Whether newcomers who take part from `from` on are answered at once: the chunk has finished the round before for
    /// all. Newcomers who step alone are answered when the chunk settles.
    fn has_finished_before(&self, _place: usize, _from: Round) -> bool {
        false
    }

    /// A push counts, which is in its [turn](Self::check). When a step follows from it, the step is made.
    fn take_push<M: Mode>(
        shard: &mut ShardOf<Self, M>,
        kernels: &Kernels,
        place: usize,
        rank: u32,
        round: Round,
    ) -> Option<Finished>;

    /// Does for a chunk what it was held from, or what follows from a changed roster.
    fn settle<M: Mode>(shard: &mut ShardOf<Self, M>, kernels: &Kernels, place: usize) -> Option<Finished>;
}
