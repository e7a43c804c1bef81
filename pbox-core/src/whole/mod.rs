//! The norm of the whole gradient. The steps of a round wait for this norm, and no core knows it alone.
//!
//! ```text
//!   core 0   means of its chunks   the sum of their squares --+--> one core adds --> the hub's part --> workers --> other hubs
//!   core 1   means of its chunks   the sum of their squares --+          |                                               |
//!                                                        scale <-- finds the round <-- parts of the other hubs <-- workers
//! ```
//!
//! The cores of a hub share this memory. There is no lock and no allocation: a core writes its sum, and then counts itself.
//! The last core wakes the core that owns the hub's first chunk. That core sends the hub's part, and [computes the
//! result](WholeGradient::find) of the round once it has the parts of all hubs. Then it wakes the other cores. If the job
//! has only one hub, the last core computes the result itself.
//!
//! The sums are [exact](ExactSum), so their bits do not depend on the number of cores or hubs, or on the order of
//! arrivals. One round is open at a time: no chunk gets pushes of the next round before the chunk has stepped.

mod crossing;
mod exact_sum;
mod norm_mean;
mod norm_sum;
mod parts;
mod skips;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Waker;

use crate::job::JobTerms;
use crate::kernels::oracle::{clip_scale, clip_scale_after};
use crate::layout::Round;
pub(crate) use crossing::{Crossing, LastTwo};
pub use exact_sum::ExactSum;
pub use norm_mean::NormMean;
pub use norm_sum::NormSum;
pub use parts::{Part, Parts};
pub use skips::Skips;

/// The computation of one job's gradient norm by the cores of one hub, one round after another.
#[derive(Debug)]
pub struct WholeGradient {
    finds: Finds,
    /// Whether the result of a round is for the steps of the next round.
    of_former: bool,
    /// Two means of norms: the first without the last round that has a result, the second with this round.
    means: [SharedMean; 2],
    /// The memory of each core that owns chunks.
    cores: Vec<OfCore>,
    /// The number of the core that sends the hub's part.
    first: usize,
    /// Whether no other hub has a part.
    is_alone: bool,
    /// A round, and the number of cores that have given their sums for this round. The hub's part is complete when all cores
    /// have given their sums.
    given: AtomicU64,
    /// The last round with a result, and its scale.
    found: AtomicU64,
    /// The sum of squares of the last round with a result, if the last core finds the result. The sum is kept here, because
    /// other cores may be in the next round before core `first` sends the hub's part.
    found_sum: [AtomicU64; ExactSum::WORDS],
}

/// The way to compute a round's result from its sums.
#[derive(Clone, Copy, Debug)]
enum Finds {
    /// A scale for all means, from the first sum, so that the norm is at most `most`. Rounds may be skipped.
    Scale { most: Option<f32>, skips: Skips },
    /// The quotient of two norms of a key: the norm of the second sum divided by the norm of the first sum. It is 0 if one
    /// of the norms is 0.
    Quotient,
}

/// A mean of norms that all cores read. Only the core that finds the result of a round writes it.
#[derive(Debug, Default)]
struct SharedMean {
    bits: AtomicU64,
    norms: AtomicU32,
}

impl SharedMean {
    fn get(&self) -> NormMean {
        let mean = f64::from_bits(self.bits.load(Ordering::Relaxed));
        NormMean::new(mean, self.norms.load(Ordering::Relaxed)).unwrap_or_default()
    }

    fn set(&self, mean: NormMean) {
        self.bits.store(mean.mean().to_bits(), Ordering::Relaxed);
        self.norms.store(mean.norms(), Ordering::Relaxed);
    }
}

/// The sums of a core's squares in a round. The first is over a key's weights or over the whole gradient. The second is
/// over a key's gradient or update.
pub type Sums = [ExactSum; 2];

/// The result that the cores compute from the norms of a round, and that steps use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Found {
    /// The learning rate of the key's step, by LARS or LAMB, is adapted by this quotient of two norms.
    Quotient(f32),
    /// All means are multiplied by this scale.
    Scale(f32),
    /// No step is made: some values of the round are not finite, or its norm is a spike.
    Skip,
}

/// The mark of a skipped round, in place of a scale. No scale has these bits: a scale that is NaN is stored as `f32::NAN`.
const SKIP: u32 = u32::MAX;

/// The memory of one core.
#[derive(Debug, Default)]
#[repr(align(64))]
struct OfCore {
    /// The core's waker, once it is registered.
    waker: OnceLock<Waker>,
    /// The sums of the squares of the core's chunks.
    sums: [[AtomicU64; ExactSum::WORDS]; 2],
}

/// Packs a round and 32 more bits into a word.
fn pack(round: Round, low: u32) -> u64 {
    u64::from(round.0) << 32 | u64::from(low)
}

fn unpack(word: u64) -> (Round, u32) {
    (Round((word >> 32) as u32), word as u32)
}

fn store(places: &[AtomicU64; ExactSum::WORDS], sum: &ExactSum) {
    places.iter().zip(sum.to_words()).for_each(|(place, word)| place.store(word, Ordering::Relaxed));
}

fn load(places: &[AtomicU64; ExactSum::WORDS]) -> Option<ExactSum> {
    ExactSum::of_words(&places.each_ref().map(|word| word.load(Ordering::Relaxed)))
}

/// One core's part of a set of chunks whose steps wait for each other: all chunks, or those of one key.
#[derive(Debug)]
pub struct Scope {
    /// The memory that the cores with chunks of the scope share.
    pub whole: Arc<WholeGradient>,
    /// The core's number in this memory.
    pub core: usize,
    /// The number of the core's chunks in the scope. These chunks are neighbours.
    pub chunks: usize,
}

impl WholeGradient {
    /// Creates the shared memory for the cores of a job that own chunks. The core with number `first` sends the hub's part.
    /// `hubs` is the number of hubs that have a part.
    pub fn new(terms: &JobTerms, cores: usize, first: usize, hubs: usize) -> Self {
        WholeGradient {
            finds: Finds::Scale {
                most: terms.clip_norm.or(terms.clip_norm_last),
                skips: Skips::of_terms(terms),
            },
            of_former: terms.clip_norm_last.is_some(),
            means: Default::default(),
            cores: (0..cores).map(|_| OfCore::default()).collect(),
            first,
            is_alone: hubs == 1,
            given: AtomicU64::new(pack(Round(0), 0)),
            found: AtomicU64::new(pack(Round(u32::MAX), 1.0f32.to_bits())),
            found_sum: Default::default(),
        }
    }

    /// Creates the shared memory for the cores with chunks of a key whose learning rate is adapted to the key's norms.
    pub fn of_key(cores: usize) -> Self {
        WholeGradient {
            finds: Finds::Quotient,
            of_former: false,
            means: Default::default(),
            cores: (0..cores).map(|_| OfCore::default()).collect(),
            first: 0,
            is_alone: true,
            given: AtomicU64::new(pack(Round(0), 0)),
            found: AtomicU64::new(pack(Round(u32::MAX), 0)),
            found_sum: Default::default(),
        }
    }

    /// Whether the sums are those of a key whose learning rate is adapted to the key's norms.
    pub fn is_of_key(&self) -> bool {
        matches!(self.finds, Finds::Quotient)
    }

    /// Whether the result of a round is used by the steps of the next round.
    pub fn is_of_former(&self) -> bool {
        self.of_former
    }

    /// Returns the result of the previous round, which scales the steps of `round` (`clip_norm_last`). The job's first
    /// round has no previous result, and its scale is 1.
    #[inline]
    pub fn found_before(&self, round: Round) -> Option<Found> {
        self.found(Round(round.0.wrapping_sub(1)))
    }

    /// Begins with this mean of norms. Each core must call this before it gives a sum.
    pub fn begin_with(&self, mean: NormMean) {
        self.means.iter().for_each(|each| each.set(mean));
    }

    /// Returns the running mean of the norms of accepted rounds, if `skip_spikes` is set. The mean stays the same until
    /// all cores have given their sums of the next round.
    pub fn norm_mean(&self) -> Option<NormMean> {
        let skips_spikes = matches!(self.finds, Finds::Scale { skips: Skips::Spikes(_), .. });
        skips_spikes.then(|| self.means[1].get())
    }

    /// Returns the mean of the norms before a round. The round must be the last round with a result, or the round after it.
    pub fn mean_before(&self, round: Round) -> NormMean {
        self.means[usize::from(self.found(round).is_none())].get()
    }

    /// Stores the waker of a core.
    pub fn wake(&self, core: usize, waker: Waker) {
        _ = self.cores[core].waker.set(waker);
    }

    /// Takes the sums of one core's squares in a round. Each core calls this once a round.
    #[cold]
    #[inline(never)] // it has a locked instruction; the path of a chunk has none
    pub fn give(&self, round: Round, core: usize, sums: &Sums) {
        self.cores[core].sums.iter().zip(sums).for_each(|(places, sum)| store(places, sum));
        let all = self.cores.len() as u32;
        let more = |word| match unpack(word) {
            (open, given) if open == round => Some(pack(round, all.min(given + 1))),
            _ => Some(pack(round, 1)),
        };
        // Makes the sums visible to the core that reads the count.
        let before = self.given.fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        let given = match before.map(unpack) {
            Ok((open, given)) if open == round => given + 1,
            _ => 1,
        };
        if given as usize == self.cores.len() {
            match self.sums(round).filter(|_| self.is_alone) {
                Some(sums) => self.find_by(round, &sums),
                None => _ = self.cores[self.first].waker.get().inspect(|waker| waker.wake_by_ref()),
            }
        }
    }

    /// Returns the hub's part of a round once it is complete or, if the job has only one hub, once the result is known.
    /// Until then, no core gives a sum of the next round.
    pub fn part(&self, round: Round) -> Option<ExactSum> {
        if self.is_alone {
            self.found(round)?;
            return load(&self.found_sum);
        }
        self.sums(round).map(|[sum, _]| sum)
    }

    /// Returns the sums of all cores for a round, once they have arrived.
    fn sums(&self, round: Round) -> Option<Sums> {
        let join = |mut sums: Sums, core: &OfCore| {
            for (sum, words) in sums.iter_mut().zip(&core.sums) {
                sum.join(&load(words)?);
            }
            Some(sums)
        };
        self.is_whole(round).then(|| self.cores.iter().try_fold(Sums::default(), join)).flatten()
    }

    /// Finds the result of a round from the parts of all hubs, and wakes the cores.
    pub fn find(&self, whole: &NormSum) {
        self.means[1].set(whole.mean);
        self.find_by(whole.round, &[whole.sum, ExactSum::default()]);
    }

    fn find_by(&self, round: Round, [sum, other]: &Sums) {
        let scale = match self.finds {
            Finds::Scale { skips, .. } if self.is_skipped(skips, sum) => SKIP,
            Finds::Scale { most: Some(_), .. } if self.of_former && sum.value() == 0.0 => {
                unpack(self.found.load(Ordering::Relaxed)).1 // a round without gradients: the norm before still counts
            }
            Finds::Scale { most: Some(most), .. } if self.of_former => {
                clip_scale_after(sum.norm(), most).to_bits()
            }
            Finds::Scale { most, .. } => match most.map_or(1.0, |most| clip_scale(sum.norm(), most)) {
                scale if scale.is_nan() => f32::NAN.to_bits(), // a gradient's NaN may have the bits of `SKIP`
                scale => scale.to_bits(),
            },
            Finds::Quotient if sum.value() == 0.0 => 0.0f32.to_bits(),
            Finds::Quotient => ((other.value().sqrt() / sum.value().sqrt()) as f32).to_bits(),
        };
        store(&self.found_sum, sum);
        self.found.store(pack(round, scale), Ordering::Release);
        self.cores.iter().filter_map(|core| core.waker.get()).for_each(Waker::wake_by_ref);
    }

    /// Whether a round is skipped. If it is not, its norm is added to the mean.
    fn is_skipped(&self, skips: Skips, sum: &ExactSum) -> bool {
        let mean = self.means[1].get();
        let is_skipped = skips.skips(sum, mean);
        if let Skips::Spikes(_) = skips {
            self.means[0].set(mean);
            self.means[1].set(if is_skipped { mean } else { mean.with(sum.norm()) });
        }
        is_skipped
    }

    /// Takes back one core's sum of a round. Returns false if the hub's part is complete: then it was posted, or will be
    /// posted at once.
    pub fn take_back(&self, round: Round) -> bool {
        let cores = self.cores.len() as u32;
        let fewer = |word| match unpack(word) {
            (open, given) if open == round && given < cores => Some(pack(round, given - 1)),
            _ => None,
        };
        self.given.fetch_update(Ordering::AcqRel, Ordering::Acquire, fewer).is_ok()
    }

    /// Returns the result for the steps of a round, once it is known.
    #[inline]
    pub fn found(&self, round: Round) -> Option<Found> {
        let (found, scale) = unpack(self.found.load(Ordering::Acquire));
        let number = f32::from_bits(scale);
        (found == round).then_some(match self.finds {
            Finds::Scale { .. } if scale == SKIP => Found::Skip,
            Finds::Scale { .. } => Found::Scale(number),
            Finds::Quotient => Found::Quotient(number),
        })
    }

    /// Whether the hub's part of a round is complete.
    pub fn is_whole(&self, round: Round) -> bool {
        unpack(self.given.load(Ordering::Acquire)) == (round, self.cores.len() as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::Optimizer;

    #[test]
    fn a_round_without_gradients_keeps_the_norm_before_it() {
        let terms = JobTerms::new(1, Vec::new(), Optimizer::Average);
        let whole = WholeGradient::new(&JobTerms { clip_norm_last: Some(1.0), ..terms }, 1, 0, 1);
        let after = |round, square| {
            let mut sum = ExactSum::default();
            sum.add(square);
            whole.give(Round(round), 0, &[sum, ExactSum::default()]);
            whole.found_before(Round(round + 1))
        };
        assert_eq!(after(0, 0.0), Some(Found::Scale(1.0)), "the broadcast: no norm is known");
        for (round, square) in (1..).zip([16.0, 0.0, 0.0]) {
            assert_eq!(after(round, square), Some(Found::Scale(clip_scale(4.0, 1.0))), "round {round}");
        }
        assert_eq!(after(4, 0.25), Some(Found::Scale(1.0)));
        assert_eq!(after(5, 0.0), Some(Found::Scale(1.0)));
    }

    #[test]
    fn a_norm_of_the_round_before_that_says_nothing_scales_nothing() {
        let terms = JobTerms::new(1, Vec::new(), Optimizer::Average);
        let whole = WholeGradient::new(&JobTerms { clip_norm_last: Some(1e-9), ..terms }, 1, 0, 1);
        let after = |round, square| {
            let mut sum = ExactSum::default();
            sum.add(square);
            whole.give(Round(round), 0, &[sum, ExactSum::default()]);
            whole.found_before(Round(round + 1))
        };
        assert_eq!(whole.found_before(Round(0)), Some(Found::Scale(1.0)), "the first round");
        for (round, square) in (0..).zip([0.0, f64::INFINITY, f64::NAN]) {
            assert_eq!(after(round, square), Some(Found::Scale(1.0)), "{square}");
        }
        assert_eq!(after(3, 16.0), Some(Found::Scale(clip_scale(4.0, 1e-9))));
        let mut sum = ExactSum::UNKNOWN; // of another hub
        sum.add(16.0);
        whole.give(Round(4), 0, &[sum, ExactSum::default()]);
        assert_eq!(whole.found_before(Round(5)), Some(Found::Scale(1.0)));
    }

    #[test]
    fn no_nan_of_a_gradient_is_taken_for_a_skipped_round() {
        let terms = JobTerms::new(1, Vec::new(), Optimizer::Average);
        let whole = WholeGradient::new(&JobTerms { clip_norm: Some(1.0), ..terms }, 1, 0, 1);
        let mut sum = ExactSum::default();
        sum.add(std::hint::black_box(f64::from_bits(u64::MAX))); // the compiler would make it another NaN
        whole.give(Round(0), 0, &[sum, ExactSum::default()]);
        assert!(matches!(whole.found(Round(0)), Some(Found::Scale(scale)) if scale.is_nan()));
    }

    /// Gives norms of 1 in ten rounds, then a norm of 1000, which is a spike, and then 3. If 1000 were in the mean, the
    /// mean would be 92, and 3 would not be a spike.
    #[test]
    fn the_norm_of_a_round_that_is_left_out_is_not_in_the_mean() {
        let terms = JobTerms::new(1, Vec::new(), Optimizer::Average);
        let whole = WholeGradient::new(&JobTerms { skip_spikes: Some(2.0), ..terms }, 1, 0, 1);
        let found = |round, norm: f64| {
            let mut sum = ExactSum::default();
            sum.add(norm * norm);
            whole.give(Round(round), 0, &[sum, ExactSum::default()]);
            whole.found(Round(round))
        };
        (0..10).for_each(|round| assert_eq!(found(round, 1.0), Some(Found::Scale(1.0)), "round {round}"));
        for (round, norm) in [(10, 1000.0), (11, 3.0)] {
            assert_eq!(found(round, norm), Some(Found::Skip), "a norm of {norm}");
        }
        assert_eq!(found(12, 2.0), Some(Found::Scale(1.0)), "not above twice the mean");
    }

    /// Core 0 is busy. Meanwhile core 1 ends the round, gets all pushes of the next round, and gives its sum of the next
    /// round.
    #[test]
    fn the_only_hub_has_its_part_while_a_core_is_in_the_next_round() {
        let terms = JobTerms::new(1, Vec::new(), Optimizer::Average);
        let whole = WholeGradient::new(&JobTerms { clip_norm: Some(1.0), ..terms }, 2, 0, 1);
        let give = |round, core, square| {
            let mut sum = ExactSum::default();
            sum.add(square);
            whole.give(Round(round), core, &[sum, ExactSum::default()]);
        };
        give(0, 0, 4.0);
        assert_eq!(whole.part(Round(0)), None);
        give(0, 1, 5.0);
        give(1, 1, 100.0);
        assert_eq!(whole.part(Round(0)).map(|part| part.value()), Some(9.0));
    }

    #[test]
    fn a_part_is_whole_with_the_last_core_and_is_not_taken_back() {
        let terms = JobTerms::new(1, Vec::new(), Optimizer::Average);
        let terms = JobTerms { clip_norm: Some(1.0), skip_nonfinite: true, ..terms };
        let whole = WholeGradient::new(&terms, 3, 0, 2);
        let give = |round, core, square| {
            let mut sum = ExactSum::default();
            sum.add(square);
            whole.give(Round(round), core, &[sum, ExactSum::default()]);
        };
        give(1, 2, 1.0);
        give(1, 0, 4.0);
        assert!(whole.take_back(Round(1)));
        give(1, 0, 12.0);
        assert_eq!((whole.part(Round(1)), whole.is_whole(Round(1))), (None, false));
        give(1, 1, 3.0);
        let part = whole.part(Round(1)).unwrap();
        assert_eq!((part.value(), whole.found(Round(1))), (16.0, None), "other hubs may have parts");
        assert!(!whole.take_back(Round(1)), "it is published");
        let norm_sum = |round, sum| NormSum { round: Round(round), sum, ..NormSum::default() };
        whole.find(&norm_sum(1, part));
        assert_eq!(whole.found(Round(1)), Some(Found::Scale(clip_scale(4.0, 1.0))));
        give(7, 2, 1.0);
        assert!(!whole.is_whole(Round(7)) && whole.found(Round(7)).is_none(), "rounds may be left out");
        assert!(whole.take_back(Round(7)));
        for (part, square) in [(0, 1.0), (1, f64::INFINITY), (2, 1.0)] {
            give(8, part, square);
        }
        let part = whole.part(Round(8)).unwrap();
        whole.find(&norm_sum(8, part));
        assert_eq!(whole.found(Round(8)), Some(Found::Skip));
        let mean = NormMean::new(1.5, 3).unwrap();
        let norm_sum = NormSum { round: Round(8), skipped: 1, mean, sum: part };
        let mut line = [0; NormSum::WORDS];
        norm_sum.write(&mut line);
        assert_eq!(NormSum::read(&line), Some(norm_sum));
        assert_eq!(norm_sum.whole(part, Skips::NotFinite).skipped, 2);
        line[14] = 0;
        assert_eq!(NormSum::read(&line), None, "no norms have this mean");
    }
}
