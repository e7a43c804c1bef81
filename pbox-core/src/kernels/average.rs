//! The moving average of weights: each step sets `average = d * average + (1 - d) * weight`, in f32.
//!
//! The average is a separate pass over a chunk that the step has just written and that is still in the cache. If the
//! loop of the step updated the average, each optimizer would be compiled twice.

use super::compiled::Kernels;
use super::isa::{Convert, Converter, Vector, Work};

/// The numbers for an average.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decay {
    /// `d`.
    pub keep: f32,
    /// `1 - d`, rounded once.
    pub gain: f32,
}

impl Decay {
    /// Creates the numbers from the decay `d`. The decay is an f64, because an f32 has too few digits for `1 - d`.
    pub fn new(decay: f64) -> Self {
        Decay { keep: decay as f32, gain: (1.0 - decay) as f32 }
    }

    /// Whether a decay is above 0 and below 1, also in f32.
    pub fn is_valid(decay: f64) -> bool {
        let keep = Decay::new(decay).keep;
        0.0 < keep && keep < 1.0
    }
}

impl Kernels {
    /// Updates averages with the new weights. The bits are those of [`oracle::average`](super::oracle::average).
    ///
    /// # Panics
    /// Panics if lengths differ.
    pub fn average(&self, decay: Decay, weights: &[f32], averages: &mut [f32]) {
        assert_eq!(weights.len(), averages.len(), "an average for each weight");
        self.work(Average { decay, weights, averages });
    }
}

struct Average<'a> {
    decay: Decay,
    weights: &'a [f32],
    averages: &'a mut [f32],
}

impl Work for Average<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Converter>(self, isa: I) {
        let Average { decay: Decay { keep, gain }, weights, averages } = self;
        let length = I::Vector::LENGTH;
        let (mut averages, mut weights) = (averages.chunks_exact_mut(length), weights.chunks_exact(length));
        for (averages, weights) in (&mut averages).zip(&mut weights) {
            let before = <I as Convert<f32>>::widen(isa, averages);
            let weight = <I as Convert<f32>>::widen(isa, weights);
            let average = isa.splat(keep) * before + isa.splat(gain) * weight;
            <I as Convert<f32>>::narrow(isa, average, averages);
        }
        for (average, &weight) in averages.into_remainder().iter_mut().zip(weights.remainder()) {
            *average = keep * *average + gain * weight;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::kernels::oracle;

    #[test]
    fn a_decay_is_between_0_and_1_in_f32_too() {
        let seen =
            [0.999_999_9, 0.5, 1e-7, 0.0, 1.0, -0.5, 1.5, f64::NAN, 1.0 - 1e-9, 1e-50].map(Decay::is_valid);
        assert_eq!(seen, [true, true, true, false, false, false, false, false, false, false]);
    }

    proptest! {
        #[test]
        fn every_instruction_set_gives_the_oracles_bits(
            values in proptest::collection::vec((-1e3f32..1e3, any::<u32>()), 0..200),
            decay in prop_oneof![Just(0.999), 1e-6f64..0.999_999],
        ) {
            let finite = |bits: u32| Some(f32::from_bits(bits)).filter(|value| value.is_finite()).unwrap_or(-0.0);
            let before: Vec<f32> = values.iter().map(|&(value, _)| value).collect();
            let weights: Vec<f32> = values.iter().map(|&(_, bits)| finite(bits)).collect();
            let mut expected = before.clone();
            expected.iter_mut().zip(&weights).for_each(|(average, &weight)| oracle::average(decay, weight, average));
            for kernels in Kernels::available() {
                let mut averages = before.clone();
                kernels.average(Decay::new(decay), &weights, &mut averages);
                let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
                prop_assert_eq!(bits(&averages), bits(&expected), "{:?}", kernels);
            }
        }
    }
}
