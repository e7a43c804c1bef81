//! Chunk ids, rounds, and the immediate that carries both.
//!
//! ```text
//!   31            24 23                                    0
//!   [ round mod 256 ][ chunk id                            ]
//! ```
//!
//! The link says who sent it, so PHub's sender id is not needed; its bits hold the low end of the
//! round, by which a stale or repeated immediate is seen for what it is.

use fabric::Imm;
use serde::{Deserialize, Serialize};

/// The most chunks a job has: 24 bits; 512 GiB of model in chunks of 32 KiB.
pub const MAX_CHUNKS: u32 = 1 << 24;

/// The place of a chunk in its job's layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkId(pub u32);

impl ChunkId {
    /// The id as an index into per-chunk tables.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A synchronous step, counted from 0 for each chunk of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Round(pub u32);

impl Round {
    /// The round after this one.
    pub fn next(self) -> Round {
        Round(self.0.wrapping_add(1))
    }

    /// The part of the round that an immediate has room for.
    pub fn low_bits(self) -> u8 {
        self.0 as u8
    }
}

/// The decoded immediate of a push or of its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Immediate {
    /// Which chunk's bytes have arrived.
    pub chunk: ChunkId,
    /// The low bits of the round they belong to.
    pub round_bits: u8,
}

impl Immediate {
    /// For chunk `chunk` in round `round`. The layout has checked that the id fits.
    pub fn new(chunk: ChunkId, round: Round) -> Self {
        Immediate { chunk, round_bits: round.low_bits() }
    }

    /// A control message about the layer part that begins with chunk `chunk`, of round `round`: named half the
    /// numbers away, so that a push or an answer that comes twice or late is never taken for one, nor one for them.
    pub fn control(chunk: ChunkId, round: Round) -> Self {
        Immediate { chunk, round_bits: round.low_bits() ^ 0x80 }
    }

    /// As the fabric carries it.
    pub fn encode(self) -> Imm {
        debug_assert!(self.chunk.0 < MAX_CHUNKS);
        Imm(u32::from(self.round_bits) << 24 | self.chunk.0)
    }

    /// From the fabric; every value decodes, the chunk may not exist.
    pub fn decode(imm: Imm) -> Self {
        Immediate { chunk: ChunkId(imm.0 & (MAX_CHUNKS - 1)), round_bits: (imm.0 >> 24) as u8 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn immediates_survive_the_wire(chunk in 0..MAX_CHUNKS, round: u32) {
            let immediate = Immediate::new(ChunkId(chunk), Round(round));
            prop_assert_eq!(Immediate::decode(immediate.encode()), immediate);
        }

        #[test]
        fn control_messages_name_no_round_that_is_near(round: u32, near in 0..100u32) {
            let control = Immediate::control(ChunkId(5), Round(round)).round_bits;
            prop_assert_ne!(control, Round(round.wrapping_add(near)).low_bits());
            prop_assert_ne!(control, Round(round.wrapping_sub(near)).low_bits());
        }
    }
}
