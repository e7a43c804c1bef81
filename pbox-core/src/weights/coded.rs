//! What a core keeps of a compressed job beside its optimizer's state, and how answers come of it.
//!
//! Owned by the core, as a part of its values, and laid out by place.
//!
//! ```text
//!   weights   f32, that only the hub sees
//!   shadow    what the workers have, in the keys' types
//!   answer    encode(weights - shadow), then merged into the shadow as each worker merges it: what an answer
//!             leaves out is in the next difference
//! ```
//!
//! Where no weights are kept, the place of the weights holds what the means sent so far left out.

use std::ops::Range;
use std::sync::Arc;

use fabric::{MapError, Slab, Spans};
use zerocopy::{FromBytes, IntoBytes};

use super::private::HubWeights;
use crate::kernels::{Element, Kernels, typed};
use crate::layout::{ChunkId, Round};
use crate::wire::frame::{self, FrameError, HEADER_BYTES, Kind};
use crate::wire::{Answer, Codecs, Frames, Framing, difference as difference_from, merge};

/// A shard's chunks in a compressed job.
#[derive(Debug)]
pub(crate) struct Framed {
    framing: Arc<Framing>,
    codecs: Codecs,
    chunks: Vec<Chunk>,
    /// The window that all workers read; untouched where each has its own.
    window: Spans,
    weights: HubWeights,
    /// Nothing where every worker has its own weights.
    shadow: Slab,
    /// Sum of a chunk's decoded pushes.
    sum: Vec<f32>,
    /// What an answer is made of.
    difference: Vec<f32>,
    scratch: Vec<f32>,
}

#[derive(Debug)]
struct Chunk {
    id: ChunkId,
    /// Its values among the shadow's bytes.
    shadow: Range<usize>,
    /// Payload of the last coded answer.
    coded_bytes: usize,
    /// The raw frame in the window is of what the workers have now.
    is_raw_fresh: bool,
}

impl Framed {
    /// Allocates and touches memory: on the thread that owns the core.
    pub fn new(
        framing: &Arc<Framing>,
        codecs: Codecs,
        ids: &[ChunkId],
        mut window: Spans,
    ) -> Result<Self, MapError> {
        let alone = framing.steps_alone();
        let (mut shadow_bytes, mut longest) = (0, 0);
        let mut chunks = Vec::with_capacity(ids.len());
        for (place, &id) in ids.iter().enumerate() {
            let frames = framing.frames(id);
            let bytes = if alone { 0 } else { frames.value_bytes() };
            let shadow = shadow_bytes..shadow_bytes + bytes;
            (shadow_bytes, longest) = (shadow.end.next_multiple_of(4), longest.max(frames.elements));
            chunks.push(Chunk { id, shadow, coded_bytes: 0, is_raw_fresh: false });
            if !alone {
                window.elements_mut::<u8>(place).fill(0);
            }
        }
        let weights = HubWeights::new(ids.iter().map(|&id| framing.frames(id).elements))?;
        let mut shadow = Slab::zeroed("what the workers have", shadow_bytes.div_ceil(4))?;
        shadow.as_mut_slice().fill(0.0);
        Ok(Framed {
            framing: Arc::clone(framing),
            codecs,
            chunks,
            window,
            weights,
            shadow,
            sum: vec![0.0; longest],
            difference: vec![0.0; longest],
            scratch: vec![0.0; longest],
        })
    }

    fn frames(&self, place: usize) -> Frames {
        *self.framing.frames(self.chunks[place].id)
    }

    /// The weights.
    pub fn weights(&self) -> &HubWeights {
        &self.weights
    }

    /// The same, to write.
    pub fn weights_mut(&mut self) -> &mut HubWeights {
        &mut self.weights
    }

    /// Begins with these values as weights: a broadcast's raw frame. One that is torn begins with zeros.
    pub fn begin(&mut self, place: usize, bytes: &[u8]) {
        self.frames(place).read_raw(bytes, self.weights.of_mut(place));
        self.send_weights(place);
    }

    /// What workers are sent next is a raw frame of the weights: at the broadcast, and after a checkpoint.
    pub fn send_weights(&mut self, place: usize) {
        if self.framing.steps_alone() {
            return;
        }
        typed!(self.frames(place).dtype, E => {
            let Chunk { shadow, is_raw_fresh, .. } = &mut self.chunks[place];
            let shadow = shadow_mut::<E>(&mut self.shadow, shadow);
            shadow.iter_mut().zip(self.weights.of(place)).for_each(|(have, &weight)| *have = E::from_f32(weight));
            *is_raw_fresh = false;
        });
        self.show_raw(place);
    }

    /// A raw frame of what the workers have, for one that has nothing yet. While it is there, and nobody has more, it
    /// is not written again: somebody may read it.
    pub fn show_raw(&mut self, place: usize) {
        let frames = self.frames(place);
        let Chunk { shadow, is_raw_fresh, .. } = &mut self.chunks[place];
        if !std::mem::replace(is_raw_fresh, true) {
            let values = frames.begin_raw(self.window.elements_mut(place));
            values.copy_from_slice(&self.shadow.as_slice().as_bytes()[shadow.clone()]);
        }
    }

    /// A raw frame of the weights, in a window of one worker's own.
    pub fn show_weights(&self, place: usize, window: &mut [u8]) {
        self.frames(place).write_raw(self.weights.of(place), window);
    }

    /// Checks the frame that a worker has pushed; `bytes` are the chunk's in its window.
    pub fn check_push(&self, place: usize, round: Round, bytes: &[u8]) -> Result<(), FrameError> {
        let frames = self.frames(place);
        match self.framing.push_kind(round) {
            Kind::Raw => frames.raw(bytes).map(|_| ()),
            Kind::Coded => {
                let payload = frames.coded(bytes)?;
                Ok(self.codecs.push.check_payload(frames.elements, payload)?)
            }
        }
    }

    /// Sum of decoded pushes of a chunk: each adds to it.
    pub fn begin_sum(&mut self, place: usize) {
        let elements = self.frames(place).elements;
        self.sum[..elements].fill(0.0);
    }

    /// Adds a push; `bytes` are the chunk's in a worker's window. Total: they may have changed since they were
    /// checked.
    pub fn add(&mut self, kernels: &Kernels, place: usize, bytes: &[u8]) {
        let (frames, codec) = (self.frames(place), self.codecs.push);
        if let Ok(payload) = frames.coded(bytes) {
            codec.add(kernels, payload, &mut self.sum[..frames.elements]);
        }
    }

    /// The sum, and where its step goes: the weights, or where none are kept, what the answer is made of.
    pub fn step_parts(&mut self, place: usize) -> (&[f32], &mut [f32]) {
        let elements = self.frames(place).elements;
        let sum = &self.sum[..elements];
        match self.framing.keeps_weights() {
            true => (sum, self.weights.of_mut(place)),
            false => (sum, &mut self.difference[..elements]),
        }
    }

    /// After a step: the coded answer of this round to all workers.
    pub fn answer(&mut self, kernels: &Kernels, place: usize, round: Round) {
        if !self.framing.steps_alone() {
            typed!(self.frames(place).dtype, E => self.answer_in::<E>(kernels, place, round));
        }
    }

    fn answer_in<E: Element>(&mut self, kernels: &Kernels, place: usize, round: Round) {
        let frames = self.frames(place);
        let (codec, keeps_weights) = (self.codecs.answer, self.framing.keeps_weights());
        let chunk = &mut self.chunks[place];
        let difference = &mut self.difference[..frames.elements];
        let weights = self.weights.of_mut(place);
        let have = shadow_mut::<E>(&mut self.shadow, &chunk.shadow);
        if keeps_weights {
            difference_from(kernels, weights, have, difference);
        } else {
            difference.iter_mut().zip(&*weights).for_each(|(mean, left_out)| *mean += left_out);
        }
        let frame = self.window.elements_mut::<u8>(place);
        let room = &mut frame[HEADER_BYTES..frames.coded_bytes];
        let draw = self.framing.answer_draw(round, chunk.id);
        // Without state: what is left out is in the next difference already.
        let encoded = codec.encode(kernels, difference, &mut [], draw, room);
        frame::write_header(frame, Kind::Coded, encoded.bytes);
        (chunk.coded_bytes, chunk.is_raw_fresh) = (encoded.bytes, false);
        let payload = &frame[HEADER_BYTES..][..encoded.bytes];
        let answer = if keeps_weights { Answer::Difference } else { Answer::Values };
        merge(&codec, kernels, payload, answer, have, &mut self.scratch);
        if !keeps_weights {
            for ((left_out, value), have) in weights.iter_mut().zip(&*difference).zip(&*have) {
                let rest = value - have.to_f32();
                // Of an infinite mean the worker has all there is; the rest would be in every answer from now on.
                *left_out = if rest.is_finite() { rest } else { 0.0 };
            }
        }
    }

    /// Where the frame is that a worker is sent for a round, which takes part from `first` on.
    pub fn frame(&self, place: usize, round: Round, first: Round) -> fabric::Span {
        let frames = self.frames(place);
        match self.framing.answer_kind(round, first) {
            Kind::Raw => frames.frame(Kind::Raw, frames.value_bytes()),
            Kind::Coded => frames.frame(Kind::Coded, self.chunks[place].coded_bytes),
        }
    }
}

/// A chunk of the shadow.
fn shadow_mut<'a, E: Element>(shadow: &'a mut Slab, bytes: &Range<usize>) -> &'a mut [E] {
    let bytes = &mut shadow.as_mut_slice().as_mut_bytes()[bytes.clone()];
    <[E]>::mut_from_bytes(bytes).expect("whole elements, from a multiple of 4 bytes on")
}
