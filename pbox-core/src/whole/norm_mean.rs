//! The running mean of the norms of rounds. A round is a *spike* if its norm is above a multiple of this mean.

use serde::{Deserialize, Serialize};

/// The weight of a new norm is at least one part in this number, so that the mean follows about the last hundred norms.
const MEMORY: u32 = 100;

/// The number of norms in the mean from which on a round may be a spike.
const WARM_UP: u32 = 10;

/// The running mean of the norms of rounds that were not skipped. Up to 100 norms, it is the mean of all norms. From then
/// on, each new norm has a weight of a hundredth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NormMean(f64, u32);

impl NormMean {
    /// Creates a mean of this number of norms. Returns `None` for values that no mean can have.
    pub fn new(mean: f64, norms: u32) -> Option<Self> {
        let is_mean = mean.is_finite() && mean >= 0.0 && (norms > 0 || mean == 0.0);
        is_mean.then_some(NormMean(mean, norms))
    }

    /// Returns the mean.
    pub fn mean(self) -> f64 {
        self.0
    }

    /// Returns the number of norms in the mean.
    pub fn norms(self) -> u32 {
        self.1
    }

    /// Whether a norm is not finite or, after the first ten norms, above `times` the mean.
    pub fn is_spike(self, norm: f32, times: f32) -> bool {
        let NormMean(mean, norms) = self;
        !norm.is_finite() || norms >= WARM_UP && f64::from(norm) > f64::from(times) * mean
    }

    /// Returns the mean with one more norm. A norm of 0 comes from a round without gradients, and does not count.
    pub fn with(self, norm: f32) -> Self {
        if norm == 0.0 {
            return self;
        }
        let NormMean(mean, norms) = self;
        let norms = norms.saturating_add(1);
        NormMean(mean + (f64::from(norm) - mean) / f64::from(norms.min(MEMORY)), norms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_norms_come_before_a_spike_and_what_is_not_finite_is_one_always() {
        let mut mean = NormMean::default();
        for round in 0..10 {
            assert!(!mean.is_spike(1e30, 2.0), "norm {round}");
            assert!(mean.is_spike(f32::INFINITY, 2.0) && mean.is_spike(f32::NAN, 2.0), "norm {round}");
            mean = mean.with(if round % 2 == 0 { 1.0 } else { 3.0 });
        }
        assert_eq!((mean.mean(), mean.norms()), (2.0, 10));
        assert!(!mean.is_spike(4.0, 2.0) && mean.is_spike(4.000001, 2.0));
        assert_eq!(mean.with(0.0), mean);
    }

    #[test]
    fn a_norm_counts_for_a_hundredth_from_a_hundred_on() {
        let mean = (0..100).fold(NormMean::default(), |mean, _| mean.with(2.0));
        let later = mean.with(102.0);
        assert_eq!((mean.mean(), later.mean()), (2.0, 3.0));
        assert_eq!(later.with(103.0).mean(), 4.0, "the next one, too");
    }

    #[test]
    fn a_mean_is_a_finite_number_of_some_norms() {
        for (mean, norms) in [(-1.0, 3), (f64::NAN, 3), (f64::INFINITY, 3), (1.0, 0)] {
            assert_eq!(NormMean::new(mean, norms), None, "{mean} of {norms}");
        }
        assert_eq!(NormMean::new(1.5, 3).map(|mean| (mean.mean(), mean.norms())), Some((1.5, 3)));
    }
}
