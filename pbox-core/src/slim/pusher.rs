//! One worker's end of Slim-DP: which core it has of each chunk, and what it pushed last.
//!
//! Owned by the worker's windows. Knows chunks and rounds; neither keys nor links. Allocates nothing after it is made.

use std::ops::Range;

use crate::kernels::Element;
use crate::layout::{ChunkId, Round};

use super::explorer::Drawer;
use super::payload::{PayloadError, merge, push_whole};
use super::{SlimDp, set};

/// One worker's end.
#[derive(Debug)]
pub struct Pusher {
    slim: SlimDp,
    seed: u64,
    rank: u32,
    /// The first round that is trained in.
    first: Round,
    chunks: Vec<Chunk>,
    /// The cores of all chunks.
    cores: Vec<u64>,
    /// What was pushed of all chunks.
    sets: Vec<u64>,
}

#[derive(Debug)]
struct Chunk {
    /// Its words among the cores and the sets.
    words: Range<usize>,
    /// Its core is the hub's.
    has_core: bool,
    /// All of it was pushed.
    whole: bool,
}

impl Pusher {
    /// For chunks of so many elements, by id.
    pub fn new(slim: SlimDp, seed: u64, rank: u32, elements: impl Iterator<Item = usize>) -> Self {
        let mut end = 0;
        let chunk = |elements| {
            let start = end;
            end += set::words(elements);
            Chunk { words: start..end, has_core: false, whole: false }
        };
        let chunks: Vec<Chunk> = elements.map(chunk).collect();
        Pusher { slim, seed, rank, first: Round(1), chunks, cores: vec![0; end], sets: vec![0; end] }
    }

    /// The job trains from round `first` on.
    pub fn begin(&mut self, first: Round) {
        self.first = first;
    }

    /// Whether a core is selected after a round: then no key is pushed for the next one before all are pushed for
    /// this one.
    pub fn selects(&self, round: Round) -> bool {
        self.slim.selects(round, self.first)
    }

    /// Writes the push of a chunk; the bytes that it takes.
    pub fn push<E: Element>(
        &mut self,
        chunk: ChunkId,
        round: Round,
        values: &[E],
        payload: &mut [u8],
    ) -> usize {
        let whole = self.selects(round);
        let Pusher { slim, seed, rank, chunks, cores, sets, .. } = self;
        let of_chunk = &mut chunks[chunk.index()];
        of_chunk.whole = whole || !of_chunk.has_core;
        if of_chunk.whole {
            return push_whole(values, payload);
        }
        let (core, set) = (&cores[of_chunk.words.clone()], &mut sets[of_chunk.words.clone()]);
        slim.push_set(core, set, Drawer { seed: *seed, rank: *rank, round, chunk }, values, payload)
    }

    /// The hub does not have this core: the chunk is pushed whole from now on, until another one comes. False where it
    /// was whole already.
    pub fn forget_core(&mut self, chunk: ChunkId) -> bool {
        let chunk = &mut self.chunks[chunk.index()];
        chunk.has_core = false;
        !chunk.whole
    }

    /// Merges the answer to the last push of a chunk into the weights.
    ///
    /// # Errors
    /// When it is another one; nothing is changed then.
    pub fn merge<E: Element>(
        &mut self,
        chunk: ChunkId,
        payload: &[u8],
        weights: &mut [E],
    ) -> Result<(), PayloadError> {
        let Chunk { words, has_core, whole } = &mut self.chunks[chunk.index()];
        let set = (!*whole).then_some(&self.sets[words.clone()]);
        let core = &mut self.cores[words.clone()];
        *has_core = merge(payload, set, core, weights)?;
        Ok(())
    }

    /// Makes zero what was pushed last of a chunk's values: what is left are those that were left out, for a later push
    /// (not in the paper's algorithm 1, which loses them; decision 21).
    pub fn clear_sent<E: Element>(&self, chunk: ChunkId, values: &mut [E]) {
        let Chunk { words, whole, .. } = &self.chunks[chunk.index()];
        let zero = E::from_f32(0.0);
        match whole {
            true => values.fill(zero),
            false => set::places(&self.sets[words.clone()]).for_each(|place| values[place] = zero),
        }
    }

    /// Breaks the core of a chunk, as a fault in memory would: for tests.
    #[doc(hidden)]
    pub fn break_core(&mut self, chunk: ChunkId) {
        self.cores[self.chunks[chunk.index()].words.start] ^= 1;
    }
}
