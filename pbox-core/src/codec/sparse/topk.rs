//! `topk`: the values of the largest magnitude, as they are; the others are kept and added to the next ones (Aji and
//! Heafield, "Sparse Communication", 2017; Stich et al., "Sparsified SGD with Memory", 2018). Payload: `sparse`.

use super::payload::{self, Shape};
use crate::codec::number::{bounded, finite, not_finite};
use crate::codec::{Encoded, PayloadError};
use crate::kernels::Kernels;
use crate::kernels::work::{Converter, Work};

/// `ceil(ratio * elements)`, at least one of them. In f32, as the ratio is: a tenth of ten is one, which the nearest
/// f32 to a tenth, taken exactly, is a little above.
pub(in crate::codec) fn count(elements: usize, ratio: f32) -> usize {
    ((ratio * elements as f32).ceil() as usize).clamp(1, elements.max(1)).min(elements)
}

pub(in crate::codec) fn payload_bytes(elements: usize, ratio: f32) -> usize {
    Shape::new(elements, count(elements, ratio)).payload_bytes()
}

pub(in crate::codec) fn encode(
    kernels: &Kernels,
    ratio: f32,
    values: &[f32],
    state: &mut [f32],
    payload: &mut [u8],
) -> Encoded {
    let shape = Shape::new(values.len(), count(values.len(), ratio));
    let payload = &mut payload[..shape.payload_bytes()];
    let not_finite = kernels.work(Encode { shape, values, state, payload });
    payload::each(state.len(), payload, |i, _| state[i] = 0.0);
    Encoded { bytes: payload.len(), not_finite }
}

pub(in crate::codec) fn check_payload(
    ratio: f32,
    elements: usize,
    payload: &[u8],
) -> Result<(), PayloadError> {
    let count = count(elements, ratio);
    payload::check_payload("topk", elements, count..=count, payload)
}

pub(in crate::codec) fn add(payload: &[u8], sum: &mut [f32]) {
    payload::each(sum.len(), payload, |i, value| sum[i] += value);
}

/// Adds the values to what was kept, and writes the largest of that.
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
        let count = feed(self.values, self.state);
        let values = if self.state.is_empty() { self.values } else { self.state };
        self.shape.write_largest(values, self.payload);
        count
    }
}

/// `state += values`, but for those that are not finite, which are counted. An empty state stays so.
#[inline(always)]
pub(in crate::codec) fn feed(values: &[f32], state: &mut [f32]) -> u32 {
    for (kept, &value) in state.iter_mut().zip(values) {
        *kept = bounded(*kept + finite(value));
    }
    values.iter().map(|&value| not_finite(value)).sum()
}
