//! The disks of a job's hubs: each hub writes its part of each snapshot, or cannot, and a job goes on from the last round of which all
//! parts are there.

use std::collections::BTreeMap;
use std::sync::Arc;

use coordinator::{Files, is_needed, may_write};
use fabric::Slab;
use pbox_core::{ChunkId, Layout, Numbers, Placement, Restored, RestoredKey, Round, SnapshotPart};
use sim_tests::race::SGD;
use sim_tests::trouble::Dice;

/// The weights of chunks before a round.
type Part = BTreeMap<ChunkId, Vec<f32>>;

/// The disks of all hubs.
pub struct Disks {
    layout: Arc<Layout>,
    /// By hub that owns chunks, its chunks.
    chunks: Vec<Vec<ChunkId>>,
    /// By hub that owns chunks, the files by round.
    files: Vec<BTreeMap<Round, Part>>,
    /// The files as hub 0 hears of them.
    heard: Files,
    /// The parts of which some chunks are there.
    collected: BTreeMap<Round, Part>,
    /// The files that were not written.
    pub failures: usize,
}

impl Disks {
    /// Disks without files.
    pub fn new(layout: &Arc<Layout>, placement: &Placement, (hubs, cores): (u32, usize)) -> Self {
        let chunks = || (0..layout.chunks().len() as u32).map(ChunkId);
        let of_hub = |hub| chunks().filter(|&chunk| placement.owner(chunk) / cores == hub).collect();
        let chunks = (0..hubs as usize).map(of_hub).filter(|chunks: &Vec<_>| !chunks.is_empty());
        let chunks = Vec::from_iter(chunks);
        Disks {
            layout: Arc::clone(layout),
            files: vec![BTreeMap::new(); chunks.len()],
            chunks,
            heard: Files::default(),
            collected: BTreeMap::new(),
            failures: 0,
        }
    }

    /// Takes a core's part of a snapshot. A hub whose last part it is writes its file, if its disk works.
    pub fn take(&mut self, part: &SnapshotPart, before: Round, dice: &mut Dice) {
        let collected = self.collected.entry(before).or_default();
        let mut values = part.values.as_slice();
        for &chunk in &part.chunks {
            let of_chunk;
            (of_chunk, values) = values.split_at(self.layout.chunk(chunk).span.bytes / 4);
            collected.insert(chunk, of_chunk.to_vec());
        }
        for (hub, chunks) in self.chunks.iter().enumerate() {
            let is_last = chunks.iter().any(|chunk| part.chunks.contains(chunk));
            if !is_last || !chunks.iter().all(|chunk| collected.contains_key(chunk)) {
                continue;
            }
            let (files, whole) = (&mut self.files[hub], self.heard.whole());
            if dice.below(6) == 0 || !may_write(&whole, &Vec::from_iter(files.keys().copied())) {
                self.failures += 1;
                continue;
            }
            files.insert(before, chunks.iter().map(|chunk| (*chunk, collected[chunk].clone())).collect());
            files.retain(|&round, _| is_needed(&whole, round));
            // Hub 0 hears of it now, or with another one.
            if dice.below(3) > 0 {
                self.heard = heard(&self.files);
            }
        }
    }

    /// Returns the last state that all hubs have. Whatever was not written is lost, and so is what came behind.
    pub fn restore(&mut self) -> Option<Restored> {
        self.collected.clear();
        let last = heard(&self.files).whole().rounds.last().copied();
        self.files.iter_mut().for_each(|files| files.retain(|&round, _| Some(round) <= last));
        self.heard = heard(&self.files);
        let before = last?;
        let part: Part =
            self.files.iter().filter_map(|files| files.get(&before).cloned()).flatten().collect();
        let chunks = (0..self.layout.chunks().len() as u32).map(ChunkId);
        // Chunks are in the order of their keys.
        let all = Vec::from_iter(chunks.flat_map(|chunk| part[&chunk].iter().copied()));
        let mut values = Slab::zeroed("a state", all.len()).unwrap();
        values.as_mut_slice().copy_from_slice(&all);
        let mut next = 0;
        let key = |key: &pbox_core::Key| {
            let elements = key.elements().unwrap() as usize;
            next += elements;
            RestoredKey { elements: 0..elements, starts: vec![next - elements] }
        };
        let keys = self.layout.keys().iter().map(key).collect();
        Some(Restored::new(before, vec![(Round(0), Numbers::new(SGD))], values, keys))
    }
}

/// What hub 0 hears of the files of all hubs.
fn heard(files: &[BTreeMap<Round, Part>]) -> Files {
    Files::new((0..).zip(files).map(|(hub, files)| (hub, files.keys().copied().collect())))
}
