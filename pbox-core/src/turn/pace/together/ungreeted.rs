//! Newcomers (workers that join a running job) that lost their links before all their first weights had arrived.
//!
//! ```text
//!   the chunk is behind --links end--> Lost --the push again, too early--> Asked --the chunk has the weights--> answered
//!                                        |
//!                                        +--the chunk has the weights, then the push again--> answered
//! ```
//!
//! After it has reconnected, the worker pushes again the round before its first round, and gets one answer for this push.
//! If the chunk has the weights before this push arrives, the answer waits for the push. Otherwise the push's bytes could
//! arrive after the answer, and even after the next push.
//!
//! Owned by the core. Only the loss of a newcomer uses this memory: no push of a worker with links reads it.

use std::collections::BTreeSet;

/// The chunks whose first weights some ranks lack. A chunk is named by its index in the shard.
#[derive(Debug, Default)]
pub(super) struct Ungreeted {
    /// The ranks whose answer waits until they push the chunk again.
    lost: BTreeSet<(usize, u32)>,
    /// The ranks that have pushed the chunk again, and wait until the chunk has the weights.
    asked: BTreeSet<(usize, u32)>,
}

impl Ungreeted {
    /// Notes that a rank lost its links before the first weights of a chunk had arrived.
    pub fn lose(&mut self, place: usize, rank: u32) {
        self.asked.remove(&(place, rank));
        self.lost.insert((place, rank));
    }

    /// Whether the answer with a rank's first weights of a chunk waits for the rank's push.
    pub fn has_lost(&self, place: usize, rank: u32) -> bool {
        self.lost.contains(&(place, rank))
    }

    /// Notes that a rank asks for the first weights of a chunk, because it lost them. Returns false if the rank did not
    /// lose them.
    #[cold]
    #[inline(never)] // it may allocate, which the path of a chunk does not
    pub fn ask(&mut self, place: usize, rank: u32, are_there: bool) -> bool {
        let had_lost = self.lost.remove(&(place, rank));
        if had_lost && !are_there {
            self.asked.insert((place, rank));
        }
        had_lost
    }

    /// Returns whether a rank has asked for the first weights of a chunk. The chunk now has these weights.
    pub fn greet(&mut self, place: usize, rank: u32) -> bool {
        self.asked.remove(&(place, rank))
    }

    /// Forgets a rank.
    pub fn forget(&mut self, rank: u32) {
        self.lost.retain(|&(_, of)| of != rank);
        self.asked.retain(|&(_, of)| of != rank);
    }
}
