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

/// The reason why a worker's push of a chunk is not allowed now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutOfTurn {
    /// The worker has already pushed the chunk in this round.
    Duplicate(Round),
    /// The worker's last push has no answer yet. The value is the round of this push.
    Unanswered(Round),
    /// The worker's next round is `expected`.
    OtherRound { expected: Round },
    /// The worker does not take part in this round, which is the round in flight.
    NotYet(Round),
}

/// The state of a push that a worker repeats. The worker lost its links, and with them the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeated {
    /// The answer is not due yet.
    Waits,
    /// The answer is due now.
    Due(Round),
    /// The answer was sent. It may be lost, or it may wait for the other answers of its layer.
    Answered(Round),
}

/// The pushes that have arrived, by worker. Plain memory, no atomics.
///
/// Each link of a shard has a number. A worker's link has the worker's rank as its number. The numbers of links to hubs above
/// follow the ranks. So at a hub below other hubs, an argument `rank` may be the number of a link to a hub above.
pub(crate) trait Pace: Sized {
    /// Begins all chunks at round `first`, without workers.
    fn begin_at(&mut self, first: Round);

    /// Admits worker `rank` from round `from` on; no chunk is past that round. The caller must then [settle](Self::settle)
    /// every chunk.
    fn admit(&mut self, rank: u32, from: Round);

    /// Removes worker `rank`. The worker's pushes that no step has used do not count. The caller must then
    /// [settle](Self::settle) every chunk.
    fn remove(&mut self, rank: u32);

    /// Forgets the pushes in flight of worker `rank`, which has lost its links and will push again all rounds without an
    /// answer. The worker's pushes that no step has used do not count. The worker gets no answer before it has
    /// [repeated](Self::handle_repeat) its push.
    fn forget(&mut self, rank: u32);

    /// Keeps the pushes of worker `rank` in chunks that [have been gathered](crate::weights::Gather::has) for a round, after
    /// the worker has lost its links. These pushes count. They are answered when the worker
    /// [repeats](Self::handle_repeat) them. Call [`forget`](Self::forget) afterwards.
    fn keep_taken(&mut self, _rank: u32, _is_taken: &dyn Fn(usize, Round) -> bool) {}

    /// Forgets the [kept](Self::keep_taken) pushes of all chunks that are no longer gathered.
    fn forget_untaken(&mut self, _is_taken: &dyn Fn(usize, Round) -> bool) {}

    /// Whether a chunk's answer to worker `rank` waits until the worker has pushed the chunk again.
    fn awaits_again(&self, _place: usize, _rank: u32) -> bool {
        false
    }

    /// Handles a push out of turn of worker `rank`. If the push repeats an earlier push, from before a loss of links, returns
    /// the state of the earlier push.
    fn handle_repeat(&mut self, place: usize, rank: u32, round_bits: u8) -> Option<Repeated> {
        let round = Round(self.next_round(place, rank).0.checked_sub(1)?);
        (round.low_bits() == round_bits).then_some(Repeated::Answered(round))
    }

    /// Returns a round in flight that no worker is left to push, if the job cannot continue without that round.
    fn abandoned(&self) -> Option<Round> {
        None
    }

    /// Returns the round in flight of the chunk at index `place` of the shard.
    fn round(&self, place: usize) -> Round;

    /// Whether the chunk at index `place` can now be copied into a snapshot of the state before `round`.
    fn has_come_to(&self, place: usize, round: Round) -> bool {
        self.round(place) == round
    }

    /// Returns each worker's line, by rank, if workers step alone: the first round in which no chunk has stepped the worker's
    /// push. Otherwise empty.
    fn lines(&self) -> Vec<Option<Round>> {
        Vec::new()
    }

    /// Sets each worker's lead in rounds, by rank, if workers step alone. Each worker begins this many rounds after the round
    /// of its next [admission](Self::admit). So a job that begins again keeps the leads of its workers.
    fn begin_ahead(&mut self, _ahead: &[u32]) {}

    /// Ends a job whose workers step alone: each worker's chunks reach its [line](Self::lines), and go no further. The caller
    /// must then [settle](Self::settle) every chunk.
    fn end_at(&mut self, _lines: &[Option<Round>]) {}

    /// Returns the round of worker `rank`'s next push of a chunk, if its last push has been answered.
    fn next_round(&self, place: usize, rank: u32) -> Round;

    /// Returns the first round in which worker `rank` takes part. For a link to a hub above, returns this hub's first round
    /// at that hub.
    fn first_round(&self, rank: u32) -> Round;

    /// Checks that worker `rank` may push this content in a round. The error names the content that the push must have. A push
    /// of the broadcast must be weights or nothing.
    fn takes(&self, rank: u32, content: Content, round: Round) -> Result<(), &'static str>;

    /// Returns the content of a round's answer to a worker, or of the sum that is sent to a hub above. A worker
    /// without weights gets weights.
    fn answered(&self, place: usize, rank: u32, round: Round) -> Content;

    /// Returns the content of an answer, as [`answered`](Self::answered) does, and whether bytes are sent with it. No
    /// bytes are sent if the weights did not change, or if their bytes were sent ahead.
    #[inline]
    fn answer(&self, place: usize, rank: u32, round: Round) -> (Content, bool) {
        let content = self.answered(place, rank, round);
        (content, content != Content::Nothing || !self.is_push(rank))
    }

    /// Checks that it is worker `rank`'s turn to push a chunk. Returns the round of the push.
    fn check(&self, place: usize, rank: u32, round_bits: u8) -> Result<Round, OutOfTurn>;

    /// Checks whether worker `rank` may be answered after a round of a chunk has finished. If so, returns the round of the
    /// answer.
    fn answer_due(&mut self, place: usize, finished: Round, rank: u32) -> Option<Round>;

    /// Returns the round of worker `rank`'s pushes of the chunks at all these places. `None` if some push is out of
    /// turn, the pushes are for several rounds, or each push may be a separate step. Reads only these chunks' entries,
    /// so that the reads overlap.
    #[inline]
    fn turn_of_all(&self, _places: Range<usize>, _rank: u32, _round_bits: u8) -> Option<Round> {
        None
    }

    /// Notes pushes of a worker, when it is the worker's [turn](Self::turn_of_all). Returns which of the chunks now have
    /// all their pushes.
    #[inline]
    fn note_all(&mut self, _places: Range<usize>, _rank: u32) -> Whole {
        Whole::None
    }

    /// Notes that worker `rank` is answered for a chunk, and may push the chunk again.
    fn note_answer(&mut self, _place: usize, _rank: u32) {}

    /// Whether a chunk has finished the round before `from`. If so, newcomers that take part from round `from` on get the
    /// chunk's weights at once. Newcomers that step alone get the weights when the chunk is [settled](Self::settle).
    fn has_finished_before(&self, _place: usize, _from: Round) -> bool {
        false
    }

    /// Calls `each` for the workers of a chunk that waits for pushes. The flag is true for a worker that owes its push, and
    /// false for a worker that waits for other workers. Returns how many pushes of the round in flight have arrived.
    fn each_waiting(&self, place: usize, each: &mut dyn FnMut(u32, bool)) -> u64;

    /// Returns the number of the link over which sums of the chunk at index `_place` go to a hub above.
    fn link_above(&self, _place: usize) -> Option<u32> {
        None
    }

    /// Returns the round of the chunk's sum that was sent to a hub above and has no answer.
    fn asked(&self, _place: usize) -> Option<Round> {
        None
    }

    /// Whether a post over the link of this number is a push. At a hub below other hubs, the post may be an answer from a hub
    /// above.
    #[inline]
    fn is_push(&self, _rank: u32) -> bool {
        true
    }

    /// Counts a worker's push, with its round and content. The push must be in [turn](Self::check). If the step now has all its
    /// pushes, makes the step.
    fn take_push<M: Mode>(
        shard: &mut ShardOf<Self, M>,
        kernels: &Kernels,
        place: usize,
        rank: u32,
        of: (Round, Content),
    ) -> Option<Finished>;

    /// Notes that a worker has sent bytes ahead, when it is the worker's [turn](Self::check). Returns true if the window
    /// now shows the weights that the step would make. The caller must then answer ahead with these weights.
    fn take_ahead<M: Mode>(
        _shard: &mut ShardOf<Self, M>,
        _kernels: &Kernels,
        _place: usize,
        _rank: u32,
    ) -> bool {
        false
    }

    /// Notes an answer ahead for a worker that has sent its bytes ahead. Returns false if the worker has sent no bytes
    /// ahead.
    fn note_ahead(&mut self, _place: usize, _rank: u32) -> bool {
        false
    }

    /// Removes the weights that were shown ahead: all windows have the weights of the last step again. Must be called before
    /// any work other than arrivals.
    fn take_back<M: Mode>(_shard: &mut ShardOf<Self, M>) {}

    /// Ends a chunk's rounds before `before` with the pushes that have arrived, in a job that is over. No worker is
    /// answered. Returns false if this pace cannot end rounds in this way.
    fn end_rounds<M: Mode>(
        _shard: &mut ShardOf<Self, M>,
        _kernels: &Kernels,
        _place: usize,
        _before: Round,
    ) -> bool {
        false
    }

    /// Makes one step for a group. All chunks of the group, at `places`, have their last push. `joined` is the group's own
    /// place. Returns `None` if the chunks must be [settled](Self::settle) one by one.
    #[inline]
    fn settle_joined<M: Mode>(
        _shard: &mut ShardOf<Self, M>,
        _kernels: &Kernels,
        _places: Range<usize>,
        _joined: usize,
    ) -> Option<Finished> {
        None
    }

    /// Settles a chunk: does the work that waited for the end of a hold, or that is possible because a worker joined or left.
    fn settle<M: Mode>(shard: &mut ShardOf<Self, M>, kernels: &Kernels, place: usize) -> Option<Finished>;
}

/// The count of a group's chunks that have all pushes of their round: none, some or all of the chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whole {
    None,
    Some,
    All,
}
