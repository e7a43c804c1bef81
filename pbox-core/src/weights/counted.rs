//! Pushes of hubs below. Each push is a bare sum, with the number of gradients in the sum.

use zerocopy::FromBytes;

use super::Read;
use super::bare::{Push, Pushes};
use super::chunks::Chunk;
use crate::kernels::{Ablate, Element, Kernels, Slots};
use crate::layout::{Content, Round};
use crate::wire::counted;
use crate::wire::frame::FrameError;

/// The reader of sums: the kernel adds the sums of the hubs in place, in the order of the hubs.
#[derive(Debug)]
pub(crate) struct CountedSlots {
    /// The number of slots that are read: all, or 1 if the job leaves out the sum.
    most: usize,
}

impl CountedSlots {
    pub fn new(ablate: Ablate) -> Self {
        CountedSlots { most: if ablate.aggregate { 1 } else { usize::MAX } }
    }
}

impl Read for CountedSlots {
    #[inline]
    fn check(&self, _: &Chunk, _: usize, content: Content, push: Push) -> Result<bool, FrameError> {
        if content == Content::Weights {
            return Ok(true);
        }
        counted::read(push.bytes()).map(|_| true).map_err(|seen| FrameError::Count { seen })
    }

    fn workers_without(&self, push: Push) -> u32 {
        counted::read(push.bytes()).unwrap_or(1)
    }

    fn begin<E: Element>(&mut self, chunk: &Chunk, push: Push, weights: &mut [E]) {
        let values = &push.bytes()[..chunk.bytes];
        weights.copy_from_slice(
            <[E]>::ref_from_bytes(values).expect("whole elements, at a multiple of 64 bytes"),
        );
    }

    fn sum<E: Element>(
        &mut self,
        _: &Kernels,
        chunk: &Chunk,
        _: usize,
        _: Round,
        pushes: Pushes<impl Iterator<Item = u32> + Clone>,
        then: impl FnOnce(&Slots<E>, u32),
    ) {
        // Accepts any bytes: another process owns the counts, and may have changed them after the check.
        let gradients = pushes.bytes().map(|bytes| counted::read(bytes).unwrap_or(1)).sum();
        then(&pushes.first(chunk.bytes).slots::<E>().at_most(self.most), gradients);
    }
}
