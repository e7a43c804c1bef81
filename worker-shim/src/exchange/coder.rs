//! The coder. It holds a worker's gradients, encodes them into frames, and decodes frames into the worker's
//! weights.
//!
//! Owned by the worker's windows. Depends on chunks, codecs and rounds, but not on keys or links. Allocates nothing after
//! [`Coder::new`].
//!
//! ```text
//!   gradients --encode, once per push, when it is posted---> frame in the gradient window
//!   weights  <--merge, at arrival--------------------------- frame in the weights window
//! ```

use std::sync::Arc;

use fabric::{MapError, SendWindow, Slab, Span, Spans};
use half::{bf16, f16};
use pbox_core::codec::Encoded;
use pbox_core::frame::{self, FrameError, HEADER_BYTES, Kind};
use pbox_core::kernels::Kernels;
use pbox_core::slim::Pusher;
use pbox_core::{
    Answer, ChunkId, Codecs, Compression, Content, Dtype, Element, Framing, Round, merge, typed,
};
use zerocopy::{FromBytes, IntoBytes};

/// One worker's coder.
#[derive(Debug)]
pub(crate) struct Coder {
    framing: Arc<Framing>,
    kernels: &'static Kernels,
    rank: u32,
    /// The first round of this worker.
    first: Round,
    /// The gradients, with the model's layout.
    gradients: Slab,
    /// The frames of the gradient window, by chunk.
    frames: Spans,
    /// The span of each chunk's encoded frame, by chunk. `None` from the arrival of an answer until the next gradient
    /// is encoded.
    encoded: Vec<Option<Span>>,
    method: Method,
    /// A buffer for the values of one chunk as f32, for keys of another type.
    scratch: Vec<f32>,
    not_finite: u64,
}

/// The method that turns a chunk's values into a payload, and a payload into values.
#[derive(Debug)]
enum Method {
    Codec {
        codecs: Codecs,
        /// The codec's state, f32 by chunk.
        state: Slab,
        /// The first element of each chunk's state.
        states: Vec<usize>,
    },
    Slim(Pusher),
}

impl Coder {
    /// Creates a coder. `gradients` is private memory with the model's layout. `frames` are the chunks' spans
    /// in the gradient window.
    pub fn new(framing: &Arc<Framing>, rank: u32, gradients: Slab, frames: Spans) -> Result<Self, MapError> {
        let elements = || (0..frames.len() as u32).map(|chunk| framing.frames(ChunkId(chunk)).elements);
        let method = match (framing.codecs(), framing.compression()) {
            (Some(codecs), _) => {
                let mut states = vec![0];
                for elements in elements() {
                    states.push(states[states.len() - 1] + elements * codecs.push.state_per_element());
                }
                Method::Codec {
                    codecs,
                    state: Slab::zeroed("state of the codec", states[frames.len()])?,
                    states,
                }
            }
            (None, Compression::Slim(slim)) => {
                Method::Slim(Pusher::new(slim, framing.seed(), rank, elements()))
            }
            (None, Compression::Codec(_)) => unreachable!("a codec's framing has its codecs"),
        };
        let longest = elements().max().unwrap_or(0);
        Ok(Coder {
            kernels: Kernels::detect(),
            rank,
            first: Round(0),
            encoded: vec![None; frames.len()],
            method,
            gradients,
            frames,
            framing: Arc::clone(framing),
            scratch: vec![0.0; longest],
            not_finite: 0,
        })
    }

    /// Notes that this worker takes part from round `first` on.
    pub fn begin(&mut self, first: Round) {
        self.first = first;
        if let Method::Slim(pusher) = &mut self.method {
            pusher.begin(first.max(Round(1)));
        }
    }

    /// Returns the window that contains the frames.
    pub fn window(&self) -> &Arc<SendWindow> {
        self.frames.window()
    }

    /// Returns the gradients, to write.
    pub fn gradients_mut(&mut self) -> &mut Slab {
        &mut self.gradients
    }

    /// Sets all gradients to zero in a job with Slim-DP. There callers add each gradient to the values that earlier
    /// pushes did not send.
    pub fn discard_changes(&mut self) {
        if self.keeps_own_weights() {
            self.gradients.as_mut_slice().fill(0.0);
        }
    }

    /// Returns the number of gradients that were NaN or infinite when they were encoded.
    pub fn not_finite(&self) -> u64 {
        self.not_finite
    }

    /// Returns the span of a chunk's frames, which is the same in both windows.
    pub fn frames_of(&self, chunk: ChunkId) -> Span {
        self.framing.frames(chunk).span
    }

    /// Returns the span of the frame to post for a chunk. The chunk's values are at `span` of the model. A chunk is
    /// encoded once per push, even if a link refuses the first attempts to post it. Encoding twice would be wrong,
    /// because the encoder remembers the values that a frame leaves out.
    pub fn encode(&mut self, chunk: ChunkId, (round, content): (Round, Content), span: Span) -> Span {
        if let Some(posted) = self.encoded[chunk.index()] {
            return posted;
        }
        let frames = *self.framing.frames(chunk);
        let window = self.frames.elements_mut::<u8>(chunk.index());
        let posted = match Framing::kind(content) {
            Kind::Raw => {
                let gradient = part(&self.gradients, span);
                frames.begin_raw(window).copy_from_slice(gradient);
                frames.frame(Kind::Raw, gradient.len())
            }
            Kind::Coded => {
                let Encoded { bytes, not_finite } = self.encode_coded(chunk, round, span);
                self.not_finite += u64::from(not_finite);
                frames.frame(Kind::Coded, bytes)
            }
        };
        self.encoded[chunk.index()] = Some(posted);
        posted
    }

    /// Notes that the hub's answer for a chunk has no frame, so that the next push encodes the gradient again.
    pub fn note_answered(&mut self, chunk: ChunkId) {
        self.encoded[chunk.index()] = None;
    }

    fn encode_coded(&mut self, chunk: ChunkId, round: Round, span: Span) -> Encoded {
        let Coder { framing, kernels, gradients, frames, method, scratch, .. } = self;
        let gradient = part(gradients, span);
        let room = framing.frames(chunk);
        let frame = frames.elements_mut::<u8>(chunk.index());
        let payload = &mut frame[HEADER_BYTES..room.coded_bytes];
        let encoded = match method {
            Method::Codec { codecs, state, states } => {
                let values = match room.dtype {
                    Dtype::F32 => elements::<f32>(gradient),
                    Dtype::F16 => widen::<f16>(kernels, gradient, scratch),
                    Dtype::BF16 => widen::<bf16>(kernels, gradient, scratch),
                };
                let state = &mut state.as_mut_slice()[states[chunk.index()]..states[chunk.index() + 1]];
                let draw = framing.draw(self.rank, round, chunk);
                codecs.push.encode(kernels, values, state, draw, payload)
            }
            Method::Slim(pusher) => {
                let bytes =
                    typed!(room.dtype, E => pusher.push::<E>(chunk, round, elements(gradient), payload));
                Encoded { bytes, not_finite: 0 }
            }
        };
        frame::write_header(frame, Kind::Coded, encoded.bytes);
        encoded
    }

    /// Encodes a chunk's push again, in a form that the hub can read, because the hub could not read the
    /// first form. Returns false if there is no such form.
    pub fn push_again(&mut self, chunk: ChunkId) -> bool {
        let Method::Slim(pusher) = &mut self.method else { return false };
        self.encoded[chunk.index()] = None;
        pusher.forget_significant(chunk)
    }

    /// Whether the worker itself also writes weights, and not only the hub.
    pub fn keeps_own_weights(&self) -> bool {
        matches!(self.method, Method::Slim(_))
    }

    /// Whether all keys must be pushed for this round before any key is pushed for the next round.
    pub fn needs_all(&self, round: Round) -> bool {
        matches!(&self.method, Method::Slim(pusher) if pusher.selects(round))
    }

    /// Decodes the answer of a round into `weights`. `bytes` are the chunk's bytes in the weights window, and
    /// `weights` lie at `span` of the model. With Slim-DP the gradients that were sent become zero. Returns
    /// the number of bytes of the frame.
    ///
    /// # Errors
    /// Returns an error if the bytes are not a frame of this chunk and round.
    pub fn decode(
        &mut self,
        chunk: ChunkId,
        (round, content): (Round, Content),
        bytes: &[u8],
        weights: &mut [u8],
        span: Span,
    ) -> Result<usize, FrameError> {
        self.encoded[chunk.index()] = None;
        let frames = self.framing.frames(chunk);
        let payload = match Framing::answer_kind(content, round, self.first) {
            Kind::Raw => {
                let values = frames.raw(bytes)?;
                weights.copy_from_slice(values);
                // The weights that a worker gets when it joins or returns are no answer to a push, so no gradients were
                // sent.
                if self.keeps_own_weights() && round >= self.first {
                    part_mut(&mut self.gradients, span).fill(0); // all values were sent
                }
                values
            }
            Kind::Coded => {
                let payload = frames.coded(bytes)?;
                typed!(frames.dtype, E => self.merge::<E>(chunk, payload, weights, span))?;
                payload
            }
        };
        Ok(HEADER_BYTES + payload.len())
    }

    /// Notes that the hub has stepped a chunk's push of a round, although the answer never arrived. With
    /// Slim-DP the gradients that were sent become zero.
    pub fn answered_without(&mut self, chunk: ChunkId, round: Round, span: Span) {
        let raw = round == Round(0) && self.framing.keeps_weights();
        let (gradients, dtype) = (part_mut(&mut self.gradients, span), self.framing.frames(chunk).dtype);
        match &self.method {
            Method::Slim(_) if raw => gradients.fill(0),
            Method::Slim(pusher) if pusher.is_open(chunk) => {
                typed!(dtype, E => pusher.clear_sent::<E>(chunk, elements_mut(gradients)))
            }
            Method::Slim(_) | Method::Codec { .. } => {}
        }
    }

    fn merge<E: Element>(
        &mut self,
        chunk: ChunkId,
        payload: &[u8],
        weights: &mut [u8],
        span: Span,
    ) -> Result<(), FrameError> {
        let weights = elements_mut::<E>(weights);
        match &mut self.method {
            Method::Codec { codecs, .. } => {
                codecs.answer.check_payload(weights.len(), payload)?;
                let keeps_weights = self.framing.keeps_weights();
                let answer = if keeps_weights { Answer::Difference } else { Answer::Values };
                merge(&codecs.answer, self.kernels, payload, answer, weights, &mut self.scratch);
                Ok(())
            }
            Method::Slim(pusher) => {
                pusher.merge(chunk, payload, weights)?;
                pusher.clear_sent::<E>(chunk, elements_mut(part_mut(&mut self.gradients, span)));
                Ok(())
            }
        }
    }
}

/// Returns the bytes at a span of `values`, which has the model's layout.
pub(super) fn part(values: &Slab, span: Span) -> &[u8] {
    &values.as_slice().as_bytes()[span.offset..span.offset + span.bytes]
}

pub(super) fn part_mut(values: &mut Slab, span: Span) -> &mut [u8] {
    &mut values.as_mut_slice().as_mut_bytes()[span.offset..span.offset + span.bytes]
}

/// Returns the elements of a key or a chunk.
pub(super) fn elements<E: Element>(bytes: &[u8]) -> &[E] {
    <[E]>::ref_from_bytes(bytes).expect("a span has whole elements, at a multiple of 64 bytes")
}

pub(super) fn elements_mut<E: Element>(bytes: &mut [u8]) -> &mut [E] {
    <[E]>::mut_from_bytes(bytes).expect("a span has whole elements, at a multiple of 64 bytes")
}

/// Converts values to f32.
fn widen<'a, E: Element>(kernels: &Kernels, values: &[u8], wide: &'a mut [f32]) -> &'a [f32] {
    let values = elements::<E>(values);
    let wide = &mut wide[..values.len()];
    kernels.widen(values, wide);
    wide
}
