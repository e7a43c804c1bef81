//! The line by which a hub sends its workers its part of the whole gradient, before the round's answers. They pass the part on to
//! other hubs by such lines.
//!
//! ```text
//!   [ round ][ skipped ][ the sum of squares, 11 words ][ 1 for a spike ][ 2 words without use ]
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
    /// Whether the round is skipped because its norm is a spike. The only hub of a job knows it when it tells its part.
    pub is_spike: bool,
    /// The squares of the mean gradients: of the hub's chunks, or of all keys.
    pub sum: ExactSum,
}

/// The word that says whether the round is a spike.
const SPIKE: usize = 2 + ExactSum::WORDS;

impl Told {
    /// The words of a line.
    pub const WORDS: usize = 16;
    /// The bytes of a line.
    pub const BYTES: usize = Self::WORDS * size_of::<u64>();

    /// Writes a line.
    pub fn write(&self, line: &mut [u64]) {
        (line[0], line[1]) = (self.round.0.into(), self.skipped);
        line[2..][..ExactSum::WORDS].copy_from_slice(&self.sum.to_words());
        line[SPIKE] = self.is_spike.into();
    }

    /// Reads a line; `None` if its words are not a sum, not a round, or neither a spike nor none.
    pub fn read(line: &[u64]) -> Option<Self> {
        let sum = line[2..][..ExactSum::WORDS].try_into().expect("the words of a sum");
        let round = Round(u32::try_from(line[0]).ok()?);
        let is_spike = [false, true].into_iter().find(|&is_spike| line[SPIKE] == u64::from(is_spike))?;
        Some(Told { round, skipped: line[1], is_spike, sum: ExactSum::of_words(sum)? })
    }

    /// Returns the whole: its parts have this sum, and this is one of them.
    pub fn whole(self, sum: ExactSum, skips: bool) -> Self {
        let is_skipped = skips && (self.is_spike || !sum.is_finite());
        Told { skipped: self.skipped + u64::from(is_skipped), sum, ..self }
    }
}
