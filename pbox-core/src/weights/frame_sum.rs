//! Coded pushes: each frame is decoded, and its values are added to the chunk's sum.

use std::sync::Arc;

use zerocopy::{FromBytes, IntoBytes};

use super::Read;
use super::bare::{Push, Pushes};
use super::chunks::Chunk;
use crate::codec::Codec;
use crate::job::JobTerms;
use crate::kernels::{Ablate, Element, Kernels, Slots};
use crate::layout::{Content, Round};
use crate::wire::Framing;
use crate::wire::counted::MAX_GRADIENTS;
use crate::wire::frame::{self, FrameError, Kind};

/// The reader of frames that a codec wrote.
#[derive(Debug)]
pub(crate) struct FrameSum {
    framing: Arc<Framing>,
    codec: Codec,
    /// Whether only the first frame is read, because the job leaves out the sum.
    only_first: bool,
    /// Whether the frames come from hubs below. Then each frame has a sum, and the number of gradients in the sum.
    sums: bool,
    /// The sum of the chunk that is stepped.
    sum: Vec<f32>,
}

impl FrameSum {
    pub fn new(framing: &Arc<Framing>, codec: Codec, terms: &JobTerms, chunks: &[Chunk]) -> Self {
        let JobTerms { ablate: Ablate { aggregate: only_first, .. }, level, .. } = *terms;
        let sum = vec![0.0; longest(chunks)];
        FrameSum { framing: Arc::clone(framing), codec, only_first, sums: level.members.are_hubs(), sum }
    }

    /// Returns the number of gradients in a frame.
    fn gradients(&self, frame: &[u8]) -> Result<u32, FrameError> {
        match (self.sums, frame::count(frame)) {
            (false, 0) => Ok(1),
            (true, seen @ 1..=MAX_GRADIENTS) => Ok(seen),
            (_, seen) => Err(FrameError::Count { seen }),
        }
    }
}

impl Read for FrameSum {
    fn check(&self, chunk: &Chunk, _: usize, content: Content, push: Push) -> Result<bool, FrameError> {
        let frames = self.framing.frames(chunk.id);
        match (content, Framing::kind(content)) {
            (Content::Nothing, _) if !self.sums => Ok(true),
            (Content::Nothing, _) => self.gradients(push.bytes()).map(|_| true),
            (_, Kind::Raw) => frames.raw(push.bytes()).map(|_| true),
            (_, Kind::Coded) => {
                let payload = frames.coded(push.bytes())?;
                self.gradients(push.bytes())?;
                Ok(self.codec.check_payload(frames.elements, payload).map(|()| true)?)
            }
        }
    }

    fn workers_without(&self, push: Push) -> u32 {
        if self.sums { self.gradients(push.bytes()).unwrap_or(1) } else { 1 }
    }

    fn begin<E: Element>(&mut self, chunk: &Chunk, push: Push, weights: &mut [E]) {
        begin_raw(&self.framing, chunk, push, weights);
    }

    fn sum<E: Element>(
        &mut self,
        kernels: &Kernels,
        chunk: &Chunk,
        _: usize,
        _: Round,
        pushes: Pushes<impl Iterator<Item = u32> + Clone>,
        then: impl FnOnce(&Slots<E>, u32),
    ) {
        let frames = self.framing.frames(chunk.id);
        let mut sum = std::mem::take(&mut self.sum);
        let of_chunk = &mut sum[..chunk.elements];
        of_chunk.fill(0.0);
        let mut gradients = 0;
        for (_, bytes) in pushes.each() {
            // Accepts any bytes: another process may have changed the bytes after the check.
            if (gradients == 0 || !self.only_first)
                && let Ok(payload) = frames.coded(bytes)
            {
                self.codec.add(kernels, payload, of_chunk);
            }
            gradients += self.gradients(bytes).unwrap_or(1);
        }
        with_sum(of_chunk, |slots| then(slots, gradients));
        self.sum = sum;
    }
}

/// Returns the number of elements of the longest chunk.
pub(super) fn longest(chunks: &[Chunk]) -> usize {
    chunks.iter().map(|chunk| chunk.elements).max().unwrap_or(0)
}

/// Takes a raw frame as the chunk's new weights. If the frame has become invalid since its check, changes nothing.
pub(super) fn begin_raw<E: Element>(framing: &Framing, chunk: &Chunk, push: Push, weights: &mut [E]) {
    let weights = <[f32]>::mut_from_bytes(weights.as_mut_bytes()).expect("the hub's own weights are f32");
    framing.frames(chunk.id).read_raw(push.bytes(), weights);
}

/// Calls `then` with a sum as the only slot.
pub(super) fn with_sum<E: Element>(sum: &[f32], then: impl FnOnce(&Slots<E>)) {
    let sum = <[E]>::ref_from_bytes(sum.as_bytes()).expect("the hub's own weights are f32");
    Slots::with_one(sum, then);
}
