//! A core's part of a snapshot, while the part is taken. Each chunk is copied right after its last step before the
//! snapshot's round, while the chunk is in the cache.
//!
//! Owned by the core. Names chunks by their index in the shard, and does not depend on files.

use std::num::NonZeroU32;
use std::ops::Range;

use fabric::Slab;
use serde::{Deserialize, Serialize};

use super::part::SnapshotPart;
use crate::kernels::{Selection, Tensors};
use crate::layout::{ChunkId, Round};
use crate::whole::{ExactSum, NormMean};

/// The reason for a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Occasion {
    /// A snapshot is due before this round.
    Due(Round),
    /// A client asked for the snapshot of these tensors. Each request has a number.
    Asked(u64, Selection),
    /// A reader asked for a round that may be far ahead. Each request has a number, as with `Asked`. Any other snapshot
    /// may replace this one until a chunk has reached the round.
    Ahead(u64, Selection),
}

impl Occasion {
    /// Returns the tensors that the snapshot has.
    pub fn selection(&self) -> Selection {
        match *self {
            Occasion::Due(_) => Selection::All,
            Occasion::Asked(_, selection) | Occasion::Ahead(_, selection) => selection,
        }
    }
}

/// The result of one core's part of a snapshot.
#[derive(Debug)]
pub struct Taken {
    /// The reason for the snapshot.
    pub occasion: Occasion,
    /// The round before which the state was taken.
    pub before: Round,
    /// The last round of a range, if one result reports that several due snapshots were not taken. Their rounds go from
    /// `before` to this round.
    pub through: Option<Round>,
    /// The part, or the reason why there is none.
    pub part: Result<SnapshotPart, String>,
}

#[derive(Debug)]
struct Current {
    occasion: Occasion,
    before: Round,
    values: Slab,
    /// The number of steps of each copied chunk, by the chunk's index in the shard.
    steps: Vec<Option<u32>>,
    /// Chunks that are not copied yet.
    left: usize,
}

/// The snapshots of a shard, one at a time.
#[derive(Debug)]
pub(crate) struct Capture {
    chunks: Vec<ChunkId>,
    /// The elements of all chunks.
    elements: usize,
    tensors: Tensors,
    every: Option<NonZeroU32>,
    /// Whether the job is over several hubs.
    is_over_hubs: bool,
    /// The next round before which a snapshot is due.
    due: Round,
    /// One of `2^spread` due snapshots is taken. In a job over several hubs, `spread` grows when the disk is too slow. The
    /// hubs then take the same rounds, although their disks differ: a checkpoint needs the same round from all hubs.
    spread: u32,
    /// The number of snapshots that began in time since `spread` changed.
    in_time: u32,
    /// Whether the snapshot that is in progress, or that is being written, was due. A snapshot for a reader does not
    /// show that the disk is slow.
    is_due: bool,
    current: Option<Current>,
    /// Whether a part was given to the writer of files. The writer will return the part's memory.
    is_being_written: bool,
    spare: Option<Slab>,
    /// Results that wait for the core's owner.
    taken: Vec<Taken>,
}

/// A round that no job reaches.
const NEVER: Round = Round(u32::MAX);

/// The largest value of [`Capture::spread`].
const MOST_SPREAD: u32 = 10;

/// The number of snapshots that must begin in time before the hub takes more of the due snapshots.
const IN_TIME: u32 = 8;

impl Capture {
    /// Creates the snapshots of `chunks`, whose elements have these tensors. A snapshot is due every `every` rounds,
    /// first after round `first`. `is_over_hubs` says whether the job is over several hubs.
    pub fn new(
        chunks: Vec<ChunkId>,
        (elements, tensors): (usize, Tensors),
        (every, is_over_hubs): (Option<NonZeroU32>, bool),
        first: Round,
    ) -> Self {
        let mut taking = Capture {
            chunks,
            elements,
            tensors,
            every,
            is_over_hubs,
            due: NEVER,
            spread: 0,
            in_time: 0,
            is_due: false,
            current: None,
            is_being_written: false,
            spare: None,
            taken: Vec::new(),
        };
        taking.begin_at(first);
        taking
    }

    /// Begins the job with round `first`.
    pub fn begin_at(&mut self, first: Round) {
        let after = |every: NonZeroU32| Round((first.0 / every + 1).saturating_mul(every.get()));
        self.due = self.every.map_or(NEVER, after);
    }

    /// Returns a part in newly allocated memory. `copy` writes the values and the number of steps of each chunk.
    pub fn apart(&self, copy: impl FnOnce(&mut [f32], &mut [u32])) -> Result<SnapshotPart, String> {
        let values = Slab::zeroed("a last state", self.range(Selection::All, &(0..self.elements)).end);
        let mut values = values.map_err(|error| error.to_string())?;
        let mut steps = vec![0; self.chunks.len()];
        copy(values.as_mut_slice(), &mut steps);
        Ok(SnapshotPart { chunks: self.chunks.clone(), values, steps, squares: None, norm_mean: None })
    }

    /// Returns the range of these elements' values, in a part that has the selected tensors.
    pub fn range(&self, selection: Selection, elements: &Range<usize>) -> Range<usize> {
        let tensors = self.tensors.selected(selection).count();
        elements.start * tensors..elements.end * tensors
    }

    /// Whether a chunk that has reached `round` must be copied into a snapshot.
    #[inline]
    pub fn concerns(&self, round: Round) -> bool {
        round == self.due || self.current.as_ref().is_some_and(|current| current.before == round)
    }

    /// Returns the rounds before which a chunk must be copied when it passes from one round to a later round without a
    /// step. At most two rounds are returned, however many were passed. If several snapshots are due, only the first is
    /// taken.
    pub fn pass(&self, was: Round, now: Round) -> impl Iterator<Item = Round> + use<> {
        let current = self.current.as_ref().map(|current| current.before);
        let of = [current, Some(self.due).filter(|_| current != Some(self.due))];
        of.into_iter().flatten().filter(move |&round| was < round && round <= now)
    }

    /// Notes that a chunk has passed all rounds before `now`. Snapshots that were due in between and have not begun are not
    /// taken.
    pub fn skip_to(&mut self, now: Round) {
        let Some(every) = self.every.map(NonZeroU32::get).filter(|_| self.due <= now) else { return };
        let before = self.due;
        let through = Round(before.0 + (now.0 - before.0) / every * every);
        self.due = Round(through.0.saturating_add(every));
        if !self.chunks.is_empty() {
            let why = "rounds were skipped, because no worker was left to push them".to_owned();
            let (occasion, through) = (Occasion::Due(before), Some(through));
            self.taken.push(Taken { occasion, before, through, part: Err(why) });
        }
    }

    /// Returns the room for a copy of the chunk at `place`, and the tensors to copy. The chunk has reached `round`.
    /// Returns `None` if the chunk is already copied: with SSP and ASP, a copied chunk may step again in the last round
    /// of a job.
    #[cold]
    pub fn room(
        &mut self,
        place: usize,
        round: Round,
        elements: &Range<usize>,
    ) -> Option<(&mut [f32], Selection)> {
        if round == self.due {
            let every = self.every.map_or(1, NonZeroU32::get);
            self.due = Round(round.0.saturating_add(every));
            self.begin_due(round, round.0 / every);
        }
        let of_round = |current: &&Current| current.before == round && current.steps[place].is_none();
        let selection = self.current.as_ref().filter(of_round)?.occasion.selection();
        let range = self.range(selection, elements);
        Some((&mut self.current.as_mut()?.values.as_mut_slice()[range], selection))
    }

    /// Begins snapshot `number`, which is due before this round. Skips the snapshot if `spread` leaves it out.
    fn begin_due(&mut self, round: Round, number: u32) {
        let of = 1 << self.spread;
        if !number.is_multiple_of(of) {
            let why = format!(
                "the disk is too slow to write every checkpoint that is due; the hub now writes one of every {of}"
            );
            self.taken.push(Taken {
                occasion: Occasion::Due(round),
                before: round,
                through: None,
                part: Err(why),
            });
        } else if self.begin(Occasion::Due(round), round) {
            (self.is_due, self.in_time) = (true, self.in_time + 1);
            if self.in_time == IN_TIME {
                (self.spread, self.in_time) = (self.spread.saturating_sub(1), 0);
            }
        } else if self.is_due && self.is_over_hubs {
            (self.spread, self.in_time) = ((self.spread + 1).min(MOST_SPREAD), 0);
        }
    }

    /// Notes that a chunk was copied to its [room](Self::room), and how many steps it has made. `squares` is the sum of the
    /// squared mean gradients in the round before the snapshot's round. `norm_mean` is over all norms before that round.
    pub fn copied(
        &mut self,
        place: usize,
        steps: u32,
        (squares, norm_mean): (Option<ExactSum>, Option<NormMean>),
    ) {
        let current = self.current.as_mut().expect("the chunk has room in a snapshot");
        current.left -= 1;
        current.steps[place] = Some(steps);
        if let Some(Current { occasion, before, values, steps, .. }) =
            self.current.take_if(|current| current.left == 0)
        {
            self.is_being_written = true;
            let steps = steps.into_iter().flatten().collect();
            let part = SnapshotPart { chunks: self.chunks.clone(), values, steps, squares, norm_mean };
            self.taken.push(Taken { occasion, before, through: None, part: Ok(part) });
        }
    }

    /// Begins a snapshot. Returns whether it has begun. If it cannot begin, because another snapshot is in progress or
    /// there is no memory, [`taken`](Self::taken) returns the reason.
    pub fn begin(&mut self, occasion: Occasion, before: Round) -> bool {
        if self.chunks.is_empty() {
            return false; // such a core has no part, and the hub expects none
        }
        let memory = self.memory(occasion.selection());
        let begins = memory.is_ok();
        match memory {
            Ok(values) => {
                let left = self.chunks.len();
                self.current = Some(Current { occasion, before, values, steps: vec![None; left], left });
            }
            Err(why) => self.taken.push(Taken { occasion, before, through: None, part: Err(why) }),
        }
        begins
    }

    fn memory(&mut self, selection: Selection) -> Result<Slab, String> {
        let yielded = self.yield_memory();
        if self.current.is_some() || self.is_being_written {
            return Err("the previous checkpoint is not written yet".into());
        }
        let values = self.range(selection, &(0..self.elements)).end;
        // The memory for all tensors also has room for one tensor.
        match yielded.or_else(|| self.spare.take()).and_then(|memory| memory.resized(values)) {
            Some(memory) => Ok(memory),
            None => Slab::zeroed("a snapshot", values).map_err(|error| error.to_string()),
        }
    }

    /// Gives up a snapshot of a future round if none of its chunks has been copied yet. Returns the snapshot's memory.
    fn yield_memory(&mut self) -> Option<Slab> {
        let all = self.chunks.len();
        let waits = |it: &mut Current| matches!(it.occasion, Occasion::Ahead(..)) && it.left == all;
        let Current { occasion, before, values, .. } = self.current.take_if(waits)?;
        let part = Err("another snapshot came before it".to_owned());
        self.taken.push(Taken { occasion, before, through: None, part });
        Some(values)
    }

    /// Takes back the memory of a part that was written or given up. Keeps the memory if further snapshots will be due.
    /// `values` is `None` if the memory is lost, or used by clients. Returns memory that is not needed.
    pub fn give_back(&mut self, values: Option<Slab>) -> Option<Slab> {
        (self.is_being_written, self.is_due) = (false, false);
        if self.every.is_some() { self.keep(Some(values?)) } else { values }
    }

    /// Keeps memory for the next snapshot: the memory of a part that clients have read. With `None`, keeps no memory, unless
    /// checkpoints will be due. Returns memory that is not needed.
    pub fn keep(&mut self, values: Option<Slab>) -> Option<Slab> {
        let Some(values) = values else {
            return if self.every.is_none() { self.spare.take() } else { None };
        };
        if self.spare.as_ref().is_some_and(|spare| spare.room() >= values.room()) {
            return Some(values);
        }
        self.spare.replace(values)
    }

    /// Whether there is a result for the owner.
    #[inline]
    pub fn has_taken(&self) -> bool {
        !self.taken.is_empty()
    }

    /// Returns the next result for the owner.
    pub fn taken(&mut self) -> Option<Taken> {
        self.taken.pop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::{Optimizer, Tensor};

    const MOMENTUM: Optimizer = Optimizer::Momentum { learning_rate: 0.1, weight_decay: 0.0, momentum: 0.9 };

    /// Returns the snapshots of two chunks with one element each, which have two tensors.
    fn every(rounds: u32, first: u32) -> Capture {
        let of = (2, Tensors::from(MOMENTUM));
        Capture::new(vec![ChunkId(3), ChunkId(4)], of, (NonZeroU32::new(rounds), true), Round(first))
    }

    /// Lets a chunk reach a round.
    fn reach(taking: &mut Capture, round: u32, place: usize) {
        if taking.concerns(Round(round))
            && let Some((values, _)) = taking.room(place, Round(round), &(place..place + 1))
        {
            values.fill(round as f32 + place as f32 / 10.0);
            taking.copied(place, 10 * round + place as u32, (None, None));
        }
    }

    #[test]
    fn a_part_holds_each_chunk_as_it_was_before_the_round() {
        let mut taking = every(5, 0);
        for round in 1..=5 {
            reach(&mut taking, round, 0);
        }
        assert!(taking.taken().is_none(), "the other chunk is behind");
        reach(&mut taking, 6, 0);
        for round in 1..=5 {
            reach(&mut taking, round, 1);
        }
        let Taken { occasion, before, part, .. } = taking.taken().unwrap();
        assert_eq!((occasion, before), (Occasion::Due(Round(5)), Round(5)));
        let part = part.unwrap();
        assert_eq!(part.values.as_slice(), [5.0, 5.0, 5.1, 5.1]);
        assert_eq!(part.steps, [50, 51], "those that made these values");
        taking.give_back(Some(part.values));
        (0..2).for_each(|place| reach(&mut taking, 10, place));
        let Taken { before, part, .. } = taking.taken().unwrap();
        assert_eq!((before, part.is_ok()), (Round(10), true));
        taking.give_back(None);
        (0..2).for_each(|place| reach(&mut taking, 15, place));
        assert_eq!(taking.taken().unwrap().part.unwrap().values.as_slice(), [15.0, 15.0, 15.1, 15.1]);
    }

    /// A chunk may step again after it has reached the snapshot's round, in the last round of a job with SSP or ASP.
    #[test]
    fn a_chunk_is_copied_once() {
        let mut taking = every(5, 0);
        reach(&mut taking, 5, 0);
        assert!(taking.concerns(Round(5)) && taking.room(0, Round(5), &(0..1)).is_none());
        assert!(taking.taken().is_none(), "the other chunk is not copied");
        reach(&mut taking, 5, 1);
        assert_eq!(taking.taken().unwrap().part.unwrap().values.as_slice(), [5.0, 5.0, 5.1, 5.1]);
    }

    #[test]
    fn one_at_a_time() {
        let mut taking = every(2, 7);
        (0..2).for_each(|place| reach(&mut taking, 8, place));
        let first = taking.taken().unwrap().part.unwrap();
        (0..2).for_each(|place| reach(&mut taking, 10, place));
        let skipped = taking.taken().unwrap();
        assert_eq!(skipped.occasion, Occasion::Due(Round(10)));
        assert!(skipped.part.unwrap_err().contains("not written"));
        assert!(taking.taken().is_none(), "said once");
        taking.begin(Occasion::Asked(1, Selection::All), Round(11));
        assert!(taking.taken().unwrap().part.is_err());
        taking.give_back(Some(first.values));
        taking.begin(Occasion::Asked(2, Selection::All), Round(11));
        (0..2).for_each(|place| reach(&mut taking, 11, place));
        assert_eq!(taking.taken().unwrap().part.unwrap().values.as_slice(), [11.0, 11.0, 11.1, 11.1]);
    }

    #[test]
    fn the_next_snapshot_is_in_memory_that_clients_have_read() {
        let mut taking = Capture { every: None, ..every(5, 0) };
        let taken = |taking: &mut Capture, selection| {
            taking.begin(Occasion::Asked(1, selection), Round(3));
            (0..2).for_each(|place| reach(taking, 3, place));
            assert!(taking.give_back(None).is_none());
            taking.taken().unwrap().part.unwrap().values
        };
        let all = taken(&mut taking, Selection::All);
        let weights = taken(&mut taking, Selection::One(Tensor::Weights));
        let start = all.as_slice().as_ptr();
        assert!(taking.keep(Some(weights)).is_none());
        let smaller = taking.keep(Some(all)).expect("the smaller memory is not needed");
        assert!(taking.keep(Some(smaller)).is_some());
        let again = taken(&mut taking, Selection::One(Tensor::Weights));
        assert_eq!(again.as_slice().as_ptr(), start);
        assert_ne!(taken(&mut taking, Selection::All).as_slice().as_ptr(), start, "it is used once");
        assert!(taking.keep(None).is_none());
        assert!(taking.keep(Some(again)).is_none());
        assert_eq!(taking.keep(None).expect("no client reads any more").as_slice().as_ptr(), start);
    }

    #[test]
    fn the_memory_for_checkpoints_is_kept() {
        let mut taking = every(5, 0);
        taking.begin(Occasion::Asked(1, Selection::All), Round(3));
        (0..2).for_each(|place| reach(&mut taking, 3, place));
        let values = taking.taken().unwrap().part.unwrap().values;
        assert!(taking.give_back(Some(values)).is_none());
        assert!(taking.keep(None).is_none());
    }

    /// Returns the rounds of the snapshots of a core. `slow` is the number of rounds in which the disk writes a snapshot.
    fn rounds(count: u32, is_over_hubs: bool, slow: impl Fn(u32) -> u32) -> Vec<u32> {
        let mut taking = Capture { is_over_hubs, ..every(10, 0) };
        let (mut written, mut rounds) = (None, Vec::new());
        for round in 1..=count {
            if let Some((values, _)) = written.take_if(|&mut (_, at)| at <= round) {
                taking.give_back(Some(values));
            }
            (0..2).for_each(|place| reach(&mut taking, round, place));
            while let Some(Taken { before, part, .. }) = taking.taken() {
                if let Ok(part) = part {
                    rounds.push(before.0);
                    written = Some((part.values, round + slow(round)));
                }
            }
        }
        rounds
    }

    /// A job over several hubs continues from a round that all hubs have.
    #[test]
    fn slow_disks_of_different_speed_get_the_same_rounds() {
        let all = [25, 31, 44].map(|slow| rounds(2000, true, |_| slow));
        for pair in all.windows(2) {
            assert!(pair[1].iter().all(|round| pair[0].contains(round)), "{pair:?}");
        }
        assert!(all.iter().all(|rounds| rounds.len() > 20), "{all:?}");
        let soon_fast = rounds(2000, true, |round| if round < 500 { 45 } else { 5 });
        assert!((1500..=2000).step_by(10).all(|round| soon_fast.contains(&round)), "{soon_fast:?}");
    }

    #[test]
    fn a_job_at_one_hub_has_all_that_the_disk_can_write() {
        assert_eq!(rounds(200, false, |_| 25), [10, 40, 70, 100, 130, 160, 190]);
    }

    #[test]
    fn a_reader_that_has_the_memory_does_not_count_as_a_slow_disk() {
        let mut taking = every(5, 0);
        for round in [5, 10, 15, 20] {
            assert!(taking.begin(Occasion::Asked(1, Selection::All), Round(round - 1)));
            (0..2).for_each(|place| reach(&mut taking, round - 1, place));
            let read = taking.taken().unwrap().part.unwrap();
            (0..2).for_each(|place| reach(&mut taking, round, place));
            assert!(taking.taken().unwrap().part.is_err());
            taking.give_back(Some(read.values));
        }
        (0..2).for_each(|place| reach(&mut taking, 25, place));
        assert!(taking.taken().unwrap().part.is_ok());
    }

    #[test]
    fn a_snapshot_of_a_round_ahead_gives_way_until_it_has_a_chunk() {
        let mut taking = every(5, 0);
        assert!(taking.begin(Occasion::Ahead(1, Selection::All), Round(7)));
        reach(&mut taking, 5, 0);
        let Taken { occasion, part, .. } = taking.taken().unwrap();
        assert_eq!(
            (occasion, part.unwrap_err().as_str()),
            (Occasion::Ahead(1, Selection::All), "another snapshot came before it")
        );
        reach(&mut taking, 5, 1);
        let due = taking.taken().unwrap().part.unwrap();
        assert_eq!(due.values.as_slice(), [5.0, 5.0, 5.1, 5.1]);
        assert!(!taking.begin(Occasion::Ahead(2, Selection::All), Round(7)), "the memory is out");
        taking.taken().unwrap().part.unwrap_err();
        taking.give_back(Some(due.values));
        assert!(taking.begin(Occasion::Ahead(3, Selection::All), Round(7)));
        reach(&mut taking, 7, 0);
        assert!(!taking.begin(Occasion::Asked(4, Selection::All), Round(8)), "it has a chunk");
        assert_eq!(taking.taken().unwrap().occasion, Occasion::Asked(4, Selection::All));
        reach(&mut taking, 7, 1);
        assert_eq!(taking.taken().unwrap().part.unwrap().values.as_slice(), [7.0, 7.0, 7.1, 7.1]);
    }

    /// Takes a snapshot of the selected tensors before a round.
    #[track_caller]
    fn values(taking: &mut Capture, round: u32, selection: Selection) -> Slab {
        assert!(taking.begin(Occasion::Ahead(1, selection), Round(round)));
        let tensors = taking.tensors.selected(selection).count();
        for place in 0..2 {
            let (values, copied) = taking.room(place, Round(round), &(place..place + 1)).unwrap();
            assert_eq!((values.len(), copied), (tensors, selection));
            values.fill((10 * round) as f32 + place as f32);
            taking.copied(place, 1, (None, None));
        }
        taking.taken().unwrap().part.unwrap().values
    }

    #[test]
    fn a_snapshot_of_one_tensor_has_no_others_and_room_for_no_others() {
        let (mut taking, weights) = (every(100, 0), Selection::One(Tensor::Weights));
        for round in [1, 5] {
            let of_weights = values(&mut taking, round, weights);
            let round = 10.0 * round as f32;
            assert_eq!(of_weights.as_slice(), [round, round + 1.0]);
            // The memory of weights has no room for all tensors, but the memory of all tensors has room for weights.
            taking.give_back(Some(of_weights));
            let all = values(&mut taking, 2, Selection::All);
            assert_eq!(all.as_slice(), [20.0, 20.0, 21.0, 21.0]);
            taking.give_back(Some(all));
        }
        // A due snapshot, of all tensors, takes the memory of a snapshot that waits.
        assert!(taking.begin(Occasion::Ahead(2, weights), Round(200)));
        (0..2).for_each(|place| reach(&mut taking, 100, place));
        let due = Vec::from_iter(std::iter::from_fn(|| taking.taken()));
        let [Taken { part: Ok(part), occasion: Occasion::Due(_), .. }, Taken { part: Err(_), .. }] = &due[..]
        else {
            panic!("{due:?}")
        };
        assert_eq!(part.values.as_slice(), [100.0, 100.0, 100.1, 100.1]);
    }

    #[test]
    fn rounds_that_are_passed_cost_as_much_as_one() {
        let mut taking = every(5, 0);
        let pass = |taking: &mut Capture, was, now, place| {
            let rounds = Vec::from_iter(taking.pass(Round(was), Round(now)));
            rounds.iter().for_each(|round| reach(taking, round.0, place));
            taking.skip_to(Round(now));
            rounds
        };
        let far = 4_000_000_003;
        assert_eq!(pass(&mut taking, 2, far, 0), [Round(5)], "the first that is due is taken");
        let skipped = taking.taken().unwrap();
        assert_eq!(
            (skipped.occasion, skipped.through),
            (Occasion::Due(Round(10)), Some(Round(4_000_000_000)))
        );
        assert!(skipped.part.is_err() && taking.taken().is_none(), "all the others are one result");
        taking.begin(Occasion::Asked(1, Selection::All), Round(7));
        taking.taken().unwrap().part.unwrap_err();
        assert_eq!(pass(&mut taking, 3, far, 1), [Round(5)]);
        let Taken { before, part, .. } = taking.taken().unwrap();
        assert_eq!((before, part.unwrap().values.as_slice()), (Round(5), &[5.0, 5.0, 5.1, 5.1][..]));
        assert!(taking.taken().is_none());
        assert_eq!(taking.due, Round(4_000_000_005));
    }
}
