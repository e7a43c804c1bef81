//! The reply of a hub below other hubs, if its links to them are coded. Workers share memory with this hub and push bare
//! values. Only sums to the hubs above, and answers from these hubs, are frames.
//!
//! ```text
//!   sum --encode, with the values that former sums left out--> frame in the window that the hub above reads
//!   window that the workers read <--merge-- frame in the window that the hub above writes
//! ```
//!
//! To the hub above, this hub is like a worker: the state of the codec belongs to the machine.

use std::sync::Arc;

use fabric::{MapError, Slab, Span, Spans};
use half::{bf16, f16};
use zerocopy::{FromBytes, IntoBytes};

use super::super::bare::Push;
use super::super::chunks::Chunk;
use super::super::frame_sum::longest;
use super::super::{Reply, Stepped, To, Weights};
use crate::kernels::{Element, Kernels, typed};
use crate::layout::{Dtype, Round};
use crate::wire::frame::{self, FrameError, HEADER_BYTES, Kind};
use crate::wire::{Answer, Codecs, Framing, merge};

/// The sum of one chunk at a time, in the key's type.
#[derive(Debug)]
pub(crate) struct OneSum {
    slab: Slab,
    /// The number of elements of each chunk, in the order of the chunks.
    elements: Vec<usize>,
}

impl OneSum {
    /// Allocates and touches memory: call it on the core's NUMA node.
    pub fn new(chunks: &[Chunk]) -> Result<Self, MapError> {
        let mut slab = Slab::zeroed("the sum of a chunk", longest(chunks))?;
        slab.as_mut_slice().fill(0.0);
        Ok(OneSum { slab, elements: chunks.iter().map(|chunk| chunk.elements).collect() })
    }
}

impl Weights for OneSum {
    fn elements<E: Element>(&self, place: usize) -> &[E] {
        let bytes = &self.slab.as_slice().as_bytes()[..self.elements[place] * size_of::<E>()];
        <[E]>::ref_from_bytes(bytes).expect("whole elements")
    }

    fn elements_mut<E: Element>(&mut self, place: usize) -> &mut [E] {
        let bytes = &mut self.slab.as_mut_slice().as_mut_bytes()[..self.elements[place] * size_of::<E>()];
        <[E]>::mut_from_bytes(bytes).expect("whole elements")
    }
}

/// The values that a core needs for coded links to the hubs above.
#[derive(Debug)]
pub(crate) struct CodedSpec {
    /// The format of the frames to and from the hubs above.
    pub framing: Arc<Framing>,
    /// This hub's number among the members of the hubs above.
    pub machine: u32,
    /// The spans of this core's chunks in the window that the workers read.
    pub shown: Spans,
}

/// The encoder of sums and the decoder of answers.
#[derive(Debug)]
pub(crate) struct CodedRelay {
    /// The number of workers. The links to hubs above have higher numbers.
    workers: u32,
    spec: CodedSpec,
    codecs: Codecs,
    /// The spans of the frames in the window that the hubs above read.
    frames: Spans,
    /// Whether the job's first weights come from another hub's workers, as in [`Relay`](super::Relay).
    keeps_first: bool,
    /// The state of the codec for all chunks, in f32.
    state: Slab,
    /// The start of each chunk's state.
    states: Vec<usize>,
    /// The span of the frame to post, for each chunk.
    posts: Vec<Span>,
    /// Values of one chunk in f32, for keys of another type.
    scratch: Vec<f32>,
}

impl CodedRelay {
    /// Creates the relay. Allocates memory: call it on the core's NUMA node.
    pub fn new(
        workers: u32,
        mut spec: CodedSpec,
        mut frames: Spans,
        keeps_first: bool,
        chunks: &[Chunk],
    ) -> Result<Self, MapError> {
        let codecs = spec.framing.codecs().expect("no Slim-DP between hubs");
        for spans in [&mut frames, &mut spec.shown] {
            (0..spans.len()).for_each(|place| spans.elements_mut::<u8>(place).fill(0));
        }
        let mut states = vec![0];
        for chunk in chunks {
            states.push(states[states.len() - 1] + chunk.elements * codecs.push.state_per_element());
        }
        Ok(CodedRelay {
            workers,
            codecs,
            frames,
            keeps_first,
            state: Slab::zeroed("state of the codec", states[chunks.len()])?,
            states,
            posts: chunks.iter().map(|chunk| spec.framing.frames(chunk.id).span).collect(),
            spec,
            scratch: vec![0.0; longest(chunks)],
        })
    }

    /// Encodes a sum of gradients. Returns the length of the payload.
    fn encode(&mut self, stepped: &Stepped, weights: &OneSum) -> usize {
        let &Stepped { kernels, chunk, place, round, workers, .. } = stepped;
        let CodedRelay {
            spec: CodedSpec { framing, machine, .. },
            codecs,
            frames,
            state,
            states,
            scratch,
            ..
        } = self;
        let values = match chunk.dtype {
            Dtype::F32 => weights.elements::<f32>(place),
            Dtype::F16 => widen::<f16>(kernels, weights, place, scratch),
            Dtype::BF16 => widen::<bf16>(kernels, weights, place, scratch),
        };
        let frame = frames.elements_mut::<u8>(place);
        let room = &mut frame[HEADER_BYTES..framing.frames(chunk.id).coded_bytes];
        let state = &mut state.as_mut_slice()[states[place]..states[place + 1]];
        let encoded =
            codecs.push.encode(kernels, values, state, framing.draw(*machine, round, chunk.id), room);
        frame::write_header(frame, Kind::Coded, encoded.bytes);
        frame::write_count(frame, workers);
        encoded.bytes
    }
}

fn widen<'a, E: Element>(
    kernels: &Kernels,
    weights: &OneSum,
    place: usize,
    wide: &'a mut [f32],
) -> &'a [f32] {
    let values = weights.elements::<E>(place);
    let wide = &mut wide[..values.len()];
    kernels.widen(values, wide);
    wide
}

impl<R> Reply<R, OneSum> for CodedRelay {
    fn answer(&mut self, _: &Kernels, chunk: &Chunk, place: usize, _: &OneSum, to: To) -> Span {
        if to.rank < self.workers { chunk.span } else { self.posts[place] }
    }

    fn add_worker(&mut self, _: &[Chunk], _: &OneSum, _: u32, own: Option<Spans>) {
        assert!(own.is_none(), "all workers read one window");
    }

    fn prepare(&mut self, stepped: Stepped, _: &mut R, weights: &OneSum) {
        let &Stepped { chunk, place, round, content, .. } = &stepped;
        let frames = *self.spec.framing.frames(chunk.id);
        self.posts[place] = match Framing::kind(content) {
            Kind::Coded => frames.frame(Kind::Coded, self.encode(&stepped, weights)),
            Kind::Raw => {
                let first = frames.begin_raw(self.frames.elements_mut(place));
                if self.keeps_first && round == Round(0) {
                    // The hub above reads only the header of this frame.
                    frames.frame(Kind::Raw, 0)
                } else {
                    typed!(chunk.dtype, E => first.copy_from_slice(weights.elements::<E>(place).as_bytes()));
                    frames.frame(Kind::Raw, first.len())
                }
            }
        };
    }

    fn prepare_nothing(&mut self, chunk: &Chunk, place: usize, workers: u32) {
        let frame = self.frames.elements_mut::<u8>(place);
        frame::write_header(frame, Kind::Coded, 0);
        frame::write_count(frame, workers);
        self.posts[place] = self.spec.framing.frames(chunk.id).frame(Kind::Coded, 0);
    }

    fn place_of_answers(&self, chunk: &Chunk) -> Option<Span> {
        Some(self.spec.framing.frames(chunk.id).span)
    }

    fn take_answer(
        &mut self,
        kernels: &Kernels,
        chunk: &Chunk,
        place: usize,
        answer: Push,
        to: To,
    ) -> Result<(), FrameError> {
        let CodedRelay { spec: CodedSpec { framing, shown, .. }, codecs, scratch, .. } = self;
        let frames = framing.frames(chunk.id);
        match Framing::answer_kind(to.content, to.round, to.first) {
            Kind::Raw => shown.elements_mut::<u8>(place).copy_from_slice(frames.raw(answer.bytes())?),
            Kind::Coded => {
                let payload = frames.coded(answer.bytes())?;
                codecs.answer.check_payload(chunk.elements, payload)?;
                let contains = if framing.keeps_weights() { Answer::Difference } else { Answer::Values };
                typed!(chunk.dtype, E => {
                    merge(&codecs.answer, kernels, payload, contains, shown.elements_mut::<E>(place), scratch);
                });
            }
        }
        Ok(())
    }
}
