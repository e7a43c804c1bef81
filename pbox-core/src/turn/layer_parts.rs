//! Layer parts: a key's chunks on one core, where a job's schedule answers them together or not at all.
//!
//! Owned by the core. Counts, for each worker, the chunks of a part that it may be sent; no link, no weights. A worker
//! pushes its keys whole, and is answered once for a push: so all that it may be sent of a part is of one round, its
//! own, whoever else comes or goes, and however far ahead of others it is.
//!
//! ```text
//!   layerwise:  ready, ready, ready: whole -> all chunks
//!   kvstore:                         whole -> notice;  the worker's pull -> all chunks
//! ```

use std::ops::Range;

use crate::layout::{Immediate, KeyId, Round};

/// The layer parts of a job on a core.
#[derive(Debug)]
pub(crate) struct Parts {
    /// Places in the shard: chunks are in the order of their ids, and so a key's are neighbours.
    parts: Vec<Range<u32>>,
    /// By place in the shard.
    of: Vec<u32>,
    workers: usize,
    /// By part, then by rank: chunks that this worker may be sent, and is not. Of a part that is whole all of them,
    /// until it is pulled.
    ready: Vec<u32>,
    pulled: bool,
}

/// What a worker's post means of a chunk whose part may be whole for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Pull {
    /// Nothing: it is not whole.
    None,
    /// The pull of all these places.
    Of(Range<usize>),
    /// It should have been the pull.
    Missing,
}

impl Parts {
    /// Of a shard's chunks, whose keys are these by place.
    pub fn new(keys: &[KeyId], workers: u32, pulled: bool) -> Self {
        let mut parts: Vec<Range<u32>> = Vec::new();
        let mut of = Vec::with_capacity(keys.len());
        for run in keys.chunk_by(|a, b| a == b) {
            let start = of.len() as u32;
            of.resize(of.len() + run.len(), parts.len() as u32);
            parts.push(start..start + run.len() as u32);
        }
        let workers = workers as usize;
        Parts { ready: vec![0; parts.len() * workers], parts, of, workers, pulled }
    }

    /// Whether weights are sent only when they are pulled.
    pub fn are_pulled(&self) -> bool {
        self.pulled
    }

    /// Worker `rank` may be sent the chunk at a place: all places of its part, when it is the last of them. They are sent
    /// now, or where they are [pulled](Self::are_pulled) it is notified.
    #[inline]
    pub fn ready(&mut self, place: usize, rank: u32) -> Option<Range<usize>> {
        let part = self.of[place] as usize;
        let Range { start, end } = self.parts[part];
        let ready = &mut self.ready[part * self.workers + rank as usize];
        *ready += 1;
        if *ready < end - start {
            return None;
        }
        if !self.pulled {
            *ready = 0;
        }
        Some(start as usize..end as usize)
    }

    /// What worker `rank`, which has pushed all rounds before `next` of the chunk at a place, means by a post of it. A
    /// pull names the first chunk of the part and the round before, as control messages do.
    #[inline]
    pub fn pull(&mut self, place: usize, rank: u32, next: Round, immediate: Immediate) -> Pull {
        let part = self.of[place] as usize;
        let Range { start, end } = self.parts[part];
        let ready = &mut self.ready[part * self.workers + rank as usize];
        if !self.pulled || *ready < end - start {
            return Pull::None;
        }
        let expected = Immediate::control(immediate.chunk, Round(next.0.wrapping_sub(1)));
        if place != start as usize || immediate != expected {
            return Pull::Missing;
        }
        *ready = 0;
        Pull::Of(start as usize..end as usize)
    }

    /// Nothing is ready for worker `rank`, which is gone.
    pub fn forget(&mut self, rank: u32) {
        self.ready.iter_mut().skip(rank as usize).step_by(self.workers).for_each(|ready| *ready = 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::ChunkId;

    const KEYS: [KeyId; 5] = [KeyId(0), KeyId(2), KeyId(2), KeyId(2), KeyId(5)];

    #[test]
    fn a_part_is_whole_for_each_worker_by_itself() {
        let mut parts = Parts::new(&KEYS, 2, false);
        for _ in 0..2 {
            assert_eq!(parts.ready(0, 0), Some(0..1));
            assert_eq!([3, 1].map(|place| parts.ready(place, 0)), [None, None]);
            assert_eq!([2, 3].map(|place| parts.ready(place, 1)), [None, None], "another worker's");
            assert_eq!([4, 2].map(|place| parts.ready(place, 0)), [Some(4..5), Some(1..4)]);
            assert_eq!(parts.ready(1, 1), Some(1..4));
        }
        parts.ready(1, 0);
        parts.forget(0);
        assert_eq!([3, 1, 2].map(|place| parts.ready(place, 0)), [None, None, Some(1..4)]);
    }

    #[test]
    fn a_pull_names_the_first_chunk_and_the_round_that_ended() {
        let mut parts = Parts::new(&KEYS, 2, true);
        let of_round = |round| Immediate::control(ChunkId(7), Round(round));
        let push = |round| Immediate::new(ChunkId(7), Round(round));
        parts.ready(1, 1);
        parts.ready(3, 1);
        assert_eq!(parts.pull(1, 1, Round(256), of_round(255)), Pull::None, "before the notice");
        assert_eq!(parts.ready(2, 1), Some(1..4));
        assert_eq!(parts.pull(1, 0, Round(256), of_round(255)), Pull::None, "another worker's");
        assert_eq!(parts.pull(2, 1, Round(256), of_round(255)), Pull::Missing, "not the first chunk");
        assert_eq!(parts.pull(1, 1, Round(256), of_round(254)), Pull::Missing, "another round's");
        assert_eq!(parts.pull(1, 1, Round(256), push(256)), Pull::Missing, "the next push");
        assert_eq!(parts.pull(1, 1, Round(256), push(255)), Pull::Missing, "the last push, once more");
        assert_eq!(parts.pull(1, 1, Round(256), of_round(255)), Pull::Of(1..4));
        assert_eq!(parts.pull(1, 1, Round(256), of_round(255)), Pull::None, "once");
    }
}
