//! Coded replies: a codec writes the difference between the hub's weights and the workers' weights.
//!
//! In BSP all workers have the same weights, and get one common frame. In SSP and ASP each worker has the weights of its
//! last answer, and gets its own frame. If answers are means, the hub keeps only the values that former answers left out.

use std::sync::Arc;

use fabric::{MapError, Span, Spans};

use super::chunks::Chunk;
use super::own::OwnWindows;
use super::private::HubWeights;
use super::shadow::{Encoder, Shadow};
use super::{Reply, Stepped, To};
use crate::codec::Codec;
use crate::kernels::Kernels;
use crate::layout::Round;
use crate::wire::Framing;
use crate::wire::frame::Kind;

/// One frame for all workers.
#[derive(Debug)]
pub(crate) struct CodedForAll {
    encoder: Encoder,
    /// The window that all workers read.
    window: Spans,
    shadow: Shadow,
    /// The number of payload bytes of each chunk's last coded answer, and whether the chunk's raw frame has the
    /// workers' current weights.
    sent: Vec<(usize, bool)>,
    /// The values that all answers so far have left out, if answers are means.
    left_out: Option<HubWeights>,
}

impl CodedForAll {
    /// Allocates and touches memory: call it on the core's NUMA node.
    pub fn new(
        framing: &Arc<Framing>,
        codec: Codec,
        chunks: &[Chunk],
        mut window: Spans,
    ) -> Result<Self, MapError> {
        (0..window.len()).for_each(|place| window.elements_mut::<u8>(place).fill(0));
        Ok(CodedForAll {
            encoder: Encoder::new(framing, codec, chunks),
            window,
            shadow: Shadow::new(framing, chunks)?,
            sent: vec![(0, false); chunks.len()],
            left_out: (!framing.keeps_weights()).then(|| HubWeights::new(chunks)).transpose()?,
        })
    }

    /// Sends weights to all workers uncoded. Used for new weights, and for the first weights after a checkpoint.
    fn send_raw(&mut self, chunk: &Chunk, place: usize, weights: &[f32]) {
        let frames = self.encoder.framing.frames(chunk.id);
        self.shadow.replace(frames.dtype, place, weights);
        frames.write_raw(weights, self.window.elements_mut(place));
        self.sent[place].1 = true;
    }
}

impl<R> Reply<R, HubWeights> for CodedForAll {
    fn prepare(&mut self, stepped: Stepped, _: &mut R, weights: &HubWeights) {
        let &Stepped { chunk, place, content, .. } = &stepped;
        let weights = weights.of(place);
        if Framing::kind(content) == Kind::Raw {
            return self.send_raw(chunk, place, weights);
        }
        let CodedForAll { encoder, window, shadow, sent, left_out } = self;
        let frame = window.elements_mut(place);
        let bytes = match left_out {
            None => encoder.encode_weights(&stepped, weights, shadow, frame),
            Some(left_out) => {
                let left_out = left_out.of_mut(place);
                encoder.encode_mean(&stepped, weights, left_out, shadow, frame)
            }
        };
        sent[place] = (bytes, false);
    }

    fn answer(&mut self, _: &Kernels, chunk: &Chunk, place: usize, _: &HubWeights, to: To) -> Span {
        let frames = self.encoder.framing.frames(chunk.id);
        match Framing::answer_kind(to.content, to.round, to.first) {
            Kind::Raw => frames.frame(Kind::Raw, frames.value_bytes()),
            Kind::Coded => frames.frame(Kind::Coded, self.sent[place].0),
        }
    }

    fn add_worker(&mut self, _: &[Chunk], _: &HubWeights, _: u32, own: Option<Spans>) {
        assert!(own.is_none(), "all workers read one window");
    }

    fn restore(&mut self, chunks: &[Chunk], weights: &HubWeights, _: Round) {
        chunks.iter().enumerate().for_each(|(place, chunk)| self.send_raw(chunk, place, weights.of(place)));
    }

    /// Writes a raw frame with the workers' current weights. If the frame already has these weights, leaves it,
    /// because a worker may be reading it.
    fn greet(&mut self, chunk: &Chunk, place: usize) {
        if !std::mem::replace(&mut self.sent[place].1, true) {
            let frames = self.encoder.framing.frames(chunk.id);
            let values = frames.begin_raw(self.window.elements_mut(place));
            values.copy_from_slice(self.shadow.bytes(place));
        }
    }
}

/// A frame for each worker, in the worker's own weights window.
#[derive(Debug)]
pub(crate) struct CodedForEach {
    encoder: Encoder,
    own: OwnWindows,
    /// The shadow of each worker, by rank.
    shadows: Vec<Shadow>,
}

impl CodedForEach {
    /// Creates the reply. The memory of a worker's shadow is touched at the worker's first answer.
    pub fn new(
        framing: &Arc<Framing>,
        codec: Codec,
        chunks: &[Chunk],
        workers: u32,
    ) -> Result<Self, MapError> {
        let shadows = (0..workers).map(|_| Shadow::new(framing, chunks)).collect::<Result<_, _>>()?;
        Ok(CodedForEach {
            encoder: Encoder::new(framing, codec, chunks),
            own: OwnWindows::new(workers),
            shadows,
        })
    }
}

impl<R> Reply<R, HubWeights> for CodedForEach {
    fn answer(
        &mut self,
        kernels: &Kernels,
        chunk: &Chunk,
        place: usize,
        weights: &HubWeights,
        to: To,
    ) -> Span {
        let CodedForEach { encoder, own, shadows } = self;
        let frames = *encoder.framing.frames(chunk.id);
        let Some(own) = own.of(to.rank) else { return frames.span };
        let (window, weights) = (own.elements_mut::<u8>(place), weights.of(place));
        let shadow = &mut shadows[to.rank as usize];
        match Framing::answer_kind(to.content, to.round, to.first) {
            Kind::Raw => {
                shadow.replace(frames.dtype, place, weights);
                frames.write_raw(weights, window);
                frames.frame(Kind::Raw, frames.value_bytes())
            }
            Kind::Coded => {
                let of = Stepped { kernels, chunk, place, round: to.round, content: to.content, workers: 0 };
                let bytes = encoder.encode_weights(&of, weights, shadow, window);
                frames.frame(Kind::Coded, bytes)
            }
        }
    }

    /// Returns the frame that was already written. The shadow (the hub's copy of the worker's weights) already
    /// includes this frame.
    fn answer_again(&mut self, _: &Kernels, chunk: &Chunk, place: usize, _: &HubWeights, to: To) -> Span {
        let CodedForEach { encoder: Encoder { framing, .. }, own, .. } = self;
        let (frames, kind) = (framing.frames(chunk.id), Framing::answer_kind(to.content, to.round, to.first));
        let Some(own) = own.of(to.rank) else { return frames.span };
        let bytes = match kind {
            Kind::Raw => frames.value_bytes(),
            Kind::Coded => frames.coded(own.elements(place)).expect("this hub wrote it").len(),
        };
        frames.frame(kind, bytes)
    }

    fn add_worker(&mut self, chunks: &[Chunk], _: &HubWeights, rank: u32, own: Option<Spans>) {
        self.own.add(chunks, rank, own);
    }

    fn take_over(&mut self, rank: u32, former: &Spans) {
        self.own.take_over(rank, former);
    }

    fn remove_worker(&mut self, rank: u32) -> Option<Spans> {
        self.own.remove(rank)
    }
}
