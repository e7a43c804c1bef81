//! The whole gradient: a number that no core knows by itself, and that the steps of a round wait for.
//!
//! ```text
//!   core 0   sums of its chunks   squares of each block --+                       +-- scale --> steps
//!   core 1   sums of its chunks   squares of each block --+--> the last one adds --+-- scale --> steps
//! ```
//!
//! The cores of a hub share it. No lock and no allocation: a core writes the blocks of its chunks, then counts itself in. The
//! last one adds all blocks in the order of the model, so that the bits do not depend on cores or arrival, and wakes the
//! others. One round is open at a time: no chunk gets pushes of the next one before it has stepped.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;

use crate::kernels::oracle::{BLOCK_BYTES, clip_scale, norm};
use crate::layout::{ChunkId, Round};

/// The whole gradient of one round after the other, of one job at one hub.
#[derive(Debug)]
pub struct WholeGradient {
    /// The most that its norm may be.
    most: f32,
    /// The core of each part, once it is there.
    wakers: Vec<OnceLock<Waker>>,
    /// The number of each chunk's first block.
    first: Vec<usize>,
    /// The squares of each block, in the order of the model.
    blocks: Vec<AtomicU64>,
    /// A round, and how many parts are in of it: all, if it is found.
    given: AtomicU64,
    /// The last round that is found, and its scale.
    found: AtomicU64,
}

/// A round and 32 bits more.
fn pack(round: Round, low: u32) -> u64 {
    u64::from(round.0) << 32 | u64::from(low)
}

fn unpack(word: u64) -> (Round, u32) {
    (Round((word >> 32) as u32), word as u32)
}

/// The number of blocks of a chunk of this length in bytes.
pub fn blocks_of(bytes: usize) -> usize {
    bytes.div_ceil(BLOCK_BYTES)
}

impl WholeGradient {
    /// Makes one for chunks of these lengths in bytes, and for `parts` cores that own chunks.
    pub fn new(most: f32, parts: usize, chunks: impl Iterator<Item = usize>) -> Self {
        let mut blocks = 0;
        let first = |bytes| {
            blocks += blocks_of(bytes);
            blocks - blocks_of(bytes)
        };
        WholeGradient {
            most,
            wakers: (0..parts).map(|_| OnceLock::new()).collect(),
            first: chunks.map(first).collect(),
            blocks: (0..blocks).map(|_| AtomicU64::new(0)).collect(),
            given: AtomicU64::new(pack(Round(0), 0)),
            found: AtomicU64::new(pack(Round(u32::MAX), 0)),
        }
    }

    /// Notes what wakes the core of a part.
    pub fn wake(&self, part: usize, waker: Waker) {
        _ = self.wakers[part].set(waker);
    }

    /// The number of a chunk's first block.
    pub fn first_block(&self, chunk: ChunkId) -> usize {
        self.first[chunk.index()]
    }

    /// Takes the squares of one core's blocks in a round, by number of the block. Called once a round for each part.
    #[cold]
    #[inline(never)] // a locked instruction, which the path of a chunk does not have
    pub fn give(&self, round: Round, blocks: impl Iterator<Item = (usize, f64)>) {
        for (block, squares) in blocks {
            self.blocks[block].store(squares.to_bits(), Ordering::Relaxed);
        }
        let parts = self.wakers.len() as u32;
        let more = |word| match unpack(word) {
            (open, given) if open == round => Some(pack(round, given + 1)),
            _ => Some(pack(round, 1)),
        };
        // Release the blocks; acquire those of the others.
        let before = self.given.fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        let given = match before.map(unpack) {
            Ok((open, given)) if open == round => given + 1,
            _ => 1,
        };
        if given == parts {
            let squares = self.blocks.iter().map(|block| f64::from_bits(block.load(Ordering::Relaxed)));
            let scale = clip_scale(norm(squares), self.most);
            self.found.store(pack(round, scale.to_bits()), Ordering::Release);
            self.wakers.iter().filter_map(OnceLock::get).for_each(Waker::wake_by_ref);
        }
    }

    /// Takes one core's part of a round back. Returns false where the round is found, or will be in a moment.
    pub fn take_back(&self, round: Round) -> bool {
        let parts = self.wakers.len() as u32;
        let fewer = |word| match unpack(word) {
            (open, given) if open == round && given < parts => Some(pack(round, given - 1)),
            _ => None,
        };
        self.given.fetch_update(Ordering::AcqRel, Ordering::Acquire, fewer).is_ok()
    }

    /// The scale of a round, once it is found.
    #[inline]
    pub fn scale(&self, round: Round) -> Option<f32> {
        let (found, scale) = unpack(self.found.load(Ordering::Acquire));
        (found == round).then(|| f32::from_bits(scale))
    }

    /// Whether all parts of a round are in.
    pub fn is_whole(&self, round: Round) -> bool {
        unpack(self.given.load(Ordering::Acquire)) == (round, self.wakers.len() as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_is_found_with_its_last_part() {
        let whole = WholeGradient::new(1.0, 3, [1, BLOCK_BYTES + 4, 64].into_iter());
        assert_eq!([0, 1, 2].map(|chunk| whole.first_block(ChunkId(chunk))), [0, 1, 3]);
        whole.give(Round(1), [(3, 1.0)].into_iter());
        whole.give(Round(1), [(0, 4.0), (1, 4.0)].into_iter());
        assert!(whole.take_back(Round(1)));
        whole.give(Round(1), [(0, 8.0), (1, 4.0)].into_iter());
        assert_eq!((whole.scale(Round(1)), whole.is_whole(Round(1))), (None, false));
        whole.give(Round(1), [(2, 3.0)].into_iter());
        assert_eq!(whole.scale(Round(1)), Some(clip_scale(4.0, 1.0)));
        assert!(!whole.take_back(Round(1)), "it is found");
        whole.give(Round(7), [(3, 1.0)].into_iter());
        assert!(!whole.is_whole(Round(7)) && whole.scale(Round(7)).is_none(), "rounds may be left out");
        assert!(whole.take_back(Round(7)));
    }
}
