//! The pace of a job's workers on one core: the pushes of each worker, and the steps that they cause. There are
//! three paces. *Together*: a round is one step (BSP). *Alone*: each push is a step (SSP and ASP). *Relayed*: a hub
//! above steps.

#[allow(unsafe_code)]
mod alone;
mod relayed;
#[allow(unsafe_code)]
mod together;

use std::ops::Range;

use super::shard::{Finished, ShardOf};
use crate::kernels::Kernels;
use crate::layout::{Content, Round};
use crate::weights::Mode;

pub(super) use alone::Clocks;
pub(super) use relayed::Relayed;
pub(super) use together::Arrivals;

/// The worker may not push this chunk for this round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutOfTurn {
    /// The worker has pushed the chunk already.
    Again(Round),
    /// The last push has no answer yet.
    Unanswered(Round),
    /// Another round is next.
    OtherRound { expected: Round },
    /// The worker does not take part in the round in flight.
    NotYet(Round),
}

/// A push that comes again, because its worker lost its links and the answer with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeated {
    /// The answer is not due yet.
    Waits,
    /// The answer is due now.
    Due(Round),
    /// The worker had its answer, which may be lost, or may wait for the other answers of its layer.
    Answered(Round),
}

/// The pushes of all workers that are in. Plain memory, no atomics.
///
/// A shard's links have numbers: those of workers are their ranks, and those that lead up to hubs above follow. If a
/// method takes a rank, only the pace of a hub below others gets other numbers.
pub(crate) trait Pace: Sized {
    /// Begins all chunks with round `first`, without workers.
    fn begin_at(&mut self, first: Round);

    /// Admits worker `rank` from round `from` on, which no chunk is past. Settle every chunk afterwards.
    fn admit(&mut self, rank: u32, from: Round);

    /// Removes worker `rank`. Its pushes that are not stepped do not count. Settle every chunk afterwards.
    fn remove(&mut self, rank: u32);

    /// Forgets the pushes in flight of worker `rank`, which has lost its links and pushes again all rounds that have no
    /// answer. Its pushes that are not stepped do not count. No other push of it is answered before it comes
    /// [again](Self::repeated).
    fn forget(&mut self, rank: u32);

    /// Keeps pushes of worker `rank`, which has lost its links, for chunks that [are taken
    /// in](crate::weights::Gather::has) for a round. They are decided, and are answered when they come
    /// [again](Self::repeated). Call [`forget`](Self::forget) afterwards.
    fn keep_taken(&mut self, _rank: u32, _is_taken: &dyn Fn(usize, Round) -> bool) {}

    /// Forgets pushes that were [kept](Self::keep_taken), of chunks that are taken in no more.
    fn forget_untaken(&mut self, _is_taken: &dyn Fn(usize, Round) -> bool) {}

    /// Whether worker `rank` gets no answer of a chunk before it has pushed the chunk again.
    fn awaits_again(&self, _place: usize, _rank: u32) -> bool {
        false
    }

    /// Returns the round if a push of worker `rank`, when it is not its turn, repeats one from before its links
    /// were lost.
    fn repeated(&mut self, place: usize, rank: u32, round_bits: u8) -> Option<Repeated> {
        let round = Round(self.next_round(place, rank).0.checked_sub(1)?);
        (round.low_bits() == round_bits).then_some(Repeated::Answered(round))
    }

    /// Returns a round in flight that no worker is left to push, if the job cannot continue without it.
    fn abandoned(&self) -> Option<Round> {
        None
    }

    /// Returns the round in flight of the chunk at a place.
    fn round(&self, place: usize) -> Round;

    /// Whether the chunk at a place has the form for a snapshot before a round.
    fn has_come_to(&self, place: usize, round: Round) -> bool {
        self.round(place) == round
    }

    /// Returns each worker's line, by rank, if workers step alone: the first round without a stepped push of the
    /// worker, for any chunk. Else nothing.
    fn lines(&self) -> Vec<Option<Round>> {
        Vec::new()
    }

    /// Sets by how many rounds each worker begins after the round of its next [admission](Self::admit), by rank, if
    /// workers step alone. Its lead over the other workers is the same as before the job began again.
    fn begin_ahead(&mut self, _ahead: &[u32]) {}

    /// Ends a job that steps alone: each worker's chunks reach its [line](Self::lines), and go no further. Settle
    /// every chunk afterwards.
    fn end_at(&mut self, _lines: &[Option<Round>]) {}

    /// Returns the round that worker `rank` pushes next of a chunk, if its last push may be answered.
    fn next_round(&self, place: usize, rank: u32) -> Round;

    /// Returns the round from which worker `rank` takes part; for a link that leads up, the round of this hub.
    fn first_round(&self, rank: u32) -> Round;

    /// Checks whether worker `rank` may push this content in a round. The error names the content that a push must have.
    /// A push of the broadcast is of weights or nothing.
    fn takes(&self, rank: u32, content: Content, round: Round) -> Result<(), &'static str>;

    /// Returns the content of the answer of a round for a worker, or of the sum that goes up. A worker that has no
    /// weights yet gets weights.
    fn answered(&self, place: usize, rank: u32, round: Round) -> Content;

    /// Returns the content of an answer, as [`answered`](Self::answered) does, and whether bytes go with it. No bytes go if
    /// weights do not change, or arrived ahead.
    #[inline]
    fn answer(&self, place: usize, rank: u32, round: Round) -> (Content, bool) {
        let content = self.answered(place, rank, round);
        (content, content != Content::Nothing || !self.is_push(rank))
    }

    /// Returns whether it is worker `rank`'s turn to push a chunk, and in which round.
    fn check(&self, place: usize, rank: u32, round_bits: u8) -> Result<Round, OutOfTurn>;

    /// Returns whether worker `rank` may be answered after a round of a chunk has finished; the round that the answer
    /// is of.
    fn answer_due(&mut self, place: usize, finished: Round, rank: u32) -> Option<Round>;

    /// Returns the round of worker `rank`'s pushes of all the chunks at these places. `None` unless it is its turn for
    /// each, and for the same round. Also `None` if each push may be a separate step. Looks at nothing else, so that
    /// the reads of many chunks overlap.
    #[inline]
    fn turn_of_all(&self, _places: Range<usize>, _rank: u32, _round_bits: u8) -> Option<Round> {
        None
    }

    /// Notes these pushes of a worker when it is its [turn](Self::turn_of_all). Which of the chunks have all their pushes
    /// now.
    #[inline]
    fn note_all(&mut self, _places: Range<usize>, _rank: u32) -> Whole {
        Whole::None
    }

    /// Notes that worker `rank` is answered for a chunk: it may push the chunk again.
    fn note_answer(&mut self, _place: usize, _rank: u32) {}

    /// Whether a chunk has finished the round before `from` for all, so that newcomers who take part from then on are answered at
    /// once. Newcomers that step alone are answered when the chunk settles.
    fn has_finished_before(&self, _place: usize, _from: Round) -> bool {
        false
    }

    /// Calls `each` for the workers of a chunk that waits for pushes, with true for a worker that owes its push. With
    /// false for a worker that waits for the push. Returns how many pushes of the round in flight are in.
    fn each_waiting(&self, place: usize, each: &mut dyn FnMut(u32, bool)) -> u64;

    /// Returns the link by which the sums of the chunk at a place go up.
    fn way_up(&self, _place: usize) -> Option<u32> {
        None
    }

    /// Returns the round of the chunk at a place that has gone up as a sum, and is not answered.
    fn asked(&self, _place: usize) -> Option<Round> {
        None
    }

    /// Whether a post by the link of this number is a push, and not an answer from above.
    #[inline]
    fn is_push(&self, _rank: u32) -> bool {
        true
    }

    /// Counts a push of a worker when it is its [turn](Self::check), of a round and a content. Makes the step that follows from
    /// it, if one follows.
    fn take_push<M: Mode>(
        shard: &mut ShardOf<Self, M>,
        kernels: &Kernels,
        place: usize,
        rank: u32,
        of: (Round, Content),
    ) -> Option<Finished>;

    /// Takes bytes that a worker has sent ahead, when it is its [turn](Self::check). Returns true if the window now has
    /// the weights that the step would make: they are to be answered ahead.
    fn take_ahead<M: Mode>(
        _shard: &mut ShardOf<Self, M>,
        _kernels: &Kernels,
        _place: usize,
        _rank: u32,
    ) -> bool {
        false
    }

    /// Notes that a worker is answered ahead, if it has sent its bytes so.
    fn note_ahead(&mut self, _place: usize, _rank: u32) -> bool {
        false
    }

    /// Takes back the weights that are answered ahead: all windows have the weights of the last step again. This comes
    /// before everything but arrivals.
    fn take_back<M: Mode>(_shard: &mut ShardOf<Self, M>) {}

    /// Ends a chunk's rounds before `before` with the pushes that are in, in a job that is over: no worker is answered.
    /// False where rounds of this pace cannot be ended like this.
    fn end_rounds<M: Mode>(
        _shard: &mut ShardOf<Self, M>,
        _kernels: &Kernels,
        _place: usize,
        _before: Round,
    ) -> bool {
        false
    }

    /// Steps a group as one, at its own place `joined`, when the chunks at its `places` have all their pushes. `None` if
    /// they are to be [settled](Self::settle) one by one.
    #[inline]
    fn settle_joined<M: Mode>(
        _shard: &mut ShardOf<Self, M>,
        _kernels: &Kernels,
        _places: Range<usize>,
        _joined: usize,
    ) -> Option<Finished> {
        None
    }

    /// Does the work for a chunk that a hold delayed or that a changed roster calls for.
    fn settle<M: Mode>(shard: &mut ShardOf<Self, M>, kernels: &Kernels, place: usize) -> Option<Finished>;
}

/// The chunks, of some, that have all the pushes of their round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whole {
    None,
    Some,
    All,
}
