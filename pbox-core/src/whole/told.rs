//! The line by which a hub sends its workers its part of the whole gradient, before the round's answers; with `clip_norm_last`
//! before those of the next round. The workers pass the part on to other hubs by such lines.
//!
//! ```text
//!   [ round ][ skipped ][ the sum of squares, 11 words ][ mean of norms ][ norms ][ a word without use ]
//! ```

use super::{ExactSum, NormMean, Skips};
use crate::layout::Round;

/// A part of the whole gradient, or all of it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Told {
    /// The round.
    pub round: Round,
    /// The number of rounds that the hub has skipped in the job: before this round in a part, and including it in the whole.
    pub skipped: u64,
    /// The mean of the norms before this round, in a job that skips spikes.
    pub mean: NormMean,
    /// The squares of the mean gradients: of the hub's chunks, or of all keys.
    pub sum: ExactSum,
}

/// The word with the bits of the mean of norms. The next word is the number of norms.
const MEAN: usize = 2 + ExactSum::WORDS;

impl Told {
    /// The length of a line, in words of 64 bits.
    pub const WORDS: usize = 16;
    /// The bytes of a line.
    pub const BYTES: usize = Self::WORDS * size_of::<u64>();

    /// Writes a line.
    pub fn write(&self, line: &mut [u64]) {
        (line[0], line[1]) = (self.round.0.into(), self.skipped);
        line[2..][..ExactSum::WORDS].copy_from_slice(&self.sum.to_words());
        (line[MEAN], line[MEAN + 1]) = (self.mean.mean().to_bits(), self.mean.norms().into());
    }

    /// Reads a line; `None` if its words are not a sum, not a round, or not a mean of norms.
    pub fn read(line: &[u64]) -> Option<Self> {
        let sum = line[2..][..ExactSum::WORDS].try_into().expect("the words of a sum");
        let round = Round(u32::try_from(line[0]).ok()?);
        let mean = NormMean::new(f64::from_bits(line[MEAN]), u32::try_from(line[MEAN + 1]).ok()?)?;
        Some(Told { round, skipped: line[1], mean, sum: ExactSum::of_words(sum)? })
    }

    /// Returns the whole gradient. This part is the first hub's, and all parts have this sum.
    pub fn whole(self, sum: ExactSum, skips: Skips) -> Self {
        let is_skipped = skips.skips(&sum, self.mean);
        Told { skipped: self.skipped.saturating_add(is_skipped.into()), sum, ..self }
    }
}
