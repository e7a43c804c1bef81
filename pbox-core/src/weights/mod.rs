//! The three stages of a core for a chunk: read the workers' pushes, step, and reply. In some modes a chunk waits between
//! reading and step, for a norm of the gradient.
//!
//! ```text
//!   mode                  read             step into                        reply
//!   BSP                   bare slots       the window that workers read     shared, raw
//!   BSP, by the norm      bare slots, kept the window that workers read     shared, raw
//!   SSP, ASP              bare slots       a window that only the hub sees  each worker's own, raw
//!   codec, BSP            decoded frames   the hub's own f32                shared, coded
//!   codec, by the norm    frames, kept     the hub's own f32                shared, coded
//!   codec, SSP or ASP     decoded frames   the hub's own f32                each worker's own, coded
//!   Slim-DP               decoded frames   the hub's own f32                each worker's own, coded
//!   hubs below            bare sums        as BSP, or as SSP and ASP        as there
//!   hubs below, by norm   bare sums, kept  as BSP, by the norm              as there
//!   below other hubs      bare slots       the window that hubs above read  from the window that hubs above write
//!   between hubs          bare sums        the window that hubs above read  as below other hubs
//!   below, link coded     bare slots       memory for one sum               a frame up; the window, decoded
//! ```
//!
//! "As there" means: the reply of the mode that the previous column names. A mode is a row of this table: a [`Mode`]
//! with one type for each stage. The mode is chosen when the shard is made, so that no stage checks for another mode.
//! Owned by the core, and laid out by place: the order of the chunks in the shard.

#[allow(unsafe_code)]
mod bare;
mod chunks;
mod coded;
mod counted;
mod counts;
mod discarded;
mod former;
mod frame_sum;
mod gather;
mod gauge;
mod own;
mod private;
mod relay;
mod shadow;
mod slim;
#[allow(unsafe_code)]
mod staged;
mod steps;

use fabric::{Span, Spans};

use crate::kernels::{Element, Kernels, Slots};
use crate::layout::{Content, Round};
use crate::wire::frame::FrameError;
use bare::{Push, Pushes};

pub(crate) use bare::{BareSlots, RawForAll};
pub(crate) use chunks::Chunk;
pub(crate) use coded::{CodedForAll, CodedForEach};
pub(crate) use counted::CountedSlots;
pub use discarded::Discarded;
pub(crate) use frame_sum::FrameSum;
pub(crate) use gather::{Gather, GatherNorm, NoGather, PassOn, PassSpec, Refused};
pub use gauge::{Gauged, GaugedRound};
pub(crate) use own::RawForEach;
pub(crate) use private::HubWeights;
pub(crate) use relay::{CodedRelay, CodedSpec, OneSum, Relay};
pub(crate) use slim::{SlimPushes, SlimReply};
pub(crate) use staged::Staged;

/// The types of a mode's stages.
pub(crate) trait Mode {
    type Read: Read;
    type Gather: Gather;
    type Weights: Weights;
    type Reply: Reply<Self::Read, Self::Weights>;
}

macro_rules! mode {
    ($(#[$doc:meta])* $Mode:ident: $Read:ty, $Weights:ty, $Reply:ty) => {
        mode!($(#[$doc])* $Mode: $Read, $Weights, $Reply, NoGather);
    };
    ($(#[$doc:meta])* $Mode:ident: $Read:ty, $Weights:ty, $Reply:ty, $Gather:ty) => {
        $(#[$doc])*
        pub(crate) enum $Mode {}

        impl Mode for $Mode {
            type Read = $Read;
            type Gather = $Gather;
            type Weights = $Weights;
            type Reply = $Reply;
        }
    };
}

mode!(/** BSP. */ Bare: BareSlots, Spans, RawForAll);
mode!(/** BSP whose steps wait for the norm of the whole gradient. */ BareByNorm: BareSlots, Spans, RawForAll, GatherNorm);
mode!(/** SSP and ASP. */ Alone: BareSlots, Spans, RawForEach);
mode!(/** A codec, in BSP. */ Coded: FrameSum, HubWeights, CodedForAll);
mode!(/** A codec, in BSP whose steps wait for the norm of the whole gradient. */ CodedByNorm: FrameSum, HubWeights, CodedForAll, GatherNorm);
mode!(/** A codec, in SSP and ASP. */ CodedAlone: FrameSum, HubWeights, CodedForEach);
mode!(/** Slim-DP. */ Slim: SlimPushes, HubWeights, SlimReply);
mode!(/** BSP of hubs below. */ Hubs: CountedSlots, Spans, RawForAll);
mode!(/** The same, whose steps wait for the norm of the whole gradient. */ HubsByNorm: CountedSlots, Spans, RawForAll, GatherNorm);
mode!(/** SSP and ASP of hubs below. */ HubsAlone: CountedSlots, Spans, RawForEach);
mode!(/** BSP below other hubs, which step. */ BelowHubs: BareSlots, Spans, Relay, PassOn);
mode!(/** The same of hubs below. */ BetweenHubs: CountedSlots, Spans, Relay, PassOn);
mode!(/** BSP below other hubs, with a codec on the way to them. */ BelowCoded: BareSlots, OneSum, CodedRelay, PassOn);

/// The first stage: workers' pushes become slots that a kernel can sum.
pub(crate) trait Read {
    /// Checks a push before it counts. Returns false if the push does not count, and the worker must push the chunk again.
    ///
    /// # Errors
    /// Returns an error if the push is not a frame of this chunk and round.
    #[inline]
    fn check(
        &self,
        _chunk: &Chunk,
        _place: usize,
        _content: Content,
        _push: Push,
    ) -> Result<bool, FrameError> {
        Ok(true)
    }

    /// Checks that a push may have this content, in the broadcast or later. The error names the content that a push must
    /// have.
    fn takes(content: Content, _is_first: bool) -> Result<(), &'static str> {
        match content {
            Content::Ahead => Err(
                "bytes may be sent before the push only for gradients without a codec, not for sums: send the bytes with the push",
            ),
            Content::Gradient | Content::Nothing | Content::Weights => Ok(()),
        }
    }

    /// Returns the number of workers for which a push without a gradient counts.
    fn workers_without(&self, _push: Push) -> u32 {
        1
    }

    /// Takes one worker's push as the chunk's new weights.
    fn begin<E: Element>(&mut self, chunk: &Chunk, push: Push, weights: &mut [E]);

    /// Calls `then` with the slots of the pushes, and the number of workers that pushed.
    fn sum<E: Element>(
        &mut self,
        kernels: &Kernels,
        chunk: &Chunk,
        place: usize,
        round: Round,
        pushes: Pushes<impl Iterator<Item = u32> + Clone>,
        then: impl FnOnce(&Slots<E>, u32),
    );
}

/// The memory of the weights that a step writes. `E` is the chunk's type at the hub.
pub(crate) trait Weights {
    /// Returns a chunk's weights.
    fn elements<E: Element>(&self, place: usize) -> &[E];

    /// Returns a chunk's weights for writing.
    fn elements_mut<E: Element>(&mut self, place: usize) -> &mut [E];
}

/// A chunk that was stepped, or whose weights were replaced.
pub(crate) struct Stepped<'a> {
    pub kernels: &'a Kernels,
    pub chunk: &'a Chunk,
    pub place: usize,
    pub round: Round,
    /// The kind of the chunk's current weights: the result of a step, or new weights.
    pub content: Content,
    /// The number of workers whose pushes are in the step; 0 for new weights.
    pub workers: u32,
}

/// The worker to which a chunk's weights go, and the round of the weights.
pub(crate) struct To {
    pub rank: u32,
    /// The round that the weights answer.
    pub round: Round,
    /// The worker's first round. Before this round, the worker has no weights to which a difference could be added.
    pub first: Round,
    /// The content of the answer.
    pub content: Content,
}

/// The third stage: sends weights to workers. A mode implements only the methods that it needs.
pub(crate) trait Reply<R, W> {
    /// Returns the span to post to a worker. The values at this span are then complete.
    fn answer(&mut self, kernels: &Kernels, chunk: &Chunk, place: usize, weights: &W, to: To) -> Span;

    /// Adds a worker. In modes with own weights windows, `own` is the worker's window.
    fn add_worker(&mut self, chunks: &[Chunk], weights: &W, rank: u32, own: Option<Spans>);

    /// Does the same as [`answer`](Self::answer), for a worker that lost this answer with its links.
    fn answer_again(&mut self, kernels: &Kernels, chunk: &Chunk, place: usize, weights: &W, to: To) -> Span {
        self.answer(kernels, chunk, place, weights, to)
    }

    /// Takes over the window that a worker had before it lost its links, because that window has answers that cannot be
    /// written again. The worker must have been [added](Self::add_worker) again.
    fn take_over(&mut self, _rank: u32, _former: &Spans) {}

    /// Removes a worker that has left or was lost. Returns the worker's own weights window, if it had one.
    fn remove_worker(&mut self, _rank: u32) -> Option<Spans> {
        None
    }

    /// Prepares the answers of a round, right after the step.
    #[inline]
    fn prepare(&mut self, _stepped: Stepped, _read: &mut R, _weights: &W) {}

    /// Prepares the push to the hubs above, if none of this hub's `workers` workers has a gradient.
    fn prepare_nothing(&mut self, _chunk: &Chunk, _place: usize, _workers: u32) {}

    /// Sets weights that no step made: the job continues from round `first`, and workers get these weights next.
    fn restore(&mut self, _chunks: &[Chunk], _weights: &W, _first: Round) {}

    /// Prepares a chunk's weights for workers that have none. The other workers have these weights, and may still read
    /// their answers.
    fn greet(&mut self, _chunk: &Chunk, _place: usize) {}

    /// Returns the span of a chunk's answer in the window that the hubs above write. `None` if workers read that window
    /// themselves.
    #[inline]
    fn place_of_answers(&self, _chunk: &Chunk) -> Option<Span> {
        None
    }

    /// Takes the answer of a round from the window that the hubs above write. `to` has the link's number, the round, and
    /// the first round in which this hub takes part at the hubs above.
    ///
    /// # Errors
    /// Returns an error if the answer is not a frame of this chunk and round.
    fn take_answer(
        &mut self,
        _kernels: &Kernels,
        _chunk: &Chunk,
        _place: usize,
        _answer: Push,
        _to: To,
    ) -> Result<(), FrameError> {
        Ok(())
    }

    /// Whether a chunk with all its pushes of a round must wait for a task of the core.
    #[inline]
    fn awaits_task(&self, _round: Round) -> bool {
        false
    }

    /// Whether there is a task for the core between turns.
    #[inline]
    fn has_task(&self) -> bool {
        false
    }

    /// Does the task for one chunk. Returns whether there was something to do.
    fn work(&mut self, _weights: &W) -> bool {
        false
    }
}
