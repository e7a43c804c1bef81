//! `topk`: sends the values with the largest magnitudes, unchanged. The other values are kept and added to the next values
//! (Aji and Heafield, "Sparse Communication", 2017; Stich et al., "Sparsified SGD with Memory", 2018).

use super::payload::{self, Shape};
use crate::codec::encoded::Encoded;
use crate::codec::error::PayloadError;
use crate::codec::number::{bounded, finite, not_finite};
use crate::kernels::Kernels;
use crate::kernels::{Converter, Work};

/// Computes `ceil(ratio * elements)`, but at least 1 if there are elements. The product is in f32, like the ratio, so that
/// a tenth of ten is 1. The f32 nearest to a tenth is slightly larger than a tenth, so the exact product would be rounded
/// up to 2.
pub fn count(elements: usize, ratio: f32) -> usize {
    ((ratio * elements as f32).ceil() as usize).clamp(1, elements.max(1)).min(elements)
}

pub fn payload_bytes(elements: usize, ratio: f32) -> usize {
    Shape::new(elements, count(elements, ratio)).payload_bytes()
}

pub fn encode(
    kernels: &Kernels,
    ratio: f32,
    values: &[f32],
    state: &mut [f32],
    payload: &mut [u8],
) -> Encoded {
    let shape = Shape::new(values.len(), count(values.len(), ratio));
    let payload = &mut payload[..shape.payload_bytes()];
    let not_finite = kernels.work(Encode { shape, values, state, payload });
    payload::for_each(state.len(), payload, |i, _| state[i] = 0.0);
    Encoded { bytes: payload.len(), not_finite }
}

pub fn check_payload(ratio: f32, elements: usize, payload: &[u8]) -> Result<(), PayloadError> {
    let count = count(elements, ratio);
    payload::check_payload("topk", elements, count..=count, payload)
}

pub fn add(payload: &[u8], sum: &mut [f32]) {
    payload::for_each(sum.len(), payload, |i, value| sum[i] += value);
}

/// Work that adds the values to the kept values, and writes the largest sums.
struct Encode<'a> {
    shape: Shape,
    values: &'a [f32],
    state: &'a mut [f32],
    payload: &'a mut [u8],
}

impl Work for Encode<'_> {
    type Output = u32;

    #[inline(always)]
    fn run<I: Converter>(self, _: I) -> u32 {
        let count = add_to_state(self.values, self.state);
        let values = if self.state.is_empty() { self.values } else { self.state };
        self.shape.write_largest(values, self.payload);
        count
    }
}

/// Adds `values` to `state`, except for values that are not finite. Returns how many are not finite. An empty state stays
/// empty.
#[inline(always)]
pub fn add_to_state(values: &[f32], state: &mut [f32]) -> u32 {
    for (kept, &value) in state.iter_mut().zip(values) {
        *kept = bounded(*kept + finite(value));
    }
    values.iter().map(|&value| not_finite(value)).sum()
}
