//! The line (a message) in which a hub sends its part of the gradient norm to its workers. The line arrives before the
//! answers that need it: the answers of the same round or, with `clip_norm_last`, of the next round. Workers pass the
//! part on to the other hubs in a line, too.
//!
//! ```text
//!   [ round ][ skipped ][ the sum of squares, 11 words ][ mean of norms ][ number of norms ][ an unused word ]
//! ```

use super::{ExactSum, NormMean, Skips};
use crate::layout::Round;

/// One hub's part of the gradient norm, or the sum of all hubs' parts.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct NormSum {
    /// The round.
    pub round: Round,
    /// The number of rounds that the job has skipped. A hub's part does not count this round. The sum of all parts does.
    pub skipped: u64,
    /// The mean of the norms before this round, in a job that skips spikes.
    pub mean: NormMean,
    /// The sum of the squares of the mean gradients: over the hub's chunks in a part, over all keys in the sum.
    pub sum: ExactSum,
}

/// The index of the word with the bits of the mean of norms. The next word is the number of norms.
const MEAN: usize = 2 + ExactSum::WORDS;

impl NormSum {
    /// The length of a line, in words of 64 bits.
    pub const WORDS: usize = 16;
    /// The length of a line, in bytes.
    pub const BYTES: usize = Self::WORDS * size_of::<u64>();

    /// Writes the part as a line (a message).
    pub fn write(&self, line: &mut [u64]) {
        (line[0], line[1]) = (self.round.0.into(), self.skipped);
        line[2..][..ExactSum::WORDS].copy_from_slice(&self.sum.to_words());
        (line[MEAN], line[MEAN + 1]) = (self.mean.mean().to_bits(), self.mean.norms().into());
    }

    /// Reads a line. Returns `None` if its words are not a sum, not a round, or not a mean of norms.
    pub fn read(line: &[u64]) -> Option<Self> {
        let sum = line[2..][..ExactSum::WORDS].try_into().expect("the words of a sum");
        let round = Round(u32::try_from(line[0]).ok()?);
        let mean = NormMean::new(f64::from_bits(line[MEAN]), u32::try_from(line[MEAN + 1]).ok()?)?;
        Some(NormSum { round, skipped: line[1], mean, sum: ExactSum::of_words(sum)? })
    }

    /// Makes the sum of all parts from this part, which is the first hub's part. `sum` is the sum of squares over all parts.
    pub fn whole(self, sum: ExactSum, skips: Skips) -> Self {
        let is_skipped = skips.skips(&sum, self.mean);
        NormSum { skipped: self.skipped.saturating_add(is_skipped.into()), sum, ..self }
    }
}
