//! The disks of a job's hubs. Each hub writes its part of each snapshot, or fails to write it. A job continues from the
//! last round of which all hubs have written their parts.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::convert::Infallible;
use std::sync::Arc;

use coordinator::{Files, is_needed};
use fabric::Slab;
use pbox_core::control::WholeRounds;
use pbox_core::{
    ChunkId, ExactSum, Layout, NumbersByRound, Occasion, Optimizer, Placement, Restored, RestoredKey, Round,
    Selection, SnapshotPart, Tensors,
};
use sim_tests::counts::count;
use sim_tests::trouble::Dice;

use super::ledger::weights_of;
use super::life::Life;

/// The reason why a file is not written.
const FULL: &str = "the disk is full";

/// The occasion of the last state of a failed job. Its number is one that no other snapshot has.
const LAST: Occasion = Occasion::Asked(u64::MAX, Selection::All);

/// The weights of chunks before a round.
type Part = BTreeMap<ChunkId, Vec<f32>>;

/// The disks of all hubs.
pub struct Disks {
    layout: Arc<Layout>,
    /// The optimizer of the job.
    optimizer: Optimizer,
    /// The chunks of each hub that owns chunks.
    chunks: BTreeMap<u32, Vec<ChunkId>>,
    /// The files of each hub that owns chunks, by round.
    files: BTreeMap<u32, BTreeMap<Round, Part>>,
    /// The collected parts of snapshots that are not written yet, by hub and snapshot.
    collected: HashMap<(u32, Occasion), Part>,
    /// The sum of squares of the round before each collected snapshot. `of_files` has these sums for files, by the
    /// round of the file. Only a job with one hub has such sums.
    squares: HashMap<Occasion, ExactSum>,
    of_files: HashMap<Round, ExactSum>,
    /// The optimizer's hyperparameters in each file.
    numbers: HashMap<Round, NumbersByRound>,
    /// The files that were not written: the hub, and the round.
    failed: HashSet<(u32, Round)>,
}

impl Disks {
    /// Disks without files.
    pub fn new(
        layout: &Arc<Layout>,
        placement: &Placement,
        (hubs, cores): (u32, usize),
        optimizer: Optimizer,
    ) -> Self {
        let chunks = || (0..layout.chunks().len() as u32).map(ChunkId);
        let of_hub = |hub| chunks().filter(|&chunk| placement.owner(chunk) / cores == hub as usize).collect();
        let chunks =
            (0..hubs).map(|hub| (hub, of_hub(hub))).filter(|(_, chunks): &(_, Vec<_>)| !chunks.is_empty());
        let chunks = BTreeMap::from_iter(chunks);
        let files = chunks.keys().map(|&hub| (hub, BTreeMap::new())).collect();
        Disks {
            layout: Arc::clone(layout),
            optimizer,
            chunks,
            files,
            collected: HashMap::new(),
            squares: HashMap::new(),
            of_files: HashMap::new(),
            numbers: HashMap::new(),
            failed: HashSet::new(),
        }
    }

    /// Collects a core's part of its hub's snapshot.
    pub fn take(&mut self, part: &SnapshotPart, occasion: Occasion) {
        let hub = self.chunks.iter().find(|(_, chunks)| chunks.contains(&part.chunks[0])).expect("a hub").0;
        let elements: usize = part.chunks.iter().map(|&chunk| self.layout.chunk(chunk).span.bytes / 4).sum();
        let tensors = Tensors::from(self.optimizer).selected(occasion.selection()).count();
        assert_eq!(part.values.as_slice().len(), elements * tensors, "{occasion:?}: no other tensors");
        let collected = self.collected.entry((*hub, occasion)).or_default();
        if let Some(squares) = &part.squares {
            self.squares.entry(occasion).or_default().join(squares);
        }
        collected.extend(weights_of(&self.layout, part).map(|(chunk, weights)| (chunk, weights.to_vec())));
    }

    /// Writes the file of a hub's snapshot, if the disk works. Returns the rounds of the hub's files.
    pub fn write(
        &mut self,
        (hub, occasion): (u32, Occasion),
        (before, numbers): (Round, &NumbersByRound),
        whole: &WholeRounds,
        dice: &mut Dice,
    ) -> Result<Vec<Round>, String> {
        let part = self.collected.remove(&(hub, occasion)).expect("its parts are here");
        assert!(part.keys().eq(&self.chunks[&hub]), "hub {hub}: all parts are here");
        if dice.below(6) == 0 {
            count("files not written", 1);
            self.failed.insert((hub, before));
            return Err(FULL.to_owned());
        }
        if let Some(squares) = self.squares.remove(&occasion) {
            self.of_files.insert(before, squares);
        }
        self.numbers.insert(before, numbers.clone());
        let is_alone = self.files.len() == 1;
        let files = self.files.get_mut(&hub).expect("it owns chunks");
        files.insert(before, part);
        match is_alone {
            true => files.retain(|&round, _| round >= before || dice.below(2) == 0),
            false => files.retain(|&round, _| is_needed(whole, round)),
        }
        Ok(files.keys().copied().collect())
    }

    /// Writes a hub's part of the last state, if the disk works.
    pub fn write_last(
        &mut self,
        hub: u32,
        parts: &[SnapshotPart],
        of: (Round, &NumbersByRound),
        whole: &WholeRounds,
        dice: &mut Dice,
    ) -> Result<(), String> {
        parts.iter().for_each(|part| self.take(part, LAST));
        self.write((hub, LAST), of, whole, dice).map(drop)
    }

    /// Checks the reason `why` for an incomplete checkpoint: if it says that a disk was full, it must name a hub whose
    /// disk has failed.
    pub fn check_blamed(&self, before: Round, why: &str) {
        if let Some(hub) = why.strip_suffix(FULL) {
            let is_named =
                |failed: &u32| hub == format!("hub {failed} of the job has no part of the checkpoint: ");
            let named = self.files.keys().find(|hub| is_named(hub)).copied();
            let is_right = named.is_some_and(|hub| self.failed.contains(&(hub, before)));
            assert!(is_right, "before round {}: {why:?}, and {:?} have failed", before.0, self.failed);
        }
    }

    /// Loses the files of all hubs. Returns the files that are left.
    pub fn lose_all(&mut self) -> Files {
        self.files.values_mut().for_each(BTreeMap::clear);
        Files::new(self.files.keys().map(|&hub| (hub, Vec::new())))
    }

    /// Whether all hubs have written the state before this round, or before a later round.
    pub fn have_all(&self, since: Round) -> bool {
        let mut rounds = self.files.values().flat_map(|files| files.keys());
        rounds.any(|round| *round >= since && self.files.values().all(|files| files.contains_key(round)))
    }

    /// Returns the state from which the coordinator continues, the files that are left, and whether a file was damaged.
    /// Drops the parts that were not written yet, and the files of rounds after this state.
    pub fn restore(&mut self, dice: &mut Dice) -> (Option<Restored>, Files, bool) {
        self.collected.clear();
        self.squares.clear();
        let rounds = |files: &BTreeMap<Round, Part>| files.keys().copied().collect();
        let mut files = Files::new(self.files.iter().map(|(&hub, files)| (hub, rounds(files))));
        let mut is_damaged = false;
        let mut damaged = |_| {
            let hubs = self.files.keys().filter(|_| dice.below(20) == 0).copied();
            let hubs = Vec::from_iter(hubs);
            is_damaged |= !hubs.is_empty();
            Ok::<_, Infallible>(hubs)
        };
        let Ok(last) = files.go_on(&mut damaged);
        // If no round is complete, no file is kept, as if an operator had moved the files away. The job then begins
        // from zero.
        self.files.values_mut().for_each(|files| files.retain(|&round, _| Some(round) <= last));
        let left = Files::new(self.files.iter().map(|(&hub, files)| (hub, rounds(files))));
        let Some(before) = last else { return (None, left, is_damaged) };
        let part = self.files.values().filter_map(|files| files.get(&before).cloned()).flatten();
        let part = Part::from_iter(part);
        let chunks = (0..self.layout.chunks().len() as u32).map(ChunkId);
        // The chunks are in the order of their keys.
        let all = Vec::from_iter(chunks.flat_map(|chunk| part[&chunk].iter().copied()));
        let mut values = Slab::zeroed("a state", all.len()).unwrap();
        values.as_mut_slice().copy_from_slice(&all);
        let mut next = 0;
        let key = |key: &pbox_core::Key| {
            let elements = key.elements().unwrap() as usize;
            next += elements;
            // The steps of these jobs do not read the optimizer's state.
            RestoredKey { elements: 0..elements, starts: vec![next - elements; 2] }
        };
        let keys = self.layout.keys().iter().map(key).collect();
        let restored = Restored::new(before, self.numbers[&before].changes_from(before), values, keys);
        (Some(restored.with_last_squares(self.of_files.get(&before).copied())), files, is_damaged)
    }
}

impl Life {
    /// Writes files that are due. Each disk has its own speed, `writes_one_in`.
    pub fn write_files(&mut self) {
        let Life { job, disks, dice, .. } = self;
        for (hub, control) in (0..).zip(&mut job.hubs.hubs) {
            if control.has_file() && dice.below(self.writes_one_in[hub as usize]) == 0 {
                let numbers = control.job().numbers.clone();
                control.write(|occasion, before, whole| {
                    disks.write((hub, occasion), (before, &numbers), whole, dice)
                });
            }
            for (before, why) in control.files.not_whole.drain(..) {
                disks.check_blamed(before, &why);
            }
            if dice.below(8) == 0 {
                control.end_read();
            }
        }
        let whole = job.hubs.lead().files.whole;
        if let Some(whole) = whole.filter(|_| whole > self.said) {
            self.said = Some(whole);
            assert!(disks.have_all(whole), "not all hubs have the state before round {}", whole.0);
        }
    }

    /// Writes the parts of last states that are due, and checks them.
    pub fn write_last_states(&mut self) {
        let Life { job, disks, dice, ledger, .. } = self;
        for hub in 0..job.hubs.hubs.len() {
            let Some((parts, lowest, before)) = job.hubs.hubs[hub].last_due() else { continue };
            if dice.below(self.writes_one_in[hub]) > 0 {
                continue;
            }
            parts.iter().flatten().for_each(|part| ledger.check_last(part, lowest, before, job));
            let control = &mut job.hubs.hubs[hub];
            let numbers = control.job().numbers.clone();
            control.write_last(|before, parts, whole| {
                disks.write_last(hub as u32, parts, (before, &numbers), whole, dice)
            });
        }
    }
}
