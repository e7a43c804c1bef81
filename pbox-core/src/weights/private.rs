//! Weights in f32 that only the hub sees, and room for means that are not kept.
//!
//! Owned by the core, and laid out in the order of the shard's chunks. Does not depend on frames or rounds.

use std::ops::Range;

use fabric::{MapError, Slab};
use zerocopy::{FromBytes, IntoBytes};

use super::Weights;
use super::chunks::Chunk;
use crate::kernels::Element;

/// The hub's own weights of a shard's chunks.
#[derive(Debug)]
pub(crate) struct HubWeights {
    slab: Slab,
    /// The place of each chunk's weights.
    chunks: Vec<Range<usize>>,
}

impl HubWeights {
    /// Allocates and touches memory. Call it on the core's NUMA node.
    pub fn new(chunks: &[Chunk]) -> Result<Self, MapError> {
        Self::in_places(chunks.iter().scan(0, |end, chunk| {
            *end += chunk.elements;
            Some(*end - chunk.elements..*end)
        }))
    }

    /// Allocates room for the values of one chunk at a time. All chunks use the same room, so the values are not kept.
    pub fn of_one(chunks: &[Chunk]) -> Result<Self, MapError> {
        Self::in_places(chunks.iter().map(|chunk| 0..chunk.elements))
    }

    fn in_places(places: impl Iterator<Item = Range<usize>>) -> Result<Self, MapError> {
        let chunks: Vec<Range<usize>> = places.collect();
        let mut slab = Slab::zeroed("weights", chunks.iter().map(|chunk| chunk.end).max().unwrap_or(0))?;
        slab.as_mut_slice().fill(0.0);
        Ok(HubWeights { slab, chunks })
    }

    /// Returns a chunk's weights.
    pub fn of(&self, place: usize) -> &[f32] {
        &self.slab.as_slice()[self.chunks[place].clone()]
    }

    /// Returns a chunk's weights, to write.
    pub fn of_mut(&mut self, place: usize) -> &mut [f32] {
        &mut self.slab.as_mut_slice()[self.chunks[place].clone()]
    }
}

impl Weights for HubWeights {
    fn elements<E: Element>(&self, place: usize) -> &[E] {
        <[E]>::ref_from_bytes(self.of(place).as_bytes()).expect("the hub's own weights are f32")
    }

    fn elements_mut<E: Element>(&mut self, place: usize) -> &mut [E] {
        <[E]>::mut_from_bytes(self.of_mut(place).as_mut_bytes()).expect("the hub's own weights are f32")
    }
}
