//! What codecs do to single numbers: what is not finite counts as zero, and sums stay finite.
//!
//! `#[inline(always)]` throughout: each caller compiles it for its own instruction set.

/// The bits of infinity. As integers, the bits of magnitudes are in the order of the magnitudes.
const INFINITY: u32 = 0x7f80_0000;

/// Whether it is a NaN or infinite, as a number to add up.
#[inline(always)]
pub(super) fn not_finite(value: f32) -> u32 {
    u32::from(value.to_bits() & 0x7fff_ffff >= INFINITY)
}

/// The value, or zero where it is not finite.
#[inline(always)]
pub(super) fn finite(value: f32) -> f32 {
    if value.to_bits() & 0x7fff_ffff < INFINITY { value } else { 0.0 }
}

/// The bits of its magnitude, by which magnitudes can be compared; zero where it is not finite.
#[inline(always)]
pub(super) fn magnitude(value: f32) -> u32 {
    finite(value).to_bits() & 0x7fff_ffff
}

/// The nearest finite number to a sum or product of finite ones.
#[inline(always)]
pub(super) fn bounded(value: f32) -> f32 {
    value.clamp(f32::MIN, f32::MAX)
}

/// The largest magnitude, and how many are not finite.
#[inline(always)]
pub(super) fn largest(values: &[f32]) -> (f32, u32) {
    let (mut most, mut count) = (0, 0);
    for &value in values {
        most = most.max(magnitude(value));
        count += not_finite(value);
    }
    (f32::from_bits(most), count)
}

/// Brings magnitudes up to `scale` into 0 to `top`, by two multiplications: with one, the factor would be infinite
/// for scales below 2^-121, and lose bits for those near the largest number.
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

    /// Of a finite value; the sign stays.
    #[inline(always)]
    pub(super) fn measure(self, value: f32) -> f32 {
        value * self.power * self.factor
    }
}
