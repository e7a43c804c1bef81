//! Layer parts: a key's chunks on one core, where a job's schedule answers them together or not at all.
//!
//! Owned by the core. Knows which of them are stepped and, with `kvstore`, who has been notified; no link.
//!
//! ```text
//!   layerwise:  stepped, stepped, stepped: whole -> all chunks to all
//!   kvstore:                               whole -> notice to all;  a worker's pull -> all chunks to it
//! ```

use std::ops::Range;

use crate::chunk::{Immediate, Round};
use crate::key::KeyId;

/// The layer parts of a job on a core.
#[derive(Debug)]
pub(crate) struct Parts {
    parts: Vec<Part>,
    /// By place in the shard.
    of: Vec<u32>,
    workers: usize,
    /// Where weights are pulled: by part and rank, whether a notice has been sent and not been answered.
    notified: Option<Vec<bool>>,
}

#[derive(Debug)]
struct Part {
    /// Places in the shard: chunks are in the order of their ids, and so a key's are neighbours.
    places: Range<u32>,
    /// Of these, those that are stepped in the round that is under way.
    stepped: u32,
}

/// What a post means of a chunk whose worker has been notified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Pull {
    /// Nothing: it has not been.
    None,
    /// The pull of all these places.
    Of(Range<usize>),
    /// It should have been the pull.
    Missing,
}

impl Parts {
    /// Of a shard's chunks, whose keys are these by place.
    pub fn new(keys: &[KeyId], workers: u32, pulled: bool) -> Self {
        let mut parts: Vec<Part> = Vec::new();
        let mut of = Vec::with_capacity(keys.len());
        for (place, run) in keys.chunk_by(|a, b| a == b).scan(0, |next, run| {
            let place = *next;
            *next += run.len() as u32;
            Some((place, run.len() as u32))
        }) {
            of.resize(of.len() + run as usize, parts.len() as u32);
            parts.push(Part { places: place..place + run, stepped: 0 });
        }
        let workers = workers as usize;
        let notified = pulled.then(|| vec![false; parts.len() * workers]);
        Parts { parts, of, workers, notified }
    }

    /// Whether weights are sent only when they are pulled.
    pub fn are_pulled(&self) -> bool {
        self.notified.is_some()
    }

    /// The chunk at a place is stepped: all places of its part, when it is the last of them.
    pub fn step(&mut self, place: usize) -> Option<Range<usize>> {
        let part = &mut self.parts[self.of[place] as usize];
        part.stepped += 1;
        let Range { start, end } = part.places;
        if part.stepped < end - start {
            return None;
        }
        part.stepped = 0;
        Some(start as usize..end as usize)
    }

    /// Worker `rank` is notified of the part that begins at a place.
    pub fn notify(&mut self, place: usize, rank: u32) {
        let index = self.of[place] as usize * self.workers + rank as usize;
        if let Some(notified) = &mut self.notified {
            notified[index] = true;
        }
    }

    /// What worker `rank` means by a post of the chunk at a place, which is in `round` now. A pull names the first
    /// chunk of the part and the round that has just ended, as control messages do.
    pub fn pull(&mut self, place: usize, rank: u32, round: Round, immediate: Immediate) -> Pull {
        let part = self.of[place] as usize;
        let Some(notified) = &mut self.notified else { return Pull::None };
        let notified = &mut notified[part * self.workers + rank as usize];
        if !*notified {
            return Pull::None;
        }
        let Range { start, end } = self.parts[part].places;
        let expected = Immediate::control(immediate.chunk, Round(round.0.wrapping_sub(1)));
        if place != start as usize || immediate != expected {
            return Pull::Missing;
        }
        *notified = false;
        Pull::Of(start as usize..end as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunk::ChunkId;

    const KEYS: [KeyId; 5] = [KeyId(0), KeyId(2), KeyId(2), KeyId(2), KeyId(5)];

    #[test]
    fn a_part_is_whole_when_its_last_chunk_is_stepped() {
        let mut parts = Parts::new(&KEYS, 2, false);
        for _ in 0..2 {
            assert_eq!(parts.step(0), Some(0..1));
            assert_eq!([3, 1, 4, 2].map(|place| parts.step(place)), [None, None, Some(4..5), Some(1..4)]);
        }
    }

    #[test]
    fn a_pull_names_the_first_chunk_and_the_round_that_ended() {
        let mut parts = Parts::new(&KEYS, 2, true);
        let of_round = |round| Immediate::control(ChunkId(7), Round(round));
        let push = |round| Immediate::new(ChunkId(7), Round(round));
        assert_eq!(parts.pull(1, 1, Round(256), of_round(255)), Pull::None, "before the notice");
        parts.notify(1, 1);
        assert_eq!(parts.pull(1, 0, Round(256), of_round(255)), Pull::None, "another worker's");
        assert_eq!(parts.pull(2, 1, Round(256), of_round(255)), Pull::Missing, "not the first chunk");
        assert_eq!(parts.pull(1, 1, Round(256), of_round(254)), Pull::Missing, "another round's");
        assert_eq!(parts.pull(1, 1, Round(256), push(256)), Pull::Missing, "the next push");
        assert_eq!(parts.pull(1, 1, Round(256), push(255)), Pull::Missing, "the last push, once more");
        assert_eq!(parts.pull(1, 1, Round(256), of_round(255)), Pull::Of(1..4));
        assert_eq!(parts.pull(1, 1, Round(256), of_round(255)), Pull::None, "once");
    }
}
