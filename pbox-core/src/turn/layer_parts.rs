//! Layer parts. A layer part has all chunks of one key on one core. Schedules by layer send these chunks to a worker
//! only together.
//!
//! Owned by the core. [`LayerParts`] counts, for each worker, the chunks of a part that may be sent to the worker. This
//! module must not depend on links or weights.
//!
//! A worker pushes its keys whole, and gets one answer for a push. So all chunks of a part that may be sent to a worker
//! belong to one round: the worker's own round. Workers that join or leave, and the worker's lead, do not change this round.
//!
//! ```text
//!   layerwise:  ready, ready, ready: whole -> all chunks
//!   kvstore:                         whole -> notice;  the worker's pull -> all chunks
//! ```

use std::cmp::Ordering;
use std::ops::Range;

use crate::layout::KeyId;

/// The layer parts of a job on a core.
#[derive(Debug)]
pub(super) struct LayerParts {
    /// The indices of each part's chunks in the shard. Chunks are in the order of their ids, so a key's chunks are
    /// neighbours.
    parts: Vec<Range<u32>>,
    /// The number of each chunk's part, by the chunk's index in the shard.
    part_of: Vec<u32>,
    workers: usize,
    /// The number of chunks that may be sent to a worker and are not sent yet, by part, then by rank. If a part must be
    /// pulled, the number stays at the part's number of chunks until the worker pulls the part.
    ready: Vec<u32>,
    /// Whether the worker lost its links while some chunks of the part were ready and none was sent, in the order of
    /// `ready`. These chunks count again when the worker pushes them again.
    counts_again: Vec<bool>,
    pulled: bool,
}

/// The action when a chunk of a part may be sent to a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ready {
    /// Nothing is sent: other chunks of the part are not ready.
    NotYet,
    /// The chunks with all these indices must be sent.
    ToSend(Range<usize>),
    /// The worker gets a notice that it can pull the part whose first chunk has this index.
    ToPull(usize),
    /// The worker has pushed the chunk again before it pulled its part.
    NotPulled,
    /// The chunk was sent before with its part, and was lost. It must be sent again alone.
    Lost,
}

impl LayerParts {
    /// Creates the parts of a shard. `keys` are the keys of the shard's chunks, in order.
    pub fn new(keys: &[KeyId], workers: u32, pulled: bool) -> Self {
        let mut parts: Vec<Range<u32>> = Vec::new();
        let mut part_of = Vec::with_capacity(keys.len());
        for run in keys.chunk_by(|a, b| a == b) {
            let start = part_of.len() as u32;
            part_of.resize(part_of.len() + run.len(), parts.len() as u32);
            parts.push(start..start + run.len() as u32);
        }
        let workers = workers as usize;
        let counts = parts.len() * workers;
        LayerParts {
            ready: vec![0; counts],
            counts_again: vec![false; counts],
            parts,
            part_of,
            workers,
            pulled,
        }
    }

    /// Notes that the chunk at index `place` may be sent to worker `rank`.
    #[inline]
    pub fn ready(&mut self, place: usize, rank: u32) -> Ready {
        let part = self.part_of[place] as usize;
        let Range { start, end } = self.parts[part];
        let of_worker = part * self.workers + rank as usize;
        let ready = &mut self.ready[of_worker];
        *ready += 1;
        let whole = (*ready).cmp(&(end - start));
        if whole == Ordering::Equal {
            self.counts_again[of_worker] = false;
        }
        match whole {
            Ordering::Less => Ready::NotYet,
            Ordering::Greater => Ready::NotPulled,
            Ordering::Equal if self.pulled => Ready::ToPull(start as usize),
            Ordering::Equal => {
                *ready = 0;
                Ready::ToSend(start as usize..end as usize)
            }
        }
    }

    /// Notes that worker `rank` pushes the chunk at index `place` again, after a loss of links. If `now` is true, the
    /// chunk becomes ready only now. Otherwise the chunk was already ready before the loss.
    pub fn ready_again(&mut self, place: usize, rank: u32, now: bool) -> Ready {
        let part = self.part_of[place] as usize;
        let counts = now || self.counts_again[part * self.workers + rank as usize];
        if counts { self.ready(place, rank) } else { Ready::Lost }
    }

    /// Notes that worker `rank` has lost its links, and will push again all rounds that have no answer.
    pub fn unlink(&mut self, rank: u32) {
        for of_worker in (rank as usize..self.ready.len()).step_by(self.workers) {
            self.counts_again[of_worker] |= self.ready[of_worker] > 0;
            self.ready[of_worker] = 0;
        }
    }

    /// Handles worker `rank`'s pull of the part whose first chunk is at index `place`. If the worker may get all chunks of
    /// the part, returns their indices.
    pub fn pull(&mut self, place: usize, rank: u32) -> Option<Range<usize>> {
        let part = self.part_of[place] as usize;
        let Range { start, end } = self.parts[part];
        let ready = &mut self.ready[part * self.workers + rank as usize];
        if !self.pulled || *ready < end - start || place != start as usize {
            return None;
        }
        *ready = 0;
        Some(start as usize..end as usize)
    }

    /// Forgets worker `rank`, which has left or was lost.
    pub fn forget(&mut self, rank: u32) {
        for of_worker in (rank as usize..self.ready.len()).step_by(self.workers) {
            (self.ready[of_worker], self.counts_again[of_worker]) = (0, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: [KeyId; 5] = [KeyId(0), KeyId(2), KeyId(2), KeyId(2), KeyId(5)];

    #[test]
    fn a_part_is_whole_for_each_worker_by_itself() {
        let mut parts = LayerParts::new(&KEYS, 2, false);
        for _ in 0..2 {
            assert_eq!(parts.ready(0, 0), Ready::ToSend(0..1));
            assert_eq!([3, 1].map(|place| parts.ready(place, 0)), [Ready::NotYet, Ready::NotYet]);
            assert_eq!(
                [2, 3].map(|place| parts.ready(place, 1)),
                [Ready::NotYet, Ready::NotYet],
                "another worker's"
            );
            assert_eq!([4, 2].map(|place| parts.ready(place, 0)), [Ready::ToSend(4..5), Ready::ToSend(1..4)]);
            assert_eq!(parts.ready(1, 1), Ready::ToSend(1..4));
        }
        parts.ready(1, 0);
        parts.forget(0);
        assert_eq!([3, 1].map(|place| parts.ready(place, 0)), [Ready::NotYet, Ready::NotYet]);
        assert_eq!(parts.ready(2, 0), Ready::ToSend(1..4));
    }

    #[test]
    fn a_part_is_pulled_once_and_by_its_first_chunk() {
        let mut parts = LayerParts::new(&KEYS, 2, true);
        parts.ready(1, 1);
        parts.ready(3, 1);
        assert_eq!(parts.pull(1, 1), None, "before the notice");
        assert_eq!(parts.ready(2, 1), Ready::ToPull(1));
        assert_eq!(parts.pull(1, 0), None, "another worker's");
        assert_eq!(parts.pull(2, 1), None, "not the first chunk");
        assert_eq!(parts.pull(1, 1), Some(1..4));
        assert_eq!(parts.pull(1, 1), None, "once");
        assert_eq!([1, 2].map(|place| parts.ready(place, 1)), [Ready::NotYet, Ready::NotYet]);
        assert_eq!(parts.ready(3, 1), Ready::ToPull(1));
        assert_eq!(parts.ready(3, 1), Ready::NotPulled, "the next round, before the pull");
    }
}
