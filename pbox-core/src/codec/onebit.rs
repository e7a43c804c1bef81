//! `onebit`: sends the sign of each value, and for each bucket the mean of its negative values and the mean of its other
//! values. The error is kept and added to the next values (Seide et al., "1-Bit Stochastic Gradient Descent", 2014).
//!
//! ```text
//!   for each bucket:  mean of the other values: f32 | mean of the negative values: f32 | a bit for each value, 1 is negative
//! ```
//!
//! A bucket has 512 values. The paper has two means for each column of a weight matrix; a column is about as long as a
//! bucket. Two means for a whole chunk would save a ninth of the bytes, but follow a matrix less closely.

use super::number::{bounded, finite, not_finite};
use super::{Encoded, PayloadError, bits};
use crate::kernels::Kernels;
use crate::kernels::{Converter, Work};

/// The number of values that share two means.
pub(super) const BUCKET: usize = 512;
/// The length of the means, in bytes.
const MEANS: usize = 8;
/// The number of sums that are computed side by side. It is the same for every instruction set, so that all instruction
/// sets give the same bits. With fewer sums, the compiler would unroll the loop before it makes vector code.
const SUMS: usize = 64;

pub(super) fn payload_bytes(elements: usize) -> usize {
    MEANS * elements.div_ceil(BUCKET) + bits::bytes(elements, 1)
}

pub(super) fn encode(kernels: &Kernels, values: &[f32], state: &mut [f32], payload: &mut [u8]) -> Encoded {
    let bytes = payload.len();
    Encoded { bytes, not_finite: kernels.work(Encode { values, state, payload }) }
}

/// Checks that the means are finite and have the right sign. `payload` must have the right length.
pub(super) fn check_payload(payload: &[u8]) -> Result<(), PayloadError> {
    for (bucket, payload) in payload.chunks(MEANS + BUCKET / 8).enumerate() {
        let [others, negative] = means(payload);
        let wrong = |scale: f32, negative: bool| {
            !scale.is_finite() || scale != 0.0 && scale.is_sign_negative() != negative
        };
        if let Some(&seen) = [(&others, false), (&negative, true)]
            .iter()
            .find_map(|&(mean, negative)| wrong(*mean, negative).then_some(mean))
        {
            return Err(PayloadError::Scale { codec: "onebit", bucket, seen });
        }
    }
    Ok(())
}

pub(super) fn add(kernels: &Kernels, payload: &[u8], sum: &mut [f32]) {
    if payload.len() == payload_bytes(sum.len()) {
        kernels.work(Add { payload, sum });
    }
}

fn means(payload: &[u8]) -> [f32; 2] {
    let means = payload[..MEANS].as_chunks::<4>().0;
    [f32::from_le_bytes(means[0]), f32::from_le_bytes(means[1])]
}

struct Encode<'a> {
    values: &'a [f32],
    state: &'a mut [f32],
    payload: &'a mut [u8],
}

impl Work for Encode<'_> {
    type Output = u32;

    #[inline(always)]
    fn run<I: Converter>(self, _: I) -> u32 {
        let mut not_finite = 0;
        let mut states = self.state.chunks_mut(BUCKET);
        for (values, payload) in self.values.chunks(BUCKET).zip(self.payload.chunks_mut(MEANS + BUCKET / 8)) {
            // The values of a bucket plus their kept errors. After the end of the chunk there are zeros.
            let mut bucket = [0.0; BUCKET];
            let state = states.next().unwrap_or_default();
            not_finite += fill_bucket(values, state, &mut bucket);
            let means = bucket_means(&bucket, values.len());
            let mut codes = [0; BUCKET];
            for (code, value) in codes.iter_mut().zip(&bucket) {
                *code = u8::from(*value < 0.0);
            }
            for (kept, value) in state.iter_mut().zip(&bucket) {
                *kept = value - if *value < 0.0 { means[1] } else { means[0] };
            }
            let (places, packed) = payload.split_at_mut(MEANS);
            places
                .as_chunks_mut()
                .0
                .iter_mut()
                .zip(means)
                .for_each(|(place, mean)| *place = mean.to_le_bytes());
            bits::pack(1, &codes[..values.len()], packed);
        }
        not_finite
    }
}

/// Fills the bucket with the values plus the kept errors, if there are any. Returns how many values are not finite.
#[inline(always)]
fn fill_bucket(values: &[f32], state: &[f32], bucket: &mut [f32; BUCKET]) -> u32 {
    let mut count = 0;
    for (place, &value) in bucket.iter_mut().zip(values) {
        *place = finite(value);
        count += not_finite(value);
    }
    for (place, &kept) in bucket.iter_mut().zip(state) {
        *place = bounded(*place + kept);
    }
    count
}

/// Computes the mean of the values that are not negative, then the mean of the negative values. Sums in f64, in which no
/// sum of finite f32 is infinite. The bucket has `values` values; the rest is zero.
#[inline(always)]
fn bucket_means(bucket: &[f32; BUCKET], values: usize) -> [f32; 2] {
    let (mut others, mut negative) = ([0.0; SUMS], [0.0; SUMS]);
    for block in bucket.as_chunks::<SUMS>().0 {
        for ((others, negative), &value) in others.iter_mut().zip(&mut negative).zip(block) {
            *others += f64::from(value.max(0.0));
            *negative += f64::from(value.min(0.0));
        }
    }
    let count: u32 = bucket.iter().map(|&value| u32::from(value < 0.0)).sum();
    let mean = |sums, count: usize| if count == 0 { 0.0 } else { (total(sums) / count as f64) as f32 };
    [mean(others, values - count as usize), mean(negative, count as usize)]
}

/// Adds the sums: one half is added to the other half, until one sum is left.
#[inline(always)]
fn total(mut sums: [f64; SUMS]) -> f64 {
    let mut half = SUMS / 2;
    while half > 0 {
        let (low, high) = sums.split_at_mut(half);
        low.iter_mut().zip(high).for_each(|(low, high)| *low += *high);
        half /= 2;
    }
    sums[0]
}

struct Add<'a> {
    payload: &'a [u8],
    sum: &'a mut [f32],
}

impl Work for Add<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Converter>(self, _: I) {
        for (sum, payload) in self.sum.chunks_mut(BUCKET).zip(self.payload.chunks(MEANS + BUCKET / 8)) {
            let [others, negative] = means(payload);
            let mut codes = [0; BUCKET];
            bits::unpack(1, &payload[MEANS..], &mut codes[..sum.len()]);
            for (sum, code) in sum.iter_mut().zip(&codes) {
                *sum += if *code == 0 { others } else { negative };
            }
        }
    }
}
