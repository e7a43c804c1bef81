//! The exact sum of squares. The order of additions does not matter, so the bits of the sum do not depend on which core or
//! hub adds first.
//!
//! ```text
//!   bit 0 of word 0 is 2^-298, the square of the smallest f32       bit 63 of word 9 is 2^341
//!   [ word 0 ][ word 1 ] ......................................... [ word 9 ][ sum of values that are not finite ]
//! ```
//!
//! The largest square of an f32 is below 2^256, so there is room for 2^85 squares. The sum is rounded only once: when it is
//! read.

/// The weight of the sum's lowest bit is 2 to the power of this number.
const LOWEST: i32 = -298;

/// The number of 64-bit words of the sum.
const WORDS: usize = 10;

/// An exact sum. Its terms are squares of f32, or sums of such squares that were rounded to f64.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ExactSum {
    /// The sum of the finite values as an integer, the lowest word first.
    words: [u64; WORDS],
    /// The sum of the values that were not finite: 0, infinite, or NaN.
    not_finite: f64,
}

impl ExactSum {
    /// The number of words that [`to_words`](Self::to_words) writes.
    pub const WORDS: usize = WORDS + 1;

    /// An unknown sum. Any sum that it is added to becomes NaN.
    pub const UNKNOWN: ExactSum = ExactSum { words: [0; WORDS], not_finite: f64::NAN };

    /// Adds a square, or a sum of squares.
    pub fn add(&mut self, square: f64) {
        debug_assert!(square.is_nan() || square.is_sign_positive(), "{square} is not a square");
        if !square.is_finite() {
            self.not_finite += square;
            return;
        }
        let bits = square.to_bits();
        if bits == 0 {
            return;
        }
        // Squares of f32 are normal numbers of f64, so the leading bit of the fraction is implicit.
        let (exponent, fraction) = ((bits >> 52) as i32 - 1075, bits & ((1 << 52) - 1) | 1 << 52);
        let up = (exponent - LOWEST).max(0) as u32;
        let at = u128::from(fraction >> (LOWEST - exponent).max(0) as u32) << (up % 64);
        self.add_words((up / 64) as usize, &[at as u64, (at >> 64) as u64]);
    }

    /// Adds another sum.
    pub fn join(&mut self, other: &ExactSum) {
        self.add_words(0, &other.words);
        self.not_finite += other.not_finite;
    }

    /// Adds words, beginning at this index.
    fn add_words(&mut self, index: usize, more: &[u64]) {
        let mut carry = false;
        for (word, more) in self.words[index..].iter_mut().zip(more.iter().chain(std::iter::repeat(&0))) {
            (*word, carry) = word.carrying_add(*more, carry);
        }
    }

    /// Whether all added values are finite.
    pub fn is_finite(&self) -> bool {
        self.not_finite == 0.0
    }

    /// Returns the sum, rounded to the nearest f64.
    pub fn value(&self) -> f64 {
        if !self.is_finite() {
            return self.not_finite;
        }
        let Some(top) = self.words.iter().rposition(|&word| word != 0) else { return 0.0 };
        let below = &self.words[..top];
        let (next, rest) = below.split_last().map_or((0, below), |(&next, rest)| (next, rest));
        let empty = self.words[top].leading_zeros();
        let both = (u128::from(self.words[top]) << 64 | u128::from(next)) << empty;
        // If any bit below the leading 64 bits is set, the lowest of the 64 bits is set. An f64 has 11 bits less, so
        // the rounding is right.
        let is_more = both as u64 != 0 || rest.iter().any(|&word| word != 0);
        let rounded = ((both >> 64) as u64 | u64::from(is_more)) as f64;
        rounded * 2f64.powi(64 * top as i32 - empty as i32 + LOWEST)
    }

    /// Returns the norm of the values whose squares were added: the root of the sum.
    pub fn norm(&self) -> f32 {
        self.value().sqrt() as f32
    }

    /// Writes the sum as words.
    pub fn to_words(&self) -> [u64; Self::WORDS] {
        let mut words = [self.not_finite.to_bits(); Self::WORDS];
        words[..WORDS].copy_from_slice(&self.words);
        words
    }

    /// Reads words that [`to_words`](Self::to_words) has written. Returns `None` if the last word has an impossible value.
    pub fn of_words(words: &[u64; Self::WORDS]) -> Option<Self> {
        let (sum, not_finite) = words.split_at(WORDS);
        let not_finite = f64::from_bits(not_finite[0]);
        let is_one = not_finite == 0.0 || not_finite == f64::INFINITY || not_finite.is_nan();
        is_one.then_some(ExactSum { words: sum.try_into().expect("the words of the sum"), not_finite })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::oracle;
    use proptest::prelude::*;

    fn sum(squares: &[f64]) -> ExactSum {
        let mut sum = ExactSum::default();
        squares.iter().for_each(|&square| sum.add(square));
        sum
    }

    fn square(value: f32) -> f64 {
        f64::from(value) * f64::from(value)
    }

    #[test]
    fn the_smallest_and_the_largest_squares_have_room() {
        let (smallest, largest) = (square(f32::from_bits(1)), square(f32::MAX));
        assert_eq!(sum(&[smallest]).words[0], 1);
        assert_eq!([smallest, largest].map(|square| sum(&[square]).value()), [smallest, largest]);
        let mut many = sum(&[largest]);
        (0..80).for_each(|_| many.join(&many.clone()));
        assert_eq!(many.value(), largest * 2f64.powi(80));
        assert_eq!((ExactSum::default().value(), sum(&[0.0]).value()), (0.0, 0.0));
    }

    #[test]
    fn halves_are_rounded_to_even() {
        let one = 1u64 << 53;
        for (odd, expected) in [(one, one), (one + 2, one + 4)] {
            assert_eq!(sum(&[odd as f64, 1.0]).value(), expected as f64);
            assert_eq!(
                sum(&[odd as f64, 1.0, square(1e-40)]).value(),
                (odd + 2) as f64,
                "a bit more than half"
            );
        }
    }

    #[test]
    fn words_that_are_no_sum_are_seen() {
        for lie in [1.0, -0.5, f64::NEG_INFINITY] {
            let words = ExactSum { not_finite: lie, ..sum(&[4.0]) }.to_words();
            assert_eq!(ExactSum::of_words(&words), None, "{lie}");
        }
    }

    #[test]
    fn what_is_not_finite_stays() {
        let infinite = sum(&[1.0, f64::INFINITY, 4.0]);
        assert_eq!(
            (infinite.value(), infinite.norm(), infinite.is_finite()),
            (f64::INFINITY, f32::INFINITY, false)
        );
        let mut none = sum(&[-f64::NAN]); // x86 gives NaN this sign
        none.join(&infinite);
        assert!(none.value().is_nan() && none.norm().is_nan() && !none.is_finite());
    }

    proptest! {
        #[test]
        fn parts_in_any_order_are_the_sum_rounded_once(
            values in proptest::collection::vec((any::<u32>(), 1u32..9), 0..60),
            cut in any::<prop::sample::Index>(),
        ) {
            // A value may stand for several equal squares: their sum, which is rounded.
            let finite = |&(bits, times): &(u32, u32)| {
                let value = f32::from_bits(bits);
                value.is_finite().then(|| square(value) * f64::from(times))
            };
            let squares: Vec<f64> = values.iter().filter_map(finite).collect();
            let (first, second) = squares.split_at(cut.index(squares.len() + 1));
            let mut joined = sum(second);
            joined.join(&ExactSum::of_words(&sum(first).to_words()).unwrap());
            prop_assert_eq!(joined, sum(&squares));
            prop_assert_eq!(joined.value().to_bits(), oracle::exact_sum(squares.into_iter()).to_bits());
        }
    }
}
