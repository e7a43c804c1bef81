//! The whole gradient: a number that no core knows by itself, and that the steps of a round wait for.
//!
//! ```text
//!   core 0   means of its chunks   the sum of their squares --+                        +-- scale --> steps
//!   core 1   means of its chunks   the sum of their squares --+--> the last one adds --+-- scale --> steps
//! ```
//!
//! The cores of a hub share it. No lock and no allocation: a core writes its part, then counts itself in. The last one adds all
//! parts and wakes the others. The sums are [exact](ExactSum), so that the bits do not depend on cores or arrival. One round is
//! open at a time: no chunk gets pushes of the next one before it has stepped.

mod exact_sum;
mod told;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;

use crate::job::JobTerms;
use crate::kernels::oracle::clip_scale;
use crate::layout::Round;
pub use exact_sum::ExactSum;
pub use told::Told;

/// The whole gradient of one round after the other, of one job at one hub.
#[derive(Debug)]
pub struct WholeGradient {
    /// The most that its norm may be.
    most: Option<f32>,
    /// Whether a round with values that are not finite is skipped.
    skips: bool,
    /// A part for each core that owns chunks.
    parts: Vec<Part>,
    /// A round, and how many parts are in of it: all, if it is found.
    given: AtomicU64,
    /// The last round that is found, and its scale.
    found: AtomicU64,
    /// The sum of that round.
    sum: [AtomicU64; ExactSum::WORDS],
    /// The rounds that were skipped.
    skipped: AtomicU64,
}

/// The work of a round's steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Found {
    /// They multiply means by this scale.
    Scale(f32),
    /// They change nothing: values of the round are not finite.
    Skip,
}

/// The scale of a round without steps: no number that an operation gives.
const SKIP: u32 = u32::MAX;

/// The place of one core.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Part {
    /// The core, once it is there.
    waker: OnceLock<Waker>,
    /// The squares of its chunks.
    sum: [AtomicU64; ExactSum::WORDS],
}

/// A round and 32 bits more.
fn pack(round: Round, low: u32) -> u64 {
    u64::from(round.0) << 32 | u64::from(low)
}

fn write(words: &[AtomicU64; ExactSum::WORDS], sum: &ExactSum) {
    words.iter().zip(sum.to_words()).for_each(|(place, word)| place.store(word, Ordering::Relaxed));
}

fn read(words: &[AtomicU64; ExactSum::WORDS]) -> ExactSum {
    ExactSum::of_words(&words.each_ref().map(|word| word.load(Ordering::Relaxed)))
}

fn unpack(word: u64) -> (Round, u32) {
    (Round((word >> 32) as u32), word as u32)
}

impl WholeGradient {
    /// Makes the place where `parts` cores meet, those of a job that own chunks.
    pub fn new(terms: &JobTerms, parts: usize) -> Self {
        WholeGradient {
            most: terms.clip_norm,
            skips: terms.skip_nonfinite,
            parts: (0..parts).map(|_| Part::default()).collect(),
            given: AtomicU64::new(pack(Round(0), 0)),
            found: AtomicU64::new(pack(Round(u32::MAX), 0)),
            sum: Default::default(),
            skipped: AtomicU64::new(0),
        }
    }

    /// Notes what wakes the core of a part.
    pub fn wake(&self, part: usize, waker: Waker) {
        _ = self.parts[part].waker.set(waker);
    }

    /// Takes the squares of one core's chunks in a round. Called once a round for each part.
    #[cold]
    #[inline(never)] // a locked instruction, which the path of a chunk does not have
    pub fn give(&self, round: Round, part: usize, sum: &ExactSum) {
        write(&self.parts[part].sum, sum);
        let parts = self.parts.len() as u32;
        let more = |word| match unpack(word) {
            (open, given) if open == round => Some(pack(round, given + 1)),
            _ => Some(pack(round, 1)),
        };
        // Release the part; acquire those of the other cores.
        let before = self.given.fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        let given = match before.map(unpack) {
            Ok((open, given)) if open == round => given + 1,
            _ => 1,
        };
        if given == parts {
            self.find(round);
            self.parts.iter().filter_map(|part| part.waker.get()).for_each(Waker::wake_by_ref);
        }
    }

    /// Adds all parts of a round. No core gives a part of the next round before it has seen this one.
    fn find(&self, round: Round) {
        let sum = self.parts.iter().fold(ExactSum::default(), |mut sum, part| {
            sum.join(&read(&part.sum));
            sum
        });
        write(&self.sum, &sum);
        let scale = if self.skips && !sum.is_finite() {
            self.skipped.fetch_add(1, Ordering::Relaxed);
            SKIP
        } else {
            self.most.map_or(1.0, |most| clip_scale(sum.norm(), most)).to_bits()
        };
        self.found.store(pack(round, scale), Ordering::Release);
    }

    /// Takes one core's part of a round back. Returns false where the round is found, or will be in a moment.
    pub fn take_back(&self, round: Round) -> bool {
        let parts = self.parts.len() as u32;
        let fewer = |word| match unpack(word) {
            (open, given) if open == round && given < parts => Some(pack(round, given - 1)),
            _ => None,
        };
        self.given.fetch_update(Ordering::AcqRel, Ordering::Acquire, fewer).is_ok()
    }

    /// Returns what the steps of a round do, once it is found.
    #[inline]
    pub fn found(&self, round: Round) -> Option<Found> {
        let (found, scale) = unpack(self.found.load(Ordering::Acquire));
        let is_skip = scale == SKIP && self.skips;
        (found == round).then(|| if is_skip { Found::Skip } else { Found::Scale(f32::from_bits(scale)) })
    }

    /// Returns what workers are told of the last round that is found.
    pub fn told(&self) -> Told {
        let (round, _) = unpack(self.found.load(Ordering::Acquire));
        Told { round, skipped: self.skipped.load(Ordering::Relaxed), sum: read(&self.sum) }
    }

    /// Whether all parts of a round are in.
    pub fn is_whole(&self, round: Round) -> bool {
        unpack(self.given.load(Ordering::Acquire)) == (round, self.parts.len() as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::Optimizer;

    #[test]
    fn a_round_is_found_with_its_last_part() {
        let terms = JobTerms::new(1, Vec::new(), Optimizer::Average);
        let whole = WholeGradient::new(&JobTerms { clip_norm: Some(1.0), skip_nonfinite: true, ..terms }, 3);
        let give = |round, part, square| {
            let mut sum = ExactSum::default();
            sum.add(square);
            whole.give(Round(round), part, &sum);
        };
        give(1, 2, 1.0);
        give(1, 0, 4.0);
        assert!(whole.take_back(Round(1)));
        give(1, 0, 12.0);
        assert_eq!((whole.found(Round(1)), whole.is_whole(Round(1))), (None, false));
        give(1, 1, 3.0);
        assert_eq!(whole.found(Round(1)), Some(Found::Scale(clip_scale(4.0, 1.0))));
        assert!(!whole.take_back(Round(1)), "it is found");
        give(7, 2, 1.0);
        assert!(!whole.is_whole(Round(7)) && whole.found(Round(7)).is_none(), "rounds may be left out");
        assert!(whole.take_back(Round(7)));
        for (part, square) in [(0, 1.0), (1, f64::INFINITY), (2, 1.0)] {
            give(8, part, square);
        }
        let told = whole.told();
        assert_eq!(whole.found(Round(8)), Some(Found::Skip));
        assert_eq!((told.round, told.skipped, told.sum.norm()), (Round(8), 1, f32::INFINITY));
        let mut line = [0; Told::WORDS];
        told.write(&mut line);
        assert_eq!(Told::read(&line), told);
    }
}
