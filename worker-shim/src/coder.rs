//! The coder: between a worker's own gradients and weights and the frames that cross.
//!
//! Owned by the worker's windows. Knows chunks, codecs and rounds; neither keys nor links. Allocates nothing after it
//! is made.
//!
//! ```text
//!   gradients --encode, once a push, when the link takes it--> frame in the gradient window
//!   weights  <--merge, at arrival------------------------------ frame in the weights window
//! ```

use std::ops::Range;
use std::sync::Arc;

use fabric::{MapError, Slab, Span, Spans};
use half::{bf16, f16};
use pbox_core::codec::Encoded;
use pbox_core::frame::{self, FrameError, HEADER_BYTES, Kind};
use pbox_core::kernels::Kernels;
use pbox_core::{Answer, ChunkId, Dtype, Element, Framing, Round, merge};
use zerocopy::FromBytes;

/// One worker's coder.
#[derive(Debug)]
pub(crate) struct Coder {
    framing: Arc<Framing>,
    kernels: &'static Kernels,
    rank: u32,
    /// The round that this worker begins with.
    first: Round,
    /// Of the gradient window, by chunk.
    frames: Spans,
    /// By chunk: what is to be posted; `None` where the gradient is not encoded yet.
    encoded: Vec<Option<Span>>,
    /// What the codec keeps, f32 by chunk.
    state: Slab,
    /// Where each chunk's begins.
    states: Vec<usize>,
    /// Values of one chunk, where they are of another type.
    scratch: Vec<f32>,
    not_finite: u64,
}

impl Coder {
    /// `frames` are the chunks' spans in the gradient window.
    pub fn new(framing: &Arc<Framing>, rank: u32, frames: Spans) -> Result<Self, MapError> {
        let mut states = vec![0];
        let mut longest = 0;
        for chunk in 0..frames.len() {
            let elements = framing.frames(ChunkId(chunk as u32)).elements;
            states.push(states[chunk] + elements * framing.codec().state_per_element());
            longest = longest.max(elements);
        }
        Ok(Coder {
            kernels: Kernels::detect(),
            rank,
            first: Round(0),
            encoded: vec![None; frames.len()],
            state: Slab::zeroed("state of the codec", states[frames.len()])?,
            states,
            frames,
            framing: Arc::clone(framing),
            scratch: vec![0.0; longest],
            not_finite: 0,
        })
    }

    /// This worker takes part from round `first` on.
    pub fn begin(&mut self, first: Round) {
        self.first = first;
    }

    /// These chunks have another gradient than was encoded last.
    pub fn push(&mut self, chunks: Range<u32>) {
        self.encoded[chunks.start as usize..chunks.end as usize].fill(None);
    }

    /// Gradients that were NaN or infinite when they were encoded.
    pub fn not_finite(&self) -> u64 {
        self.not_finite
    }

    /// Where a chunk's frames lie in both windows.
    pub fn span(&self, chunk: ChunkId) -> Span {
        self.framing.frames(chunk).span
    }

    /// The frame of a chunk whose values are `gradient`, to be posted. Encoded once: an encoder remembers what it
    /// left out, and a link may refuse the first attempts to post.
    pub fn encode(&mut self, chunk: ChunkId, round: Round, gradient: &[u8]) -> Span {
        if let Some(span) = self.encoded[chunk.index()] {
            return span;
        }
        let frames = *self.framing.frames(chunk);
        let window = self.frames.elements_mut::<u8>(chunk.index());
        let span = match self.framing.push_kind(round) {
            Kind::Raw => {
                frames.begin_raw(window).copy_from_slice(gradient);
                frames.frame(Kind::Raw, gradient.len())
            }
            Kind::Coded => {
                let Encoded { bytes, not_finite } = self.encode_coded(chunk, round, gradient);
                self.not_finite += u64::from(not_finite);
                frames.frame(Kind::Coded, bytes)
            }
        };
        self.encoded[chunk.index()] = Some(span);
        span
    }

    fn encode_coded(&mut self, chunk: ChunkId, round: Round, gradient: &[u8]) -> Encoded {
        let Coder { framing, kernels, frames, state, states, scratch, .. } = self;
        let room = framing.frames(chunk);
        let values = match room.dtype {
            Dtype::F32 => <[f32]>::ref_from_bytes(gradient).expect("whole elements, on 64 bytes"),
            Dtype::F16 => widen::<f16>(gradient, scratch),
            Dtype::BF16 => widen::<bf16>(gradient, scratch),
        };
        let state = &mut state.as_mut_slice()[states[chunk.index()]..states[chunk.index() + 1]];
        let frame = frames.elements_mut::<u8>(chunk.index());
        let payload = &mut frame[HEADER_BYTES..room.coded_bytes];
        let draw = framing.draw(self.rank, round, chunk);
        let encoded = framing.codec().encode(kernels, values, state, draw, payload);
        frame::write_header(frame, Kind::Coded, encoded.bytes);
        encoded
    }

    /// Takes the answer of a round, from the chunk's bytes in the weights window, into `weights`. How many bytes it
    /// had.
    ///
    /// # Errors
    /// When it is no frame of this chunk and round.
    pub fn decode(
        &mut self,
        chunk: ChunkId,
        round: Round,
        bytes: &[u8],
        weights: &mut [u8],
    ) -> Result<usize, FrameError> {
        let (frames, codec) = (self.framing.frames(chunk), self.framing.answer());
        let payload = match self.framing.answer_kind(round, self.first) {
            Kind::Raw => {
                let values = frames.raw(bytes)?;
                weights.copy_from_slice(values);
                values
            }
            Kind::Coded => {
                let payload = frames.coded(bytes)?;
                codec.check_payload(frames.elements, payload)?;
                match frames.dtype {
                    Dtype::F32 => self.merge::<f32>(payload, weights),
                    Dtype::F16 => self.merge::<f16>(payload, weights),
                    Dtype::BF16 => self.merge::<bf16>(payload, weights),
                }
                payload
            }
        };
        Ok(HEADER_BYTES + payload.len())
    }

    fn merge<E: Element>(&mut self, payload: &[u8], weights: &mut [u8]) {
        let keeps_weights = self.framing.terms().keeps_weights;
        let answer = if keeps_weights { Answer::Difference } else { Answer::Values };
        let weights = <[E]>::mut_from_bytes(weights).expect("whole elements, on 64 bytes");
        merge(&self.framing.answer(), self.kernels, payload, answer, weights, &mut self.scratch);
    }
}

/// Values in f32.
fn widen<'a, E: Element>(values: &[u8], wide: &'a mut [f32]) -> &'a [f32] {
    let values = <[E]>::ref_from_bytes(values).expect("whole elements, on 64 bytes");
    let wide = &mut wide[..values.len()];
    wide.iter_mut().zip(values).for_each(|(wide, value)| *wide = value.to_f32());
    wide
}
