//! `qsgd`: sends levels between zero and the largest magnitude of a bucket, rounded at random so that the mean is the
//! value. From Alistarh et al., "QSGD", 2017, with the largest magnitude as the scale, as in the paper's experiments.
//!
//! ```text
//!   scale: f32 for each bucket | sign and level of each value, `bits` each, packed
//! ```
//!
//! The sign is the highest bit of a code. With 2 or more bits there are `2^(bits - 1) - 1` levels on each side of zero:
//!
//! | bits | 1 | 2 | 3 | 4 | 5 | 6 | 7 | 8 |
//! | --- | --- | --- | --- | --- | --- | --- | --- | --- |
//! | levels | the scale with either sign | 1 | 3 | 7 | 15 | 31 | 63 | 127 |
//!
//! A single bit cannot express zero. A value becomes plus or minus the scale, with probabilities that keep the mean.

use super::bits;
use super::draw::Key;
use super::number::{Ruler, finite, largest_magnitude};
use super::{Codec, Encoded, PayloadError};
use crate::kernels::Kernels;
use crate::kernels::{Converter, Work};

/// The number of codes that are packed at once. With any number of bits, they fill whole bytes. The codes and their values
/// fit in the first level of cache.
const BLOCK: usize = 512;
/// The divisor of the size to which buckets of answers are cut, so that a cut bucket is a whole number of vectors.
const BUCKET_STEP: usize = 16;

/// The settings of the codec.
#[derive(Clone, Copy)]
pub(super) struct Qsgd {
    pub(super) bits: u8,
    pub(super) bucket: usize,
}

impl Qsgd {
    pub(super) fn payload_bytes(self, elements: usize) -> usize {
        4 * elements.div_ceil(self.bucket) + bits::bytes(elements, self.bits)
    }

    /// Returns the levels on each side of zero.
    pub(super) fn levels(self) -> u8 {
        (1 << (self.bits - 1)) - u8::from(self.bits > 1)
    }

    /// Returns the settings for answers. In an answer, the largest value of a bucket is exact, and the error of every
    /// other value is below one level. An answer contracts if it is nearer to the encoded values than zero is. This holds
    /// if a bucket has at most as many values as the square of the number of levels. So larger buckets are cut to this
    /// size. Answers have at least 4 bits, because with fewer bits the scales would take more bytes than the levels.
    pub(super) fn contracting(self) -> Self {
        let bits = self.bits.max(4);
        let levels = usize::from(Qsgd { bits, ..self }.levels());
        let largest = (levels * levels) / BUCKET_STEP * BUCKET_STEP;
        Qsgd { bits, bucket: self.bucket.min(largest) }
    }

    pub(super) fn codec(self) -> Codec {
        Codec::Qsgd { bits: self.bits, bucket: self.bucket as u32 }
    }

    pub(super) fn encode(self, kernels: &Kernels, values: &[f32], key: Key, payload: &mut [u8]) -> Encoded {
        let (scales, codes) = payload.split_at_mut(4 * values.len().div_ceil(self.bucket));
        let not_finite = kernels.work(Encode { qsgd: self, values, key, scales, codes });
        Encoded { bytes: payload.len(), not_finite }
    }

    /// Checks that the scales are finite and not negative. `payload` must have the right length.
    pub(super) fn check_payload(self, elements: usize, payload: &[u8]) -> Result<(), PayloadError> {
        let scales = payload[..4 * elements.div_ceil(self.bucket)].as_chunks::<4>().0;
        let scales = scales.iter().map(|&bytes| f32::from_le_bytes(bytes)).enumerate();
        let wrong = scales.into_iter().find(|(_, scale)| !(scale.is_finite() && scale.is_sign_positive()));
        match wrong {
            None => Ok(()),
            Some((bucket, seen)) => Err(PayloadError::Scale { codec: "qsgd", bucket, seen }),
        }
    }

    pub(super) fn add(self, kernels: &Kernels, payload: &[u8], sum: &mut [f32]) {
        if payload.len() == self.payload_bytes(sum.len()) {
            let (scales, codes) = payload.split_at(4 * sum.len().div_ceil(self.bucket));
            kernels.work(Add { qsgd: self, scales, codes, sum });
        }
    }

    /// Splits a block at the borders of buckets. A part has the number of its bucket, and its start and end in the
    /// block.
    #[inline(always)]
    fn bucket_parts(self, start: usize, length: usize) -> impl Iterator<Item = (usize, usize, usize)> {
        let (first, last) = (start / self.bucket, (start + length - 1) / self.bucket);
        (first..=last).map(move |bucket| {
            let from = (bucket * self.bucket).max(start) - start;
            (bucket, from, ((bucket + 1) * self.bucket - start).min(length))
        })
    }
}

struct Encode<'a> {
    qsgd: Qsgd,
    values: &'a [f32],
    key: Key,
    scales: &'a mut [u8],
    codes: &'a mut [u8],
}

impl Work for Encode<'_> {
    type Output = u32;

    #[inline(always)]
    fn run<I: Converter>(self, _: I) -> u32 {
        let Encode { qsgd, values, key, scales, codes: packed } = self;
        let mut not_finite = 0;
        let scales = scales.as_chunks_mut::<4>().0;
        for (bucket, place) in values.chunks(qsgd.bucket).zip(&mut *scales) {
            let (scale, count) = largest_magnitude(bucket);
            *place = scale.to_le_bytes();
            not_finite += count;
        }
        let packed = packed.chunks_mut(bits::bytes(BLOCK, qsgd.bits));
        for ((block, values), packed) in values.chunks(BLOCK).enumerate().zip(packed) {
            let mut codes = [0; BLOCK];
            let codes = &mut codes[..values.len()];
            let start = block * BLOCK;
            for (bucket, from, to) in qsgd.bucket_parts(start, values.len()) {
                let scale = f32::from_le_bytes(scales[bucket]);
                let (values, codes) = (&values[from..to], &mut codes[from..to]);
                let rounding = Rounding { key, first: (start + from) as u32 };
                match qsgd.bits {
                    1 => rounding.encode_signs(scale, values, codes),
                    bits => rounding.encode_levels(scale, bits, values, codes),
                }
            }
            bits::pack(qsgd.bits, codes, packed);
        }
        not_finite
    }
}

/// Stochastic rounding with the random numbers of `key`, beginning with number `first`.
#[derive(Clone, Copy)]
struct Rounding {
    key: Key,
    first: u32,
}

impl Rounding {
    #[inline(always)]
    fn encode_levels(self, scale: f32, bits: u8, values: &[f32], codes: &mut [u8]) {
        let levels = (1u32 << (bits - 1)) - 1;
        let ruler = Ruler::new(scale, levels as f32);
        self.encode_each(values, codes, |value, random| {
            // The level is the whole part, or one more with a probability equal to the fraction. `random` is from 1 to
            // below 2, so the whole part is 1 too large.
            let level = whole_part(ruler.scale(value.abs()) + random) - 1;
            level.min(levels) | value.to_bits() >> 31 << (bits - 1)
        });
    }

    #[inline(always)]
    fn encode_signs(self, scale: f32, values: &[f32], codes: &mut [u8]) {
        let ruler = Ruler::new(scale, 0.5);
        self.encode_each(values, codes, |value, random| {
            let plus = ruler.scale(value) + 0.5 + random >= 2.0;
            u32::from(!plus)
        });
    }

    /// Computes each code from the value and a random number from 1 to below 2. A value that is not finite counts as zero.
    #[inline(always)]
    fn encode_each(self, values: &[f32], codes: &mut [u8], code: impl Fn(f32, f32) -> u32) {
        for (i, (&value, place)) in values.iter().zip(codes).enumerate() {
            let random = self.key.one_to_two(self.first.wrapping_add(i as u32));
            *place = code(finite(value), random) as u8;
        }
    }
}

/// Returns the whole part of a number from 0 to below 2^22. From 2^23 on, f32 has no fractions, so adding 2^23 rounds the
/// number. If this rounded up, 1 is subtracted. A cast would give the same result, but would also handle numbers out of
/// range, and encoding would take four times as long.
#[inline(always)]
fn whole_part(number: f32) -> u32 {
    const WHOLE: f32 = 8_388_608.0; // 2^23
    let rounded = number + WHOLE;
    (rounded.to_bits() & 0x007f_ffff) - u32::from(rounded - WHOLE > number)
}

struct Add<'a> {
    qsgd: Qsgd,
    scales: &'a [u8],
    codes: &'a [u8],
    sum: &'a mut [f32],
}

impl Work for Add<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Converter>(self, _: I) {
        let Add { qsgd, scales, codes: packed, sum } = self;
        let scales = scales.as_chunks::<4>().0;
        let packed = packed.chunks(bits::bytes(BLOCK, qsgd.bits));
        for ((block, sum), packed) in sum.chunks_mut(BLOCK).enumerate().zip(packed) {
            let mut codes = [0; BLOCK];
            let codes = &mut codes[..sum.len()];
            bits::unpack(qsgd.bits, packed, codes);
            for (bucket, from, to) in qsgd.bucket_parts(block * BLOCK, sum.len()) {
                let scale = f32::from_le_bytes(scales[bucket]);
                add_levels(qsgd, scale, &codes[from..to], &mut sum[from..to]);
            }
        }
    }
}

#[inline(always)]
fn add_levels(qsgd: Qsgd, scale: f32, codes: &[u8], sum: &mut [f32]) {
    // The scale is multiplied last. So a small scale loses no bits, and a large scale does not become infinite.
    let (sign, step) = (qsgd.bits - 1, 1.0 / f32::from(qsgd.levels()));
    let low = (1u32 << sign) - 1;
    let one = u32::from(qsgd.bits == 1);
    let value = |code: u8| {
        let code = u32::from(code);
        let magnitude = ((code & low) | one) as i32 as f32 * step * scale;
        f32::from_bits(magnitude.to_bits() | code >> sign << 31)
    };
    for (&code, place) in codes.iter().zip(sum) {
        *place += value(code);
    }
}
