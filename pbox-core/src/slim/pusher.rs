//! One worker's end of Slim-DP: the significant set of each chunk, and the elements that the worker pushed last.
//!
//! Owned by the worker's windows. Depends on chunks and rounds, but not on keys or links. Allocates nothing after
//! [`Pusher::new`].

use std::ops::Range;

use crate::kernels::Element;
use crate::layout::{ChunkId, Round};

use super::explorer::Drawer;
use super::payload::{SlimPayloadError, merge, push_whole};
use super::{SlimDp, set};

/// One worker's end of Slim-DP.
#[derive(Debug)]
pub struct Pusher {
    slim: SlimDp,
    seed: u64,
    rank: u32,
    /// The first round that the job trains in.
    first: Round,
    chunks: Vec<Chunk>,
    /// The significant sets of all chunks.
    significant: Vec<u64>,
    /// One bit for each element of all chunks, which says whether the chunk's last push of a set had the element. A
    /// push of a whole chunk does not change the chunk's bits.
    sets: Vec<u64>,
}

#[derive(Debug)]
struct Chunk {
    /// The chunk's range of 64-bit words in the significant sets and in the pushed sets.
    words: Range<usize>,
    /// Whether the hub has selected a significant set, and the worker has the same set.
    is_selected: bool,
    /// Whether the last push had all values of the chunk.
    whole: bool,
    /// Whether the last push has no answer yet.
    is_open: bool,
}

impl Pusher {
    /// Creates the pusher for chunks with these numbers of elements, by id.
    pub fn new(slim: SlimDp, seed: u64, rank: u32, elements: impl Iterator<Item = usize>) -> Self {
        let mut end = 0;
        let chunk = |elements| {
            let start = end;
            end += set::words(elements);
            Chunk { words: start..end, is_selected: false, whole: false, is_open: false }
        };
        let chunks: Vec<Chunk> = elements.map(chunk).collect();
        Pusher { slim, seed, rank, first: Round(1), chunks, significant: vec![0; end], sets: vec![0; end] }
    }

    /// Begins at round `first`. There is no significant set until the first selection.
    pub fn begin(&mut self, first: Round) {
        self.first = first;
        self.chunks.iter_mut().for_each(|chunk| chunk.is_selected = false);
    }

    /// Whether a significant set is selected after a round. If so, the worker pushes all keys for this round before it
    /// pushes any key for the next round.
    pub fn selects(&self, round: Round) -> bool {
        self.slim.selects(round, self.first)
    }

    /// Writes the push of a chunk. Returns the length of the push, in bytes.
    pub fn push<E: Element>(
        &mut self,
        chunk: ChunkId,
        round: Round,
        values: &[E],
        payload: &mut [u8],
    ) -> usize {
        let whole = self.selects(round);
        let Pusher { slim, seed, rank, chunks, significant, sets, .. } = self;
        let of_chunk = &mut chunks[chunk.index()];
        of_chunk.whole = whole || !of_chunk.is_selected;
        of_chunk.is_open = true;
        if of_chunk.whole {
            return push_whole(values, payload);
        }
        let (significant, set) = (&significant[of_chunk.words.clone()], &mut sets[of_chunk.words.clone()]);
        slim.push_set(significant, set, Drawer { seed: *seed, rank: *rank, round, chunk }, values, payload)
    }

    /// Forgets a chunk's significant set, because the hub has another set. The worker then pushes the whole chunk until an
    /// answer brings a set. Returns false if the last push already had the whole chunk.
    pub fn forget_significant(&mut self, chunk: ChunkId) -> bool {
        let chunk = &mut self.chunks[chunk.index()];
        chunk.is_selected = false;
        !chunk.whole
    }

    /// Merges the answer to the last push of a chunk into the weights.
    ///
    /// # Errors
    /// Returns an error if the payload is not an answer to this push. Then nothing is changed.
    pub fn merge<E: Element>(
        &mut self,
        chunk: ChunkId,
        payload: &[u8],
        weights: &mut [E],
    ) -> Result<(), SlimPayloadError> {
        let Chunk { words, is_selected, whole, is_open } = &mut self.chunks[chunk.index()];
        let set = (!*whole).then_some(&self.sets[words.clone()]);
        let significant = &mut self.significant[words.clone()];
        *is_selected = merge(payload, set, significant, weights)?;
        *is_open = false;
        Ok(())
    }

    /// Whether the last push of a chunk has no answer.
    pub fn is_open(&self, chunk: ChunkId) -> bool {
        self.chunks[chunk.index()].is_open
    }

    /// Sets the values of a chunk's last push to zero. Values that were not pushed remain for a later push. (The paper's
    /// algorithm 1 loses these values; see `docs/design/codecs-and-slim-dp.md`.)
    pub fn clear_sent<E: Element>(&self, chunk: ChunkId, values: &mut [E]) {
        let Chunk { words, whole, .. } = &self.chunks[chunk.index()];
        let zero = E::from_f32(0.0);
        match whole {
            true => values.fill(zero),
            false => set::places(&self.sets[words.clone()]).for_each(|place| values[place] = zero),
        }
    }
}
