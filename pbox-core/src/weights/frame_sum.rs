//! Coded pushes: each frame is decoded, and adds to the chunk's sum.

use std::sync::Arc;

use zerocopy::{FromBytes, IntoBytes};

use super::bare::Gradients;
use super::chunks::Chunk;
use super::staged::Read;
use crate::codec::Codec;
use crate::kernels::{Ablate, Element, Kernels, Slots};
use crate::layout::Round;
use crate::wire::Framing;
use crate::wire::frame::{FrameError, Kind};

/// Reads frames that a codec wrote.
#[derive(Debug)]
pub(crate) struct FrameSum {
    framing: Arc<Framing>,
    codec: Codec,
    /// The job leaves out the sum: only the first frame is read.
    only_first: bool,
    /// Sum of the chunk that is stepped.
    sum: Vec<f32>,
}

impl FrameSum {
    pub fn new(framing: &Arc<Framing>, codec: Codec, ablate: Ablate, chunks: &[Chunk]) -> Self {
        let sum = vec![0.0; longest(chunks)];
        FrameSum { framing: Arc::clone(framing), codec, only_first: ablate.aggregate, sum }
    }
}

impl Read for FrameSum {
    fn check(
        &self,
        gradients: &Gradients,
        chunk: &Chunk,
        _: usize,
        rank: u32,
        round: Round,
    ) -> Result<bool, FrameError> {
        let frames = self.framing.frames(chunk.id);
        // SAFETY: the worker has posted this chunk, and gets no answer before this returns. If it writes all the
        // same, the result is read as bytes, and every byte is a value.
        let bytes = unsafe { gradients.bytes(rank, chunk.span) };
        match self.framing.push_kind(round) {
            Kind::Raw => frames.raw(bytes).map(|_| true),
            Kind::Coded => {
                let payload = frames.coded(bytes)?;
                Ok(self.codec.check_payload(frames.elements, payload).map(|()| true)?)
            }
        }
    }

    unsafe fn begin<E: Element>(
        &mut self,
        gradients: &Gradients,
        chunk: &Chunk,
        rank: u32,
        weights: &mut [E],
    ) {
        // SAFETY: the caller guarantees it.
        let bytes = unsafe { gradients.bytes(rank, chunk.span) };
        begin_raw(&self.framing, chunk, bytes, weights);
    }

    unsafe fn sum<E: Element>(
        &mut self,
        kernels: &Kernels,
        gradients: &mut Gradients,
        chunk: &Chunk,
        _: usize,
        ranks: impl Iterator<Item = u32>,
        _: Round,
        then: impl FnOnce(&Slots<E>, u32),
    ) {
        let frames = self.framing.frames(chunk.id);
        let sum = &mut self.sum[..chunk.elements];
        sum.fill(0.0);
        let mut workers = 0;
        for rank in ranks {
            // SAFETY: the caller guarantees it.
            let bytes = unsafe { gradients.bytes(rank, chunk.span) };
            // Total: the bytes may have changed since they were checked.
            if (workers == 0 || !self.only_first)
                && let Ok(payload) = frames.coded(bytes)
            {
                self.codec.add(kernels, payload, sum);
            }
            workers += 1;
        }
        with_sum(sum, |slots| then(slots, workers));
    }
}

/// Elements of the longest chunk.
pub(super) fn longest(chunks: &[Chunk]) -> usize {
    chunks.iter().map(|chunk| chunk.elements).max().unwrap_or(0)
}

/// Takes a broadcast's raw frame as the first weights. A frame that is torn by now changes nothing.
pub(super) fn begin_raw<E: Element>(framing: &Framing, chunk: &Chunk, bytes: &[u8], weights: &mut [E]) {
    let weights = <[f32]>::mut_from_bytes(weights.as_mut_bytes()).expect("the hub's own weights are f32");
    framing.frames(chunk.id).read_raw(bytes, weights);
}

/// A sum as the only slot.
pub(super) fn with_sum<E: Element>(sum: &[f32], then: impl FnOnce(&Slots<E>)) {
    let sum = <[E]>::ref_from_bytes(sum.as_bytes()).expect("the hub's own weights are f32");
    let start = [sum.as_ptr()];
    // SAFETY: the only start is that of `sum`. `sum` is as long and lives as long, and nobody writes it.
    then(&unsafe { Slots::new(&start, sum.len()) });
}
