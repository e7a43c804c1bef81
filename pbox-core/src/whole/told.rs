//! The line by which a hub sends its workers its part of the whole gradient, before the round's answers. They pass the part on to
//! other hubs by such lines.
//!
//! ```text
//!   [ round ][ skipped ][ the sum of squares, 11 words ][ 3 words without use ]
//! ```

use super::ExactSum;
use crate::layout::Round;

/// A part of the whole gradient, or all of it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Told {
    /// The round.
    pub round: Round,
    /// The rounds that the hub has skipped since it has the job: of a part before this round, of the whole with this one.
    pub skipped: u64,
    /// The squares of the mean gradients: of the hub's chunks, or of all keys.
    pub sum: ExactSum,
}

impl Told {
    /// The words of a line.
    pub const WORDS: usize = 16;
    /// The bytes of a line.
    pub const BYTES: usize = Self::WORDS * size_of::<u64>();

    /// Writes a line.
    pub fn write(&self, line: &mut [u64]) {
        (line[0], line[1]) = (self.round.0.into(), self.skipped);
        line[2..][..ExactSum::WORDS].copy_from_slice(&self.sum.to_words());
    }

    /// Reads a line; `None` if its words are not a sum, or not a round.
    pub fn read(line: &[u64]) -> Option<Self> {
        let sum = line[2..][..ExactSum::WORDS].try_into().expect("the words of a sum");
        let round = Round(u32::try_from(line[0]).ok()?);
        Some(Told { round, skipped: line[1], sum: ExactSum::of_words(sum)? })
    }

    /// Returns the whole: its parts have this sum, and this is one of them.
    pub fn whole(self, sum: ExactSum, skips: bool) -> Self {
        Told { skipped: self.skipped + u64::from(skips && !sum.is_finite()), sum, ..self }
    }
}
