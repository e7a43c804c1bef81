//! Merging: the way in which an answer changes a worker's weights. The worker merges the answer into its weights, and the
//! hub into its copy of the worker's weights (the shadow).
//!
//! Both ends must get the same bits, so both call these functions. Pure functions of memory: they do not depend on
//! frames or rounds.

use zerocopy::{FromBytes, IntoBytes};

use crate::codec::Codec;
use crate::kernels::{Converter, Element, Kernels, Work};
use crate::layout::Dtype;

/// The number of values that are converted at once. They fit in the nearest cache, and are enough for one call of a kernel.
const BLOCK: usize = 1024;

/// The content of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A difference, which is added to the weights.
    Difference,
    /// The values themselves, in a job that keeps no weights.
    Values,
}

/// Merges a payload into a worker's values of a chunk. `scratch` must have at least the chunk's length; f32 keys do not
/// need it.
///
/// A difference is added to zero in place of a value that is infinite or NaN (see `rebase`).
///
/// # Panics
/// Panics if `scratch` is too short.
pub fn merge<E: Element>(
    codec: &Codec,
    kernels: &Kernels,
    payload: &[u8],
    answer: Answer,
    have: &mut [E],
    scratch: &mut [f32],
) {
    if E::DTYPE == Dtype::F32 {
        let have = <[f32]>::mut_from_bytes(have.as_mut_bytes()).expect("f32, by its type");
        match answer {
            Answer::Difference => rebase(kernels, have),
            Answer::Values => have.fill(0.0),
        }
        return codec.add(kernels, payload, have);
    }
    let decoded = &mut scratch[..have.len()];
    decoded.fill(0.0);
    codec.add(kernels, payload, decoded);
    match answer {
        Answer::Difference => {
            rebase(kernels, have);
            let mut wide = [0.0; BLOCK];
            for (have, decoded) in have.chunks_mut(BLOCK).zip(decoded.chunks(BLOCK)) {
                let wide = &mut wide[..have.len()];
                kernels.widen(have, wide);
                let each = wide.iter_mut().zip(decoded);
                each.for_each(|(value, decoded)| *value += decoded);
                kernels.narrow(wide, have);
            }
        }
        Answer::Values => kernels.narrow(decoded, have),
    }
}

/// Computes a [difference](Answer::Difference): the weights minus the worker's values, after the worker's values are
/// [rebased](rebase).
pub(crate) fn difference<E: Element>(
    kernels: &Kernels,
    weights: &[f32],
    have: &mut [E],
    difference: &mut [f32],
) {
    rebase(kernels, have);
    if E::DTYPE != Dtype::F16 {
        // The compiler vectorizes these conversions. For f32, one pass instead of two saves a third of the time.
        let each = difference.iter_mut().zip(weights).zip(have);
        return each.for_each(|((value, weight), have)| *value = weight - have.to_f32());
    }
    let blocks = difference.chunks_mut(BLOCK).zip(weights.chunks(BLOCK)).zip(have.chunks(BLOCK));
    for ((difference, weights), have) in blocks {
        kernels.widen(have, difference);
        difference.iter_mut().zip(weights).for_each(|(value, weight)| *value = weight - *value);
    }
}

/// Replaces infinities and NaNs by zero, so that the next difference is the whole weight. No addition would change
/// them: infinity minus infinity is NaN. A value becomes infinite if its weight is infinite, or if the weight or a
/// difference is too large for the type of the key or of the codec.
fn rebase<E: Element>(kernels: &Kernels, have: &mut [E]) {
    kernels.work(Rebase(have));
}

struct Rebase<'a, E>(&'a mut [E]);

impl<E: Element> Work for Rebase<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<I: Converter>(self, _: I) {
        // The pass that only reads costs nothing, because the next pass finds the values in a near cache. A test in the
        // loop of `difference` made a round with `bf16` 1 to 5% longer.
        if self.0.iter().map(|value| u32::from(!value.is_finite())).sum::<u32>() > 0 {
            self.0.iter_mut().filter(|value| !value.is_finite()).for_each(|value| *value = E::default());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::f16;

    fn payload(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|&value| half::bf16::from_f32(value).to_le_bytes()).collect()
    }

    fn merged<E: Element>(answer: Answer, have: &[f32], decoded: &[f32]) -> Vec<f32> {
        let mut have: Vec<E> = have.iter().map(|&value| E::from_f32(value)).collect();
        let mut scratch = vec![7.0; have.len()];
        merge(&Codec::Bf16, Kernels::detect(), &payload(decoded), answer, &mut have, &mut scratch);
        have.iter().map(|have| have.to_f32()).collect()
    }

    #[test]
    fn differences_are_added_and_values_replace() {
        assert_eq!(merged::<f32>(Answer::Difference, &[1.0, -2.0], &[0.5, 2.0]), [1.5, 0.0]);
        assert_eq!(merged::<f16>(Answer::Difference, &[1.0, -2.0], &[0.5, 2.0]), [1.5, 0.0]);
        assert_eq!(merged::<f32>(Answer::Values, &[1.0, f32::NAN], &[0.5, 2.0]), [0.5, 2.0]);
        assert_eq!(merged::<f16>(Answer::Values, &[1.0, f32::NAN], &[0.5, 2.0]), [0.5, 2.0]);
    }

    /// The chunk is longer than a block, and its length is not a multiple of a block.
    #[test]
    fn long_chunks_are_merged_element_by_element() {
        fn check<E: Element>() {
            let weights: Vec<f32> = (0..2 * BLOCK + 77).map(|i| (i as f32).sin()).collect();
            let have: Vec<E> = weights.iter().map(|weight| E::from_f32(weight * 0.99)).collect();
            let mut change = vec![0.0; weights.len()];
            difference(Kernels::detect(), &weights, &mut have.clone(), &mut change);
            let mut merged = have.clone();
            let mut scratch = vec![7.0; have.len()];
            let payload = payload(&change);
            merge(&Codec::Bf16, Kernels::detect(), &payload, Answer::Difference, &mut merged, &mut scratch);
            for (i, have) in have.iter().enumerate() {
                assert_eq!(change[i], weights[i] - have.to_f32(), "{:?} {i}", E::DTYPE);
                let sent = half::bf16::from_f32(change[i]).to_f32();
                assert_eq!(merged[i], E::from_f32(have.to_f32() + sent), "{:?} {i}", E::DTYPE);
            }
        }
        check::<f32>();
        check::<f16>();
        check::<half::bf16>();
    }

    /// Returns a worker's values after each round, if the hub's weights are those of the rounds.
    fn followed<E: Element, const ROUNDS: usize>(first: f32, weights: [f32; ROUNDS]) -> [f32; ROUNDS] {
        // The chunk is longer than a block, and its length is not a multiple of a vector.
        let mut have = vec![E::from_f32(first); BLOCK + 77];
        let (mut change, mut scratch) = (vec![0.0; have.len()], vec![7.0; have.len()]);
        weights.map(|weight| {
            let weights = vec![weight; have.len()];
            difference(Kernels::detect(), &weights, &mut have, &mut change);
            let payload = payload(&change);
            merge(&Codec::Bf16, Kernels::detect(), &payload, Answer::Difference, &mut have, &mut scratch);
            let first = have[0].to_f32();
            let is_same = |value: &E| value.to_f32().to_bits() == first.to_bits();
            assert_eq!(have.iter().position(|value| !is_same(value)), None, "{:?}, {weight}", E::DTYPE);
            first
        })
    }

    /// A former bug: infinity minus infinity was NaN in f32 keys.
    #[test]
    fn workers_follow_weights_to_infinity_and_back() {
        fn check<E: Element>() {
            let weights = [f32::INFINITY, f32::INFINITY, f32::NEG_INFINITY, f32::NEG_INFINITY, 1.0, 1.0];
            assert_eq!(followed::<E, _>(0.5, weights), weights, "{:?}", E::DTYPE);
        }
        check::<f32>();
        check::<f16>();
        check::<half::bf16>();
    }

    /// A former bug: the difference of two finite weights was infinite, and the next difference was NaN.
    #[test]
    fn workers_follow_a_weight_whose_difference_is_too_large() {
        let (most, least) = (f32::from_bits(0x7f60_0000), -f32::from_bits(0x7f60_0000));
        assert_eq!(followed::<f32, _>(least, [most, most, -1.0]), [f32::INFINITY, most, 0.0]);
        assert_eq!(followed::<half::bf16, _>(least, [most, most]), [f32::INFINITY, most]);
        // The largest f32 is infinite in bf16.
        let last = followed::<f32, _>(0.0, [f32::MAX, f32::MAX, 1.0, f32::MIN]);
        assert_eq!(last, [f32::INFINITY, f32::INFINITY, 1.0, f32::NEG_INFINITY]);
    }

    /// A former bug: a worker's NaN remained after the weight was a number again.
    #[test]
    fn workers_follow_a_weight_that_was_not_a_number() {
        let [lost, back] = followed::<f32, _>(0.5, [f32::NAN, 1.0]);
        assert!(lost.is_nan() && back == 1.0, "{lost}, {back}");
    }

    /// 65520 is the smallest value that becomes infinite in f16.
    #[test]
    fn a_weight_of_16_bits_comes_back_from_infinity() {
        let beyond = merged::<f16>(Answer::Difference, &[65504.0], &[1024.0]);
        assert_eq!(beyond, [f32::INFINITY]);
        assert_eq!(merged::<f16>(Answer::Difference, &beyond, &[3.0]), [3.0]);
    }
}
