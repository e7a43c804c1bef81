//! Weights that only the hub sees: in f32, beside windows that hold frames.
//!
//! Owned by the core, as a part of its values, and laid out by place. Knows neither frames nor rounds.

use std::ops::Range;

use fabric::{MapError, Slab};
use zerocopy::{FromBytes, IntoBytes};

use crate::kernels::Element;

/// The weights of a shard's chunks.
#[derive(Debug)]
pub(crate) struct HubWeights {
    slab: Slab,
    /// Where each chunk's are.
    chunks: Vec<Range<usize>>,
}

impl HubWeights {
    /// For chunks of so many elements each. Allocates and touches memory: on the thread that owns the core.
    pub fn new(elements: impl Iterator<Item = usize>) -> Result<Self, MapError> {
        let (mut chunks, mut end) = (Vec::new(), 0);
        for elements in elements {
            chunks.push(end..end + elements);
            end += elements;
        }
        let mut slab = Slab::zeroed("weights", end)?;
        slab.as_mut_slice().fill(0.0);
        Ok(HubWeights { slab, chunks })
    }

    /// A chunk's.
    pub fn of(&self, place: usize) -> &[f32] {
        &self.slab.as_slice()[self.chunks[place].clone()]
    }

    /// The same, to write.
    pub fn of_mut(&mut self, place: usize) -> &mut [f32] {
        &mut self.slab.as_mut_slice()[self.chunks[place].clone()]
    }

    /// The same for those who are generic: `E` is f32.
    pub fn elements<E: Element>(&self, place: usize) -> &[E] {
        <[E]>::ref_from_bytes(self.of(place).as_bytes()).expect("the hub's own weights are f32")
    }

    /// The same, to write.
    pub fn elements_mut<E: Element>(&mut self, place: usize) -> &mut [E] {
        <[E]>::mut_from_bytes(self.of_mut(place).as_mut_bytes()).expect("the hub's own weights are f32")
    }
}
