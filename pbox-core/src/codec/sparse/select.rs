//! The selection of the values with the largest magnitudes.
//!
//! It is a radix selection of two bits at a time. Its 16 passes only count, so they run on whole vectors and need no
//! histogram and no list of candidates. The selection ends early if a threshold selects exactly the wanted number of
//! values.
//!
//! All functions are `#[inline(always)]`: each caller compiles them for its own instruction set.

use crate::codec::bits;
use crate::codec::number::magnitude;

/// The number of values whose flags fit in one integer of 64 bits.
const BLOCK: usize = 64;

/// A selection: all values with a magnitude above the threshold, and the first few values with exactly this magnitude.
#[derive(Clone, Copy)]
pub(super) struct Chosen {
    /// The bits of the magnitude that is the threshold.
    threshold: u32,
    /// The number of selected values with exactly this magnitude.
    equal: usize,
}

impl Chosen {
    /// Selects the `count` values with the largest magnitudes. Among equal magnitudes, the first values are selected.
    /// Values that are not finite count as zero. There must be at least `count` values.
    #[inline(always)]
    pub(super) fn largest(values: &[f32], count: usize) -> Self {
        let mut threshold = 0;
        for shift in (0..=30).rev().step_by(2) {
            // Magnitudes have 31 bits, so bit 31 is zero. At the highest pair of bits, the counts of digits 2 and 3
            // are therefore zero.
            let steps = [1, 2, 3].map(|digit| threshold + (digit << shift));
            let counts = count_at_least(values, steps);
            let best = (0..3).rev().find(|&i| counts[i] as usize >= count);
            if let Some(best) = best {
                threshold = steps[best];
                if counts[best] as usize == count {
                    break;
                }
            }
        }
        let [above] = count_at_least(values, [threshold + 1]);
        Chosen { threshold, equal: count - above as usize }
    }

    /// Calls `act` with the index and the value of each selected element, in order.
    #[inline(always)]
    pub(super) fn for_each(self, values: &[f32], mut act: impl FnMut(usize, f32)) {
        let mut equal = self.equal;
        for (block, values) in values.chunks(BLOCK).enumerate() {
            let mut flags = [0; BLOCK];
            for (flag, &value) in flags.iter_mut().zip(values) {
                *flag = u8::from(magnitude(value) >= self.threshold);
            }
            let mut packed = [0; BLOCK / 8];
            bits::pack(1, &flags, &mut packed);
            for i in Ones(u64::from_le_bytes(packed)) {
                let value = values[i];
                if magnitude(value) == self.threshold {
                    if equal == 0 {
                        continue;
                    }
                    equal -= 1;
                }
                act(block * BLOCK + i, value);
            }
        }
    }
}

/// The indices of the bits that are 1 in a number, ascending.
pub(super) struct Ones(pub(super) u64);

impl Iterator for Ones {
    type Item = usize;

    #[inline(always)]
    fn next(&mut self) -> Option<usize> {
        if self.0 == 0 {
            return None;
        }
        let bit = self.0.trailing_zeros() as usize;
        self.0 &= self.0 - 1;
        Some(bit)
    }
}

/// Counts, for each threshold in `steps`, the magnitudes that are not below the threshold.
#[inline(always)]
fn count_at_least<const N: usize>(values: &[f32], steps: [u32; N]) -> [u32; N] {
    let mut counts = [0; N];
    for &value in values {
        let magnitude = magnitude(value);
        for i in 0..N {
            counts[i] += u32::from(magnitude >= steps[i]);
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn selection_gives_the_same_values_as_sorting(
            values in proptest::collection::vec(
                prop_oneof![(-3i8..4).prop_map(f32::from), any::<u32>().prop_map(f32::from_bits), -1e3f32..1e3],
                1..300,
            ),
            share in 0.0f64..1.0,
        ) {
            let count = 1 + (share * values.len() as f64) as usize;
            let size = |i: &usize| if values[*i].is_finite() { values[*i].abs() } else { 0.0 };
            let mut expected: Vec<usize> = (0..values.len()).collect();
            expected.sort_by(|a, b| size(b).total_cmp(&size(a)));
            expected.truncate(count);
            expected.sort_unstable();
            let mut seen = Vec::new();
            Chosen::largest(&values, count).for_each(&values, |i, _| seen.push(i));
            prop_assert_eq!(seen, expected);
        }
    }
}
