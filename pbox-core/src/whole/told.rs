//! The line of a weights window in which a hub tells its workers what it found of a round, before the round's answers.
//!
//! ```text
//!   [ round ][ skipped ][ the sum of squares, 11 words ][ 3 words without use ]
//! ```

use super::ExactSum;
use crate::layout::Round;

/// The findings of a round.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Told {
    /// The round.
    pub round: Round,
    /// The rounds that the hub has skipped since it has the job, with this one.
    pub skipped: u64,
    /// The squares of the mean gradients of all keys of the hub.
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

    /// Reads a line. Any words are one.
    pub fn read(line: &[u64]) -> Self {
        let sum = line[2..][..ExactSum::WORDS].try_into().expect("the words of a sum");
        Told { round: Round(line[0] as u32), skipped: line[1], sum: ExactSum::of_words(sum) }
    }
}
