//! The rounds that all workers of a job skip, by the norm of the mean gradient.

use super::{ExactSum, NormMean};
use crate::job::JobTerms;

/// The rounds without steps.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Skips {
    /// No round is skipped.
    #[default]
    Never,
    /// Rounds whose mean has a value that is not finite.
    NotFinite,
    /// Rounds whose mean has a value that is not finite, and rounds with a norm above this multiple of the mean of the norms
    /// before.
    Spikes(f32),
}

impl Skips {
    /// Returns the rounds that the terms of a job say.
    pub fn of_terms(terms: &JobTerms) -> Self {
        match terms.skip_spikes {
            Some(times) => Skips::Spikes(times),
            None if terms.skip_nonfinite => Skips::NotFinite,
            None => Skips::Never,
        }
    }

    /// Whether any round may be skipped.
    pub fn skips_any(self) -> bool {
        self != Skips::Never
    }

    /// Whether a round with this sum of squares is skipped, after norms with this mean.
    pub fn skips(self, sum: &ExactSum, mean: NormMean) -> bool {
        match self {
            Skips::Never => false,
            Skips::NotFinite => !sum.is_finite(),
            Skips::Spikes(times) => !sum.is_finite() || mean.is_spike(sum.norm(), times),
        }
    }
}
