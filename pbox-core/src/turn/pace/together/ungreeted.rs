//! Newcomers that lost their links before they had all their first weights.
//!
//! ```text
//!   the chunk is behind --links end--> Lost --the push again, too early--> Asked --the chunk has come there--> answered
//!                                       |
//!                                       +--the chunk has come there, then the push again--> answered
//! ```
//!
//! A worker with other links pushes the round before its first one again, and gets one answer for it. A chunk that arrives
//! there before this push holds the answer back: the worker's bytes could arrive after the answer, and so after the next push.
//!
//! Owned by the core. Memory for a newcomer's loss only: no push of a worker with links looks here.

use std::collections::BTreeSet;

/// The chunks, by place, whose first weights some ranks lack.
#[derive(Debug, Default)]
pub(super) struct Ungreeted {
    /// The ranks that have not pushed the chunk again.
    lost: BTreeSet<(usize, u32)>,
    /// The ranks that have pushed the chunk again, before the weights were there.
    asked: BTreeSet<(usize, u32)>,
}

impl Ungreeted {
    /// Notes that a rank lost its links before the first weights of a chunk had arrived.
    pub fn lose(&mut self, place: usize, rank: u32) {
        self.asked.remove(&(place, rank));
        self.lost.insert((place, rank));
    }

    /// Whether a rank's first weights of a chunk are kept back.
    pub fn has_lost(&self, place: usize, rank: u32) -> bool {
        self.lost.contains(&(place, rank))
    }

    /// Notes that a rank asks for the first weights of a chunk, because it lost them. Returns false if it did not lose them.
    #[cold]
    #[inline(never)] // it may allocate, which the path of a chunk does not
    pub fn ask(&mut self, place: usize, rank: u32, are_there: bool) -> bool {
        let had_lost = self.lost.remove(&(place, rank));
        if had_lost && !are_there {
            self.asked.insert((place, rank));
        }
        had_lost
    }

    /// Returns whether a rank waits for the first weights of a chunk, which have now arrived.
    pub fn greet(&mut self, place: usize, rank: u32) -> bool {
        self.asked.remove(&(place, rank))
    }

    /// Forgets a rank.
    pub fn forget(&mut self, rank: u32) {
        self.lost.retain(|&(_, of)| of != rank);
        self.asked.retain(|&(_, of)| of != rank);
    }
}
