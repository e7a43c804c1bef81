//! Samples: rows of features, each with a class. They are split, scaled and selected in memory. This module
//! does not depend on files.

use super::random::Random;

/// The name of the random sequence of the split.
const SPLIT: u64 = 1;

/// Samples with their classes.
#[derive(Clone, Debug, PartialEq)]
pub struct Samples {
    features: usize,
    /// The features, row by row.
    inputs: Vec<f32>,
    labels: Vec<usize>,
}

impl Samples {
    /// Creates samples from consecutive rows.
    ///
    /// # Panics
    /// Panics if `inputs` does not have `features` numbers for each label.
    pub fn new(features: usize, inputs: Vec<f32>, labels: Vec<usize>) -> Self {
        assert_eq!(inputs.len(), features * labels.len(), "one row a label");
        Samples { features, inputs, labels }
    }

    /// Returns the number of samples.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether there are no samples.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// Returns the number of features in a row.
    pub fn features(&self) -> usize {
        self.features
    }

    /// Returns all rows, one after another.
    pub fn inputs(&self) -> &[f32] {
        &self.inputs
    }

    /// Returns the class of each row.
    pub fn labels(&self) -> &[usize] {
        &self.labels
    }

    /// Returns the rows with these indexes, in this order.
    pub fn select(&self, rows: impl IntoIterator<Item = usize>) -> Self {
        let mut chosen = Samples { features: self.features, inputs: Vec::new(), labels: Vec::new() };
        for row in rows {
            chosen.inputs.extend(&self.inputs[row * self.features..][..self.features]);
            chosen.labels.push(self.labels[row]);
        }
        chosen
    }

    /// Splits into a training set and a test set. One sample in `test_every` goes to the test set, after a shuffle with
    /// `seed`.
    pub fn split(&self, seed: u64, test_every: usize) -> (Self, Self) {
        let order = Random::new(seed, &[SPLIT]).order(self.len());
        let (test, train) = order.split_at(self.len() / test_every);
        (self.select(train.iter().copied()), self.select(test.iter().copied()))
    }

    /// Scales every feature to mean 0 and deviation 1 over `self`. Applies the same shift and scale to `others`, the test
    /// set, which must not influence the scale.
    pub fn standardise(&mut self, others: &mut Samples) {
        for feature in 0..self.features {
            let column = || self.inputs.iter().skip(feature).step_by(self.features).map(|&x| f64::from(x));
            let mean = column().sum::<f64>() / self.len() as f64;
            let variance = column().map(|x| (x - mean) * (x - mean)).sum::<f64>() / self.len() as f64;
            // A constant feature becomes 0.
            let scale = if variance > 0.0 { 1.0 / variance.sqrt() } else { 0.0 };
            for samples in [&mut *self, &mut *others] {
                for x in samples.inputs.iter_mut().skip(feature).step_by(samples.features) {
                    *x = ((f64::from(*x) - mean) * scale) as f32;
                }
            }
        }
    }

    /// Returns the share of these samples whose class is the most frequent class of `train`.
    pub fn majority_accuracy(&self, train: &Samples) -> f64 {
        let count = |samples: &Samples, class| samples.labels.iter().filter(|&&label| label == class).count();
        let commonest = train.labels.iter().copied().max_by_key(|&class| count(train, class));
        commonest.map_or(0.0, |class| count(self, class) as f64 / self.len() as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> Samples {
        let inputs = (0..20).flat_map(|i| [i as f32, 5.0]).collect();
        Samples::new(2, inputs, (0..20).map(|i| usize::from(i % 4 == 0)).collect())
    }

    #[test]
    fn a_split_uses_every_sample_once() {
        let (train, test) = samples().split(3, 5);
        assert_eq!((train.len(), test.len()), (16, 4));
        let mut firsts: Vec<f32> = [train.inputs(), test.inputs()].concat().into_iter().step_by(2).collect();
        firsts.sort_unstable_by(f32::total_cmp);
        assert_eq!(firsts, (0..20).map(|i| i as f32).collect::<Vec<_>>());
    }

    #[test]
    fn standardised_features_have_mean_0_and_deviation_1() {
        let (mut train, mut test) = samples().split(3, 5);
        train.standardise(&mut test);
        let column: Vec<f32> = train.inputs().iter().copied().step_by(2).collect();
        assert!(column.iter().sum::<f32>().abs() < 1e-4);
        assert!((column.iter().map(|x| x * x).sum::<f32>() / 16.0 - 1.0).abs() < 1e-4);
        assert!(test.inputs().iter().skip(1).step_by(2).all(|&x| x == 0.0));
    }

    #[test]
    fn the_majority_is_of_the_training_set() {
        let all = samples();
        assert_eq!(all.majority_accuracy(&all), 0.75);
        assert_eq!(all.majority_accuracy(&all.select([0, 4, 8])), 0.25);
    }
}
