//! Where the weights are that steps go to, and what follows from it: how they are shown to workers, what is checked of
//! a push, what of a chunk is sent.
//!
//! Owned by the core, as a part of its values, and laid out by place. Knows neither slots nor optimizers.

use std::task::Waker;

use fabric::{MapError, Span, Spans};

use super::coded::Framed;
use crate::kernels::Element;
use crate::layout::{ChunkId, Round};
use crate::slim::{Selection, Slimmed};
use crate::wire::Wire;
use crate::wire::frame::FrameError;

/// A shard's weights, in one of three places.
#[derive(Debug)]
pub(super) enum Weights {
    /// In a window, in the keys' types.
    Window(Spans),
    /// With the hub, in f32.
    Framed(Box<Framed>),
    /// The same, in a job with Slim-DP.
    Slim(Box<Slimmed>),
}

impl Weights {
    /// Allocates and touches memory: on the thread that owns the core. `selection` is of a job with Slim-DP.
    pub fn new(
        wire: &Wire,
        chunks: &[ChunkId],
        mut window: Spans,
        workers: u32,
        selection: Option<Selection>,
    ) -> Result<Self, MapError> {
        let framing = wire.framing().map(|framing| (framing, framing.codecs()));
        Ok(match (framing, selection) {
            (Some((framing, Some(codecs))), _) => {
                Weights::Framed(Box::new(Framed::new(framing, codecs, chunks, window)?))
            }
            (Some((framing, None)), Some(selection)) if !chunks.is_empty() => {
                Weights::Slim(Box::new(Slimmed::new(framing, chunks, workers, selection)?))
            }
            _ => {
                (0..window.len()).for_each(|place| window.elements_mut::<u8>(place).fill(0));
                Weights::Window(window)
            }
        })
    }

    /// The weights of a chunk.
    pub fn elements<E: Element>(&self, place: usize) -> &[E] {
        match self {
            Weights::Window(spans) => spans.elements(place),
            Weights::Framed(framed) => framed.weights().elements(place),
            Weights::Slim(slimmed) => slimmed.weights().elements(place),
        }
    }

    /// The same, to write.
    #[inline]
    pub fn elements_mut<E: Element>(&mut self, place: usize) -> &mut [E] {
        match self {
            Weights::Window(spans) => spans.elements_mut(place),
            Weights::Framed(framed) => framed.weights_mut().elements_mut(place),
            Weights::Slim(slimmed) => slimmed.weights_mut().elements_mut(place),
        }
    }

    /// A chunk's weights are those of a checkpoint, or of a state that was brought: workers are sent them next.
    pub fn restored(&mut self, place: usize, own_weights: &mut [Option<Spans>]) {
        match self {
            Weights::Window(_) => {}
            Weights::Framed(framed) => framed.send_weights(place),
            Weights::Slim(slimmed) => {
                let windows = own_weights.iter_mut().flatten();
                windows.for_each(|own| slimmed.show_weights(place, own.elements_mut(place)));
            }
        }
    }

    /// The job goes on from round `first`.
    pub fn begin_at(&mut self, first: Round) {
        if let Weights::Slim(slimmed) = self {
            slimmed.begin_at(first.max(Round(1)));
        }
    }

    /// Touches a worker's own window.
    pub fn begin_own(&self, own: &mut Spans) {
        for place in 0..own.len() {
            own.elements_mut::<u8>(place).fill(0);
            if let Weights::Slim(slimmed) = self {
                // Where a job goes on from a checkpoint, these are what it is sent first.
                slimmed.show_weights(place, own.elements_mut(place));
            }
        }
    }

    /// Copies a chunk's weights to a worker's own window.
    #[inline]
    pub fn show(&self, place: usize, own: &mut Spans) {
        match self {
            Weights::Window(weights) => {
                own.elements_mut::<u8>(place).copy_from_slice(weights.elements(place));
            }
            Weights::Framed(framed) => framed.show_weights(place, own.elements_mut(place)),
            Weights::Slim(slimmed) => slimmed.show_weights(place, own.elements_mut(place)),
        }
    }

    /// Sees to it that one who has no weights yet is sent what the others have; they may still read their answer.
    pub fn show_newcomers(&mut self, place: usize) {
        if let Weights::Framed(framed) = self {
            framed.show_raw(place);
        }
    }

    /// Whether what workers push must be looked at before it counts.
    #[inline]
    pub fn checks_pushes(&self) -> bool {
        !matches!(self, Weights::Window(_))
    }

    /// Checks a push; `bytes` are the chunk's in the worker's window. False where it does not count, and must come
    /// again.
    ///
    /// # Errors
    /// When it is no frame of this chunk and round.
    pub fn check_push(&self, place: usize, round: Round, bytes: &[u8]) -> Result<bool, FrameError> {
        match self {
            Weights::Window(_) => Ok(true),
            Weights::Framed(framed) => framed.check_push(place, round, bytes).map(|()| true),
            Weights::Slim(slimmed) => slimmed.check_push(place, round, bytes),
        }
    }

    /// What of a chunk, whose `span` in the window this is, is posted to worker `rank` for a round. The worker takes
    /// part from `first` on.
    #[inline]
    pub fn answer_span(&self, place: usize, span: Span, rank: u32, round: Round, first: Round) -> Span {
        match self {
            Weights::Window(_) => span,
            Weights::Framed(framed) => framed.frame(place, round, first),
            Weights::Slim(slimmed) => slimmed.frame(place, rank, round, first),
        }
    }

    /// Whether a chunk that has all pushes of a round must wait for a selection of Slim-DP's core.
    #[inline]
    pub fn is_awaited(&self, round: Round) -> bool {
        matches!(self, Weights::Slim(slimmed) if slimmed.is_awaited(round))
    }

    /// What to wake the core with that owns these weights, when a selection can go on.
    pub fn wake_for_selections(&self, waker: Waker) {
        if let Weights::Slim(slimmed) = self {
            slimmed.wake_for_selections(waker);
        }
    }

    /// Whether a selection may go on between turns.
    #[inline]
    pub fn is_selecting(&self) -> bool {
        matches!(self, Weights::Slim(slimmed) if slimmed.is_selecting())
    }

    /// Goes on with a selection by one chunk; whether it did.
    pub fn select(&mut self) -> bool {
        match self {
            Weights::Slim(slimmed) => slimmed.select(),
            _ => false,
        }
    }
}
