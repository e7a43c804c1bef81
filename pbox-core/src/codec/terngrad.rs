//! `terngrad`: sends -1, 0 or 1 times the largest magnitude of the chunk, rounded at random so that the mean is the value.
//! From Wen et al., "TernGrad", 2017, without the paper's clipping, which would add a bias.
//!
//! ```text
//!   scale: f32 | a byte for five values: digits of base 3, 0 for -1, 1 for 0, 2 for 1
//! ```
//!
//! A value takes 1.6 bits; with two bits it would take a quarter more. With `s` bytes of digits, byte `i` has the values
//! `i`, `i + s`, `i + 2s`, `i + 3s` and `i + 4s`, the lowest digit first. Neighbouring values are in neighbouring bytes, so
//! that vector instructions can do all the work. Digits after the last value are 1.

use super::draw::Key;
use super::number::{Ruler, finite, largest_magnitude};
use super::{Encoded, PayloadError};
use crate::kernels::Kernels;
use crate::kernels::{Converter, Work};

/// The length of the scale, in bytes.
const SCALE: usize = 4;
/// The place values of a byte's digits.
const PLACES: [u8; 5] = [1, 3, 9, 27, 81];
/// A byte with five digits of 1, which are five zeros.
const ZEROS: u8 = 121;
/// The lowest byte that cannot be five digits.
const BEYOND: u8 = 243;
/// The number of bytes that are written at once.
const BLOCK: usize = 64;

pub(super) fn payload_bytes(elements: usize) -> usize {
    SCALE + elements.div_ceil(PLACES.len())
}

pub(super) fn encode(kernels: &Kernels, values: &[f32], key: Key, payload: &mut [u8]) -> Encoded {
    let bytes = payload.len();
    Encoded { bytes, not_finite: kernels.work(Encode { values, key, payload }) }
}

/// Checks the scale and the digits. `payload` must have the right length.
pub(super) fn check_payload(payload: &[u8]) -> Result<(), PayloadError> {
    let (scale, digits) = payload.split_at(SCALE);
    let seen = f32::from_le_bytes(scale.as_chunks().0[0]);
    if !(seen.is_finite() && seen.is_sign_positive()) {
        return Err(PayloadError::Scale { codec: "terngrad", bucket: 0, seen });
    }
    match digits.iter().position(|&byte| byte >= BEYOND) {
        None => Ok(()),
        Some(at) => Err(PayloadError::Digits { at: SCALE + at, seen: digits[at] }),
    }
}

pub(super) fn add(kernels: &Kernels, payload: &[u8], sum: &mut [f32]) {
    if payload.len() == payload_bytes(sum.len()) {
        kernels.work(Add { payload, sum });
    }
}

struct Encode<'a> {
    values: &'a [f32],
    key: Key,
    payload: &'a mut [u8],
}

impl Work for Encode<'_> {
    type Output = u32;

    #[inline(always)]
    fn run<I: Converter>(self, _: I) -> u32 {
        let (scale, not_finite) = largest_magnitude(self.values);
        let (place, bytes) = self.payload.split_at_mut(SCALE);
        place.copy_from_slice(&scale.to_le_bytes());
        let ruler = Ruler::new(scale, 1.0);
        let stride = bytes.len();
        for (block, bytes) in bytes.chunks_mut(BLOCK).enumerate() {
            let mut digits = [ZEROS; BLOCK];
            for (column, place) in PLACES.into_iter().enumerate() {
                let from = column * stride + block * BLOCK;
                let Some(values) = self.values.get(from..) else { break };
                let values = &values[..values.len().min(bytes.len())];
                add_digits(ruler, self.key, from as u32, values, place, &mut digits);
            }
            bytes.copy_from_slice(&digits[..bytes.len()]);
        }
        not_finite
    }
}

/// Adds the digits of `values` to `digits`. The first value has index `from` in the chunk.
#[inline(always)]
fn add_digits(ruler: Ruler, key: Key, from: u32, values: &[f32], place: u8, digits: &mut [u8; BLOCK]) {
    for (i, (&value, digit)) in values.iter().zip(digits).enumerate() {
        let value = finite(value);
        let random = key.one_to_two(from.wrapping_add(i as u32));
        let one = ruler.scale(value.abs()) + random >= 2.0;
        let signed = if value < 0.0 { place.wrapping_neg() } else { place };
        *digit = digit.wrapping_add(if one { signed } else { 0 });
    }
}

struct Add<'a> {
    payload: &'a [u8],
    sum: &'a mut [f32],
}

impl Work for Add<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Converter>(self, _: I) {
        let (scale, bytes) = self.payload.split_at(SCALE);
        let scale = f32::from_le_bytes(scale.as_chunks().0[0]);
        let (stride, elements) = (bytes.len(), self.sum.len());
        for (block, bytes) in bytes.chunks(BLOCK).enumerate() {
            let mut rest = [0; BLOCK];
            rest[..bytes.len()].copy_from_slice(bytes);
            for column in 0..PLACES.len() {
                let from = column * stride + block * BLOCK;
                let to = (from + bytes.len()).min(elements);
                let Some(sum) = self.sum.get_mut(from..to) else { break };
                for (sum, digits) in sum.iter_mut().zip(&rest) {
                    *sum += (f32::from(digits % 3) - 1.0) * scale;
                }
                rest = rest.map(|digits| digits / 3);
            }
        }
    }
}
