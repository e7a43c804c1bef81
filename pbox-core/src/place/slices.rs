//! Slices: the units in which a worker sends its keys. They are computed once. Pure functions.
//!
//! ```text
//!   key:      [chunk 0][chunk 1][chunk 2][chunk 3][chunk 4]
//!   core:          0        0        0        1        0
//!   sliced:   [------ 0 ------] [---1--] [---2--] [---3--]     at most two chunks each
//!   by layer: [------------ 0 ---------+---1--+----- 0 --]     one for each core
//! ```
//!
//! If the schedule is not by layer, a [group](crate::Layout::group) of keys that are sent together is a slice, too.

use std::ops::Range;

use super::placement::Placement;
use crate::job::Schedule;
use crate::layout::{ChunkId, KeyId, Layout};

/// A slice: consecutive chunks of one key that go to one core, or a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// The key; for a group its first key.
    pub key: KeyId,
    /// The core that owns the slice's chunks.
    pub core: usize,
    /// The slice's priority in a queue. The lowest number is sent first.
    pub priority: u32,
    /// The indices of the slice's chunks in the list of [`Slices::chunks`].
    chunks: Range<u32>,
}

/// A layout cut into slices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slices {
    schedule: Schedule,
    /// All chunks, slice by slice, and the ids of groups.
    chunks: Vec<ChunkId>,
    slices: Vec<Slice>,
    of_key: Vec<Range<u32>>,
    of_chunk: Vec<u32>,
    /// The number of each key's group, or [`NO_GROUP`], by key.
    groups: Vec<u32>,
    /// For each group, by number: the number of the group's slice. `None` if the group goes to several cores.
    of_group: Vec<Option<u32>>,
}

/// The value for a key that is in no group, or in a group that goes to several cores.
const NO_GROUP: u32 = u32::MAX;

impl Slices {
    /// Cuts a layout into slices of at most `slice_bytes`, or of one chunk if a chunk is larger. If the schedule is by
    /// layer, a slice has all of a key's chunks on a core.
    pub fn new(layout: &Layout, placement: &Placement, schedule: Schedule, slice_bytes: usize) -> Self {
        let mut slices = Slices {
            schedule,
            chunks: Vec::with_capacity(layout.chunks().len()),
            slices: Vec::new(),
            of_key: Vec::new(),
            of_chunk: vec![0; layout.chunks().len()],
            groups: vec![NO_GROUP; layout.keys().len()],
            of_group: vec![None; layout.groups().len()],
        };
        for key in (0..layout.keys().len() as u32).map(KeyId) {
            let first = slices.slices.len() as u32;
            let chunks = layout.key_chunks(key);
            let owned = chunks.clone().map(ChunkId).zip(placement.owners(chunks));
            if schedule.by_layer() {
                let mut parts = vec![Vec::new(); placement.cores()];
                owned.for_each(|(chunk, core)| parts[core].push(chunk));
                for (core, part) in parts.into_iter().enumerate() {
                    slices.add(key, core, part.into_iter());
                }
            } else {
                let mut rest = owned.peekable();
                while let Some((chunk, core)) = rest.next() {
                    let (mut slice, mut bytes) = (vec![chunk], layout.chunk(chunk).span.bytes);
                    while let Some((next, _)) = rest.next_if(|&(next, owner)| {
                        bytes += layout.chunk(next).span.bytes;
                        bytes <= slice_bytes && owner == core
                    }) {
                        slice.push(next);
                    }
                    slices.add(key, core, slice.into_iter());
                }
            }
            slices.of_key.push(first..slices.slices.len() as u32);
        }
        if !schedule.by_layer() {
            (0..layout.groups().len()).for_each(|number| slices.add_group(layout, placement, number));
        }
        slices
    }

    fn add_group(&mut self, layout: &Layout, placement: &Placement, number: usize) {
        let chunks = || layout.groups()[number].clone().map(ChunkId);
        let keys = || chunks().map(|chunk| layout.chunk(chunk).key);
        let (first, core) = (
            keys().next().expect("a group has chunks"),
            placement.owner(chunks().next().expect("a group has chunks")),
        );
        // A group is sent as one slice only if one core has all its keys. If hubs above place keys by layer, the keys
        // may be at different hubs.
        if placement.owners(layout.groups()[number].clone()).all(|owner| owner == core) {
            let slice = self.slices.len() as u32;
            self.of_group[number] = Some(slice);
            keys().for_each(|key| self.groups[key.index()] = number as u32);
            let at = self.chunks.len() as u32;
            self.chunks.push(layout.group_id(number));
            self.slices.push(Slice {
                key: first,
                core,
                priority: self.schedule.priority(first),
                chunks: at..at + 1,
            });
        }
    }

    /// Makes the worker send groups key by key, because the bytes on the wire are encoded.
    #[must_use]
    pub fn without_groups(mut self) -> Self {
        self.groups.fill(NO_GROUP);
        self.of_group.fill(None);
        self
    }

    /// Returns the number of a key's group. `None` if the key is in no group, or the group goes to several cores.
    #[inline]
    pub fn group(&self, key: KeyId) -> Option<u32> {
        Some(self.groups[key.index()]).filter(|&number| number != NO_GROUP)
    }

    /// Returns the number of each group's slice, by number of the group. `None` for a group that goes to several cores.
    pub fn of_group(&self) -> &[Option<u32>] {
        &self.of_group
    }

    fn add(&mut self, key: KeyId, core: usize, chunks: impl Iterator<Item = ChunkId>) {
        let start = self.chunks.len() as u32;
        self.chunks.extend(chunks);
        let chunks = start..self.chunks.len() as u32;
        for &chunk in &self.chunks[start as usize..] {
            self.of_chunk[chunk.index()] = self.slices.len() as u32;
        }
        if !chunks.is_empty() {
            self.slices.push(Slice { key, core, priority: self.schedule.priority(key), chunks });
        }
    }

    /// Returns the order in which slices are sent.
    pub fn schedule(&self) -> Schedule {
        self.schedule
    }

    /// Returns the number of slices.
    pub fn count(&self) -> usize {
        self.slices.len()
    }

    /// Returns the numbers of a key's slices.
    pub fn of_key(&self, key: KeyId) -> Range<u32> {
        self.of_key[key.index()].clone()
    }

    /// Returns the number of the slice that has this chunk.
    pub fn of_chunk(&self, chunk: ChunkId) -> u32 {
        self.of_chunk[chunk.index()]
    }

    /// Returns the core that owns a chunk.
    #[inline]
    pub fn core_of(&self, chunk: ChunkId) -> usize {
        self.slices[self.of_chunk(chunk) as usize].core
    }

    /// Returns a slice by its number.
    pub fn slice(&self, number: u32) -> &Slice {
        &self.slices[number as usize]
    }

    /// Returns a slice's chunks.
    pub fn chunks(&self, number: u32) -> &[ChunkId] {
        let Range { start, end } = self.slices[number as usize].chunks;
        &self.chunks[start as usize..end as usize]
    }

    /// Returns the number of slices that go to each of `cores` cores.
    pub fn by_core(&self, cores: usize) -> Vec<usize> {
        let mut counts = vec![0; cores];
        self.slices.iter().for_each(|slice| counts[slice.core] += 1);
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Key;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn slices_tile_the_keys(
            sizes in proptest::collection::vec(1u64..5000, 1..12),
            chunk_lines in 1usize..16,
            cores in 1usize..5,
            slice_bytes in 1usize..8192,
            schedule in 0..4usize,
        ) {
            let keys = sizes.iter().enumerate().map(|(i, &n)| Key::f32(format!("k{i}"), [n])).collect();
            let layout = Layout::new(keys, chunk_lines * 64).unwrap();
            let placement = Placement::new(&layout, cores);
            let schedule = Schedule::ALL[schedule];
            let slices = Slices::new(&layout, &placement, schedule, slice_bytes);
            for key in (0..sizes.len() as u32).map(KeyId) {
                let mut seen: Vec<u32> = Vec::new();
                let mut cores = Vec::new();
                for number in slices.of_key(key) {
                    let chunks = slices.chunks(number);
                    let bytes: usize = chunks.iter().map(|&chunk| layout.chunk(chunk).span.bytes).sum();
                    prop_assert!(schedule.by_layer() || chunks.len() == 1 || bytes <= slice_bytes);
                    for &chunk in chunks {
                        prop_assert_eq!(placement.owner(chunk), slices.slice(number).core);
                        prop_assert_eq!(slices.of_chunk(chunk), number);
                        seen.push(chunk.0);
                    }
                    prop_assert!(schedule.by_layer() || chunks.windows(2).all(|two| two[0].0 + 1 == two[1].0));
                    cores.push(slices.slice(number).core);
                }
                seen.sort_unstable();
                prop_assert_eq!(seen, layout.key_chunks(key).collect::<Vec<_>>());
                let parts = cores.len();
                cores.sort_unstable();
                cores.dedup();
                prop_assert!(!schedule.by_layer() || cores.len() == parts, "one part a core");
            }
            prop_assert_eq!(slices.by_core(cores).iter().sum::<usize>(), slices.count());
        }
    }
}
