//! The rounds that all workers of a job skip, because of the norm of the mean gradient.

use super::{ExactSum, NormMean};
use crate::job::JobTerms;

/// The kind of rounds in which no step is made.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Skips {
    /// No round is skipped.
    #[default]
    Never,
    /// Rounds whose mean gradient has a value that is not finite.
    NotFinite,
    /// The rounds of [`NotFinite`](Self::NotFinite), and rounds whose norm is above this multiple of the mean of all norms
    /// before.
    Spikes(f32),
}

impl Skips {
    /// Returns the kind of rounds to skip, from the terms of a job.
    pub fn of_terms(terms: &JobTerms) -> Self {
        match terms.skip_spikes {
            Some(times) => Skips::Spikes(times),
            None if terms.skip_nonfinite => Skips::NotFinite,
            None => Skips::Never,
        }
    }

    /// Whether rounds may be skipped at all.
    pub fn skips_any(self) -> bool {
        self != Skips::Never
    }

    /// Whether a round with this sum of squares is skipped. `mean` is the mean of the norms before.
    pub fn skips(self, sum: &ExactSum, mean: NormMean) -> bool {
        match self {
            Skips::Never => false,
            Skips::NotFinite => !sum.is_finite(),
            Skips::Spikes(times) => !sum.is_finite() || mean.is_spike(sum.norm(), times),
        }
    }
}
