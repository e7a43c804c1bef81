//! The former weights of chunks whose window shows weights ahead. Weights ahead are those that the step would make of
//! gradients whose bytes have arrived before their pushes.
//!
//! ```text
//!   show    window -> former; a trial of the step on the window, with a copy of the state
//!   hide    former -> window
//!   step    on the former weights, with the state itself; window <- former, if their bits differ
//! ```
//!
//! Owned by the core, and laid out in the order of the shard's chunks. Does not depend on rounds. Memory is touched at its
//! first use.

use fabric::{MapError, Slab};
use zerocopy::{FromBytes, IntoBytes};

use super::chunks::Chunk;
use crate::kernels::Element;

/// The alignment of weights, in bytes.
const LINE: usize = 64;

/// Room for the former weights of a shard's chunks, and for a trial of one step.
#[derive(Debug)]
pub(super) struct Former {
    slab: Slab,
    /// The start of each chunk's weights, in bytes.
    starts: Vec<usize>,
    /// A copy of a chunk's master weights and state.
    trial: Vec<f32>,
}

impl Former {
    /// Allocates room for these chunks. `kept` returns the number of a chunk's kept values, besides its weights.
    pub fn new(chunks: &[Chunk], kept: impl Fn(&Chunk) -> usize) -> Result<Self, MapError> {
        let mut end = 0;
        let start = |chunk: &Chunk| {
            end += chunk.bytes.next_multiple_of(LINE);
            end - chunk.bytes.next_multiple_of(LINE)
        };
        let starts = chunks.iter().map(start).collect();
        let trial = vec![0.0; chunks.iter().map(kept).max().unwrap_or(0)];
        Ok(Former { slab: Slab::zeroed("former weights", end / size_of::<f32>())?, starts, trial })
    }

    /// Returns a chunk's former weights.
    pub fn of<E: Element>(&mut self, chunk: &Chunk, place: usize) -> &mut [E] {
        let bytes = &mut self.slab.as_mut_slice().as_mut_bytes()[self.starts[place]..][..chunk.bytes];
        <[E]>::mut_from_bytes(bytes).expect("a chunk has whole elements, at a multiple of 64 bytes")
    }

    /// Copies the kept values of a chunk, for a trial.
    pub fn trial(&mut self, kept: &[f32]) -> &mut [f32] {
        let trial = &mut self.trial[..kept.len()];
        trial.copy_from_slice(kept);
        trial
    }
}
