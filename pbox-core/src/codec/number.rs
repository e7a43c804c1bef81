//! Arithmetic on single numbers: a number that is not finite counts as zero, and sums stay finite.
//!
//! All functions are `#[inline(always)]`: each caller compiles them for its own instruction set.

/// The bits of infinity. Magnitudes can be compared by their bits, as integers.
const INFINITY: u32 = 0x7f80_0000;

/// Returns 1 if the value is a NaN or infinite, else 0.
#[inline(always)]
pub(super) fn not_finite(value: f32) -> u32 {
    u32::from(value.to_bits() & 0x7fff_ffff >= INFINITY)
}

/// Returns the value, or zero if it is not finite.
#[inline(always)]
pub(super) fn finite(value: f32) -> f32 {
    if value.to_bits() & 0x7fff_ffff < INFINITY { value } else { 0.0 }
}

/// Returns the bits of the value's magnitude, which can be compared as integers. Returns zero if the value is not finite.
#[inline(always)]
pub(super) fn magnitude(value: f32) -> u32 {
    finite(value).to_bits() & 0x7fff_ffff
}

/// Returns the finite number nearest to the result of an operation on finite numbers.
#[inline(always)]
pub(super) fn bounded(value: f32) -> f32 {
    value.clamp(f32::MIN, f32::MAX)
}

/// Returns the largest magnitude, and the number of values that are not finite.
#[inline(always)]
pub(super) fn largest_magnitude(values: &[f32]) -> (f32, u32) {
    let (mut most, mut count) = (0, 0);
    for &value in values {
        most = most.max(magnitude(value));
        count += not_finite(value);
    }
    (f32::from_bits(most), count)
}

/// A scaler that maps magnitudes from 0 to `scale` to the range from 0 to `top`, with two multiplications. The factor of a
/// single multiplication would be infinite for a `scale` below 2^-121, and would lose bits for a `scale` near the largest
/// number.
#[derive(Clone, Copy)]
pub(super) struct Ruler {
    power: f32,
    factor: f32,
}

impl Ruler {
    #[inline(always)]
    pub(super) fn new(scale: f32, top: f32) -> Self {
        const BIG: f32 = 18_446_744_073_709_551_616.0; // 2^64
        let power = match scale {
            scale if scale < 1.0 / BIG => BIG,
            scale if scale > BIG => 1.0 / BIG,
            _ => 1.0,
        };
        Ruler { power, factor: if scale > 0.0 { top / (scale * power) } else { 0.0 } }
    }

    /// Returns the scaled value of a finite value, with its sign.
    #[inline(always)]
    pub(super) fn scale(self, value: f32) -> f32 {
        value * self.power * self.factor
    }
}
