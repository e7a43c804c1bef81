//! Simulated crashes of hubs, by seed. Hubs write checkpoints on disks that fill up and fail. One hub dies, or
//! several die at once, at an arbitrary change of a file. Dead hubs start again with the files that a loss of power has
//! left ([`journal`]).
//!
//! The following always holds:
//!
//! - A job continues from one state that was written completely at all its hubs. It never continues from
//!   parts of several states, from damaged contents, or from a state whose writing failed.
//! - The state is never older than the last state that was reported as written, or from which the job has
//!   continued.
//! - So a job begins from zero only if none of its states was reported as written, or its files were removed.
//!   While the files are being removed, the job never continues from an older state than its newest.
//! - If a disk damages a file that was written, the state may be older. It is still one complete state, and
//!   no job begins from zero silently.
//! - After all faults, the next checkpoint is written.
//!
//! The test drives hubs of one job as the registry does, with the coordinator's [`Files`], [`may_write`] and
//! [`is_needed`].

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;

use coordinator::{Files, is_needed, may_write};
use fabric::Slab;
use pbox_core::control::WholeRounds;
use pbox_core::job::Schedule;
use pbox_core::{
    ChunkId, Key, Layout, Numbers, Optimizer, Piece, Restored, Round, Selection, Share, Snapshot,
    SnapshotPart, Tensor,
};

use self::journal::{Dice, End, Trouble, damage, in_trouble, take_away, tell};
use super::{CheckpointError, CheckpointStore, PartOf};

pub(super) mod journal;

const OPTIMIZER: Optimizer = Optimizer::Momentum { learning_rate: 0.5, weight_decay: 0.0, momentum: 0.5 };

/// A state that a job tried to write. All its values equal the index of the state plus one.
struct Written {
    round: Round,
    /// Whether writing failed, so that no file has this state.
    is_void: bool,
}

struct Job {
    name: &'static str,
    hubs: u32,
    round: Round,
    written: Vec<Written>,
    /// The last state that was reported as written, or from which the job has continued.
    floor: Option<usize>,
    /// Whether the files were removed, or their removal had begun.
    may_be_gone: bool,
    is_damaged: bool,
    /// The rounds of each hub's files.
    rounds: Vec<Vec<Round>>,
    /// The rounds of complete checkpoints of which each hub was notified.
    told: Vec<WholeRounds>,
    /// The files of which hub 0 was notified.
    files: Files,
}

impl Job {
    fn new(name: &'static str, hubs: u32) -> Self {
        let (round, written, floor) = (Round(0), Vec::new(), None);
        let mut job = Job {
            name,
            hubs,
            round,
            written,
            floor,
            may_be_gone: false,
            is_damaged: false,
            rounds: Vec::new(),
            told: Vec::new(),
            files: Files::default(),
        };
        job.begins(Round(0), no_files(hubs));
        job
    }

    fn share(&self, hub: usize) -> Share {
        Share { hub: hub as u32, hubs: self.hubs, ..Share::WHOLE }
    }

    /// Whether a file of this name belongs to the job.
    fn has(&self, file: &str) -> bool {
        file.ends_with(".safetensors") && file.split(['@', '.']).next() == Some(self.name)
    }

    fn begins(&mut self, round: Round, files: Files) {
        self.round = round;
        self.rounds = files.of_hubs().map(|(_, rounds)| rounds.to_vec()).collect();
        let of_hub = |(hub, rounds): (u32, &[Round])| Files::new([(hub, rounds.to_vec())]).whole();
        self.told = files.of_hubs().map(of_hub).collect();
        self.told[0] = files.whole();
        self.files = files;
    }

    /// Checks the state from which the job continues.
    fn goes_on(&mut self, state: Option<(Round, Vec<f32>)>) {
        tell(format!(
            "job {} continues from {:?}",
            self.name,
            state.as_ref().map(|(round, all)| (round.0, all[0]))
        ));
        let Some((round, values)) = state else {
            assert!(self.floor.is_none() || self.may_be_gone, "job {} begins from zero", self.name);
            return;
        };
        assert!(values.iter().all(|value| *value == values[0]), "job {}: a mixture {values:?}", self.name);
        let number = values[0] as usize - 1;
        let written = &self.written[number];
        assert!(!written.is_void, "job {}: state {number} was not written", self.name);
        assert_eq!(written.round, round, "job {}", self.name);
        assert!(self.floor <= Some(number), "job {}: older than state {:?}", self.name, self.floor);
        self.floor = Some(number);
    }
}

fn no_files(hubs: u32) -> Files {
    Files::new((0..hubs).map(|hub| (hub, Vec::new())))
}

struct Story {
    dice: Dice,
    home: tempfile::TempDir,
    keep: NonZeroU32,
    layout: Arc<Layout>,
    /// The store of each hub; `None` if the hub is dead.
    hubs: Vec<Option<CheckpointStore>>,
    jobs: Vec<Job>,
}

impl Story {
    fn new(seed: u64) -> Self {
        let mut dice = Dice(seed);
        let hubs = 1 + dice.below(3) as usize;
        let jobs = match hubs {
            1 => vec![Job::new("a", 1), Job::new("b", 1)],
            hubs => vec![Job::new("a", 1), Job::new("b", hubs as u32)],
        };
        let keep = NonZeroU32::new(1 + dice.below(3) as u32).unwrap();
        let layout = Arc::new(Layout::new(vec![Key::f32("w", [48]), Key::f32("v", [2])], 64).unwrap());
        let home = tempfile::tempdir_in("/dev/shm").unwrap(); // a disk would be too slow for thousands of files
        Story { dice, home, keep, layout, hubs: (0..hubs).map(|_| None).collect(), jobs }
    }

    fn dir(&self, hub: usize) -> PathBuf {
        self.home.path().join(format!("hub{hub}"))
    }

    fn pieces(&self, share: Share) -> Vec<Piece> {
        share.pieces(&self.layout, Schedule::default())
    }

    fn snapshot(&self, share: Share, round: Round, value: f32) -> Snapshot {
        let pieces = self.pieces(share);
        let chunks: Vec<ChunkId> =
            pieces.iter().flat_map(|piece| piece.chunks.clone().map(ChunkId)).collect();
        let elements: usize = pieces.iter().map(|piece| piece.elements.len()).sum();
        let mut values = Slab::zeroed("test", 2 * elements).unwrap();
        values.as_mut_slice().fill(value);
        let steps = vec![1; chunks.len()];
        let parts = vec![SnapshotPart { steps, squares: None, norm_mean: None, chunks, values }];
        let numbers = vec![(Round(0), Numbers::new(OPTIMIZER))];
        let of = (OPTIMIZER.into(), Selection::All);
        Snapshot::of_share(Arc::clone(&self.layout), pieces, of, round, numbers, parts).unwrap()
    }

    fn values(&self, share: Share, restored: &Restored) -> Vec<f32> {
        let all = self.pieces(share).into_iter().flat_map(|Piece { key, elements, .. }| {
            let tensors = [Tensor::Weights, Tensor::State(0)];
            tensors.map(|tensor| restored.tensor(key, tensor, elements.clone()).to_vec())
        });
        all.flatten().collect()
    }

    fn trouble(&mut self) -> Trouble {
        let dice = &mut self.dice;
        Trouble {
            death: dice.one_in(8).then(|| dice.below(16)),
            failure: dice.one_in(10).then(|| dice.below(12)),
            full: if dice.one_in(8) { 1 + dice.below(4) as u32 } else { 0 },
        }
    }

    /// Runs an action of a hub while faults occur. Returns `None` if the hub is dead or dies.
    fn does<T>(
        &mut self,
        hub: usize,
        trouble: Trouble,
        act: impl FnOnce(&Self, &CheckpointStore) -> T,
    ) -> Option<T> {
        let store = self.hubs[hub].take()?;
        let done = in_trouble(trouble, || act(self, &store));
        match done {
            Some(_) => self.hubs[hub] = Some(store),
            None => tell(format!("hub {hub} dies")),
        }
        done
    }

    /// Writes a checkpoint of a job at all its hubs. Returns whether the checkpoint was reported as written.
    fn saves(&mut self, job: usize, is_calm: bool) -> bool {
        let Job { name, hubs, round, .. } = self.jobs[job];
        let is_whole = hubs == 1;
        let more = if is_whole && round > Round(0) { self.dice.below(3) } else { 1 + self.dice.below(2) };
        let round = Round(round.0 + more as u32);
        let value = match !is_calm && self.dice.one_in(12) {
            true => f32::NAN,
            false => self.jobs[job].written.len() as f32 + 1.0,
        };
        self.jobs[job].round = round;
        self.jobs[job].written.push(Written { round, is_void: value.is_nan() });
        tell(format!("job {name} writes the state before round {} with {value}", round.0));
        let mut is_written = true;
        for hub in self.dice.order(hubs as usize) {
            let trouble = if is_calm { Trouble::default() } else { self.trouble() };
            let skips = !is_calm && !is_whole && self.dice.one_in(8);
            let of = &self.jobs[job];
            let (share, told) = (of.share(hub), of.told[hub].clone());
            if !is_whole && (skips || !may_write(&told, &of.rounds[hub])) {
                is_written = false;
                continue;
            }
            let saved = self.does(hub, trouble, |story, store| {
                store.save(name, share, &story.snapshot(share, round, value))?;
                match is_whole {
                    true => Ok(Vec::new()),
                    false => store.keep_parts(name, share, |round| is_needed(&told, round)),
                }
            });
            match saved {
                Some(Ok(kept)) => self.jobs[job].rounds[hub] = kept,
                Some(Err(why)) => {
                    tell(format!("  {why}"));
                    is_written = false;
                    let is_as_before =
                        matches!(why, CheckpointError::Save { kept, .. } if kept.contains("unchanged"));
                    self.jobs[job].written.last_mut().unwrap().is_void |= is_whole && is_as_before;
                }
                None => is_written = false,
            }
        }
        let job = &mut self.jobs[job];
        if is_written {
            job.floor = Some(job.written.len() - 1);
            job.may_be_gone = false;
            tell(format!("job {name}: written"));
        }
        // Some of the hubs' notices reach hub 0, and some of its answers reach the hubs.
        for hub in 0..hubs as usize {
            if self.hubs[0].is_some() && self.hubs[hub].is_some() && (is_calm || !self.dice.one_in(4)) {
                job.files.report(hub as u32, job.rounds[hub].clone());
                job.told[hub] = job.files.whole();
            }
        }
        is_written
    }

    /// Removes all files of one job of hub 0, which then begins from zero.
    fn removes(&mut self) {
        let trouble = self.trouble();
        let Some(Some(old)) =
            self.does(0, Trouble::default(), |_, store| store.old_jobs(&[]).unwrap().0.pop())
        else {
            return;
        };
        let job = self.jobs.iter().position(|job| job.name == old.name).unwrap();
        tell(format!("job {}: its files are removed", old.name));
        self.jobs[job].may_be_gone = true;
        if let Some(Ok(())) = self.does(0, trouble, |_, store| store.remove_job(old)) {
            self.jobs[job].begins(Round(0), no_files(1));
        } else {
            self.hubs[0] = None;
        }
    }

    /// Starts hubs with the files that are left, until all hubs run.
    fn starts(&mut self) {
        let mut tries = 0;
        while !self.try_to_start(tries == 3) {
            tries += 1;
        }
    }

    fn try_to_start(&mut self, is_calm: bool) -> bool {
        self.hubs.iter_mut().for_each(|hub| *hub = None);
        for hub in 0..self.hubs.len() {
            let how = if self.dice.one_in(3) { End::Kill } else { End::PowerLoss };
            tell(format!("hub {hub} ends by {how:?}"));
            journal::end(&self.dir(hub), how, &mut self.dice);
            if self.dice.one_in(16) {
                self.damages(hub);
            }
        }
        for hub in 0..self.hubs.len() {
            let trouble = if is_calm { Trouble::default() } else { self.trouble() };
            tell(format!("hub {hub} starts"));
            let dir = self.dir(hub);
            let Some(Ok(store)) = in_trouble(trouble, || CheckpointStore::open(dir)) else { return false };
            self.hubs[hub] = Some(store.keeping(self.keep).keeping_jobs(Some(NonZeroU32::MIN)));
        }
        (0..self.jobs.len()).all(|job| match self.jobs[job].hubs {
            1 => self.restores(job, is_calm),
            _ => self.restores_parts(job, is_calm),
        })
    }

    fn damages(&mut self, hub: usize) {
        let dir = self.dir(hub);
        let jobs = &mut self.jobs;
        let name = damage(&dir, &mut self.dice, |name| jobs.iter().any(|job| job.has(name)));
        let Some(name) = name else { return };
        for job in jobs.iter_mut().filter(|job| job.has(&name)) {
            job.is_damaged = true;
            job.floor = job.floor.map(|_| 0);
        }
    }

    /// Moves the job's files away, after a hub refused to start from them for a good reason.
    fn begins_anew(&mut self, job: usize) {
        let Job { floor, is_damaged, name, .. } = self.jobs[job];
        assert!(floor.is_none() || is_damaged, "job {name} cannot continue");
        for hub in 0..self.hubs.len() {
            take_away(&self.dir(hub), |file| self.jobs[job].has(file));
        }
        let job = &mut self.jobs[job];
        (job.floor, job.is_damaged) = (None, false);
        job.begins(Round(0), no_files(job.hubs));
    }

    fn restores(&mut self, job: usize, is_calm: bool) -> bool {
        let trouble = if is_calm { Trouble::default() } else { self.trouble() };
        let name = self.jobs[job].name;
        let loaded =
            self.does(0, trouble, |story, store| store.load(name, story.layout.keys(), &OPTIMIZER.into()));
        match loaded {
            None => return false,
            Some(Err(why)) => {
                tell(format!("  {why}"));
                self.begins_anew(job);
            }
            Some(Ok(loaded)) => {
                let restored = loaded.map(|loaded| loaded.restored);
                let state = restored.map(|state| (state.round(), self.values(Share::WHOLE, &state)));
                let job = &mut self.jobs[job];
                job.begins(state.as_ref().map_or(Round(0), |(round, _)| *round), no_files(1));
                job.goes_on(state);
            }
        }
        true
    }

    /// Loads the parts of the round that the coordinator has chosen, as `Registry::restore` does.
    fn restores_parts(&mut self, job: usize, is_calm: bool) -> bool {
        let (name, hubs) = (self.jobs[job].name, self.jobs[job].hubs as usize);
        let shares: Vec<Share> = (0..hubs).map(|hub| self.jobs[job].share(hub)).collect();
        let store = |hub: u32| self.hubs[hub as usize].as_ref().expect("all live");
        let rounds = |hub: u32| store(hub).rounds(name, shares[hub as usize]).unwrap();
        let mut files = Files::new((0..hubs as u32).map(|hub| (hub, rounds(hub))));
        let has_files = files.newest().is_some();
        let is_damaged =
            |hub: u32, round| store(hub).damage(name, shares[hub as usize], round).map(|why| why.is_some());
        let found = files.go_on(|round| {
            let damaged = (0..hubs as u32).map(|hub| Ok(is_damaged(hub, round)?.then_some(hub)));
            damaged.filter_map(Result::transpose).collect::<Result<_, CheckpointError>>()
        });
        let Some(round) = found.unwrap() else {
            match has_files {
                true => self.begins_anew(job),
                false => self.jobs[job].goes_on(None),
            }
            return true;
        };
        let mut values = Vec::new();
        for (hub, share) in shares.into_iter().enumerate() {
            let trouble = if is_calm { Trouble::default() } else { self.trouble() };
            let loaded = self.does(hub, trouble, |story, store| {
                let part = PartOf { job: name, share, pieces: &story.pieces(share) };
                let restored = store.load_part(part, round, story.layout.keys(), &OPTIMIZER.into())?;
                store.put_parts_aside(name, share, round)?;
                store.keep_parts(name, share, |kept| kept <= round)?;
                Ok::<_, CheckpointError>(story.values(share, &restored))
            });
            // In practice, a worker whose join failed joins again.
            let Some(Ok(part)) = loaded else { return false };
            values.extend(part);
        }
        let job = &mut self.jobs[job];
        job.begins(round, files);
        job.goes_on(Some((round, values)));
        true
    }

    fn run(&mut self) {
        for _ in 0..4 {
            self.starts();
            for _ in 0..1 + self.dice.below(8) {
                match self.dice.below(10) {
                    0 => self.removes(),
                    job => drop(self.saves(job as usize % self.jobs.len(), false)),
                }
            }
        }
        self.starts();
        for job in 0..self.jobs.len() {
            // The first save may fail, because a hub has not got all notices of the other hubs yet.
            assert!(self.saves(job, true) || self.saves(job, true), "job {job} is written");
        }
    }
}

#[test]
fn a_killed_hub_goes_on_from_what_was_said_to_be_written() {
    for seed in fabric::sim::seeds(600) {
        let _noting = journal::begin(seed % 4 != 3);
        Story::new(seed).run();
    }
}
