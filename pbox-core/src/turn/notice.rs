//! The notices of a core to its owner.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::pace::Pace;
use crate::layout::ChunkId;
use crate::snapshot::Taken;

/// The number of a job at this hub. Numbers are never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct JobId(pub u64);

/// The counts of a core's work since it started. They are plain counters, which the thread publishes now and then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Pushes and pulls that arrived.
    pub arrivals: u64,
    /// The number of chunks that were summed and stepped. A chunk counts once a round, or with SSP and ASP once a push.
    pub chunks: u64,
    /// The bytes of the chunks that were summed and stepped.
    pub chunk_bytes: u64,
    /// Posts that had to wait, because their link had no room or its credit was used up.
    pub held_back: u64,
}

/// Counts of answers from the hubs above, taken when a job lost its links to these hubs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AnswersAbove {
    /// The number of answers since round 0, one for each chunk and round.
    pub came: u64,
    /// The number of sums that were sent to the hubs above and had no answer.
    pub awaited: u64,
}

impl AnswersAbove {
    /// Adds the answers of `chunks` chunks.
    pub(super) fn add(&mut self, pace: &impl Pace, chunks: usize) {
        for place in 0..chunks {
            let awaited = u64::from(pace.asked(place).is_some());
            self.awaited += awaited;
            // A chunk's round here is the round of its next sum.
            self.came += u64::from(pace.round(place).0) - awaited;
        }
    }
}

/// An event that the core's owner must know about.
#[allow(clippy::large_enum_variant)] // few notices wait, and a box would be an allocation in a core's turn
#[derive(Debug)]
pub enum Notice {
    /// A worker's link ended; it is detached in the next turn.
    WorkerGone {
        /// The job.
        job: JobId,
        /// The rank.
        rank: u32,
        /// The reason, in words.
        reason: String,
        /// Whether the link ended by itself. False if the worker broke the protocol.
        by_itself: bool,
    },
    /// A link to a hub above ended; it is detached in the next turn.
    AboveGone {
        /// The job.
        job: JobId,
        /// The reason, in words.
        reason: String,
    },
    /// The core has taken its part of a snapshot, or cannot take the part.
    Snapshot {
        /// The job.
        job: JobId,
        /// The result of the snapshot.
        taken: Taken,
    },
    /// All workers that took part in some rounds of a chunk have left or were lost. The job skips these rounds of the
    /// chunk.
    Skipped {
        /// The job.
        job: JobId,
        /// The chunk.
        chunk: ChunkId,
        /// The rounds, by number.
        rounds: Range<u32>,
    },
    /// A job cannot continue.
    JobFailed {
        /// The job.
        job: JobId,
        /// The reason, in words.
        reason: String,
    },
}
