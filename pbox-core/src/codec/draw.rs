//! Where a codec's randomness comes from: a counter-based generator, so that two runs of a job give the same
//! bits on every transport, with any number of cores, in whatever order chunks come.

use crate::chunk::{ChunkId, Round};

/// What an encoding's randomness is drawn for. Equal draws are equal random numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draw {
    /// The job's.
    pub seed: u64,
    /// Who encodes; the hub takes a rank that no worker has.
    pub rank: u32,
    /// The round of the values. With warm-up also how far that is.
    pub round: Round,
    /// The chunk that they are of.
    pub chunk: ChunkId,
}
