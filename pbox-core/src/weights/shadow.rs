//! The shadow: the hub's copy of the values that a worker has of each chunk. Coded answers are computed from it.
//!
//! ```text
//!   weights   in f32; only the hub sees them
//!   shadow    the values that the worker has, in the keys' types
//!   answer    encode(weights - shadow), which is then merged into the shadow as the worker merges it: the values that
//!             an answer leaves out are in the next difference
//! ```
//!
//! Owned by the core, and laid out in the order of the shard's chunks.

use std::ops::Range;
use std::sync::Arc;

use fabric::{MapError, Slab};
use zerocopy::{FromBytes, IntoBytes};

use super::Stepped;
use super::chunks::Chunk;
use super::frame_sum::longest;
use crate::codec::Codec;
use crate::kernels::{Element, typed};
use crate::layout::Dtype;
use crate::wire::frame::{self, HEADER_BYTES, Kind};
use crate::wire::{Answer, Framing, difference, merge};

/// The shadow of one worker, or the common shadow of all workers.
#[derive(Debug)]
pub(super) struct Shadow {
    slab: Slab,
    /// The range of bytes that each chunk's values have in `slab`.
    chunks: Vec<Range<usize>>,
}

impl Shadow {
    /// Creates a shadow of chunks in their keys' types. Its memory is touched at the first write.
    pub fn new(framing: &Framing, chunks: &[Chunk]) -> Result<Self, MapError> {
        let mut end = 0;
        let place = |chunk: &Chunk| {
            let start = end;
            end = (start + framing.frames(chunk.id).value_bytes()).next_multiple_of(4);
            start..start + framing.frames(chunk.id).value_bytes()
        };
        let chunks = chunks.iter().map(place).collect();
        Ok(Shadow { slab: Slab::zeroed("what the workers have", end.div_ceil(4))?, chunks })
    }

    /// Returns the bytes of a chunk.
    pub fn bytes(&self, place: usize) -> &[u8] {
        &self.slab.as_slice().as_bytes()[self.chunks[place].clone()]
    }

    fn of_mut<E: Element>(&mut self, place: usize) -> &mut [E] {
        let bytes = &mut self.slab.as_mut_slice().as_mut_bytes()[self.chunks[place].clone()];
        <[E]>::mut_from_bytes(bytes).expect("whole elements, at a multiple of 4 bytes")
    }

    /// Replaces a chunk's shadow by weights that the worker gets without encoding.
    pub fn replace(&mut self, dtype: Dtype, place: usize, weights: &[f32]) {
        typed!(dtype, E => {
            let have = self.of_mut::<E>(place).iter_mut();
            have.zip(weights).for_each(|(have, &weight)| *have = E::from_f32(weight));
        });
    }
}

/// The writer of coded answers.
#[derive(Debug)]
pub(super) struct Encoder {
    pub framing: Arc<Framing>,
    codec: Codec,
    /// The values that an answer encodes.
    difference: Vec<f32>,
    scratch: Vec<f32>,
}

impl Encoder {
    pub fn new(framing: &Arc<Framing>, codec: Codec, chunks: &[Chunk]) -> Self {
        let zeros = || vec![0.0; longest(chunks)];
        Encoder { framing: Arc::clone(framing), codec, difference: zeros(), scratch: zeros() }
    }

    /// Encodes the difference between the weights and the worker's values into the worker's frame of a round. Returns the
    /// length of the payload in bytes.
    pub fn encode_weights(
        &mut self,
        of: &Stepped,
        weights: &[f32],
        shadow: &mut Shadow,
        frame: &mut [u8],
    ) -> usize {
        typed!(self.framing.frames(of.chunk.id).dtype, E => {
            let have = shadow.of_mut::<E>(of.place);
            difference(of.kernels, weights, have, &mut self.difference[..of.chunk.elements]);
            self.encode::<E>(of, Answer::Difference, have, frame)
        })
    }

    /// Encodes a mean, plus the values that former answers left out, as [`encode_weights`](Self::encode_weights) encodes a
    /// difference.
    pub fn encode_mean(
        &mut self,
        of: &Stepped,
        mean: &[f32],
        left_out: &mut [f32],
        shadow: &mut Shadow,
        frame: &mut [u8],
    ) -> usize {
        let values = &mut self.difference[..of.chunk.elements];
        values.iter_mut().zip(mean).zip(&*left_out).for_each(|((value, mean), rest)| *value = mean + rest);
        typed!(self.framing.frames(of.chunk.id).dtype, E => {
            let have = shadow.of_mut::<E>(of.place);
            let bytes = self.encode::<E>(of, Answer::Values, have, frame);
            for ((left_out, value), have) in left_out.iter_mut().zip(&self.difference).zip(&*have) {
                let rest = value - have.to_f32();
                // A value that is not finite would stay in every later answer, so it is dropped.
                *left_out = if rest.is_finite() { rest } else { 0.0 };
            }
            bytes
        })
    }

    fn encode<E: Element>(
        &mut self,
        of: &Stepped,
        answer: Answer,
        have: &mut [E],
        frame: &mut [u8],
    ) -> usize {
        let Encoder { framing, codec, difference, scratch } = self;
        let &Stepped { kernels, chunk, round, .. } = of;
        let frames = framing.frames(chunk.id);
        let room = &mut frame[HEADER_BYTES..frames.coded_bytes];
        let draw = framing.answer_draw(round, chunk.id);
        // The codec keeps no state here: the next difference already has the values that this difference leaves out.
        let encoded = codec.encode(kernels, &difference[..chunk.elements], &mut [], draw, room);
        frame::write_header(frame, Kind::Coded, encoded.bytes);
        let payload = &frame[HEADER_BYTES..][..encoded.bytes];
        merge(codec, kernels, payload, answer, have, scratch);
        encoded.bytes
    }
}
