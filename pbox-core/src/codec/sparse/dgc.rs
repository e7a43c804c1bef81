//! `dgc`: the largest sums of momentum, that is `topk` with momentum of its own (Lin et al., "Deep Gradient
//! Compression", 2018). Payload: `sparse`. The hub's optimizer should have no momentum then.
//!
//! For each element the worker keeps `u` and `v`, all `u` of the chunk first:
//!
//! - clipping: gradients are scaled down where the norm of the chunk is above `clip * sqrt(elements)`;
//! - momentum correction: `u = momentum * u + g; v += u`; the largest of `v` are sent;
//! - momentum factor masking: what is sent is zero in `u` and `v`;
//! - warm-up: the share that is sent falls exponentially from a quarter to `ratio`.
//!
//! The paper clips by the norm of the whole model, at `threshold / sqrt(workers)`. A chunk does not know the model:
//! it gets the share of the threshold that it would have if all elements were alike, which is the threshold times
//! the root of the share of the elements. So `clip` is a root mean square: for a threshold of the paper it is
//! `threshold / sqrt(workers * elements of the model)`. The paper's warm-up is in steps of a quarter for each epoch;
//! here it is smooth, in rounds, from round 1 on.

use super::payload::{self, Shape};
use super::topk::{self, count};
use crate::codec::number::{bounded, finite, not_finite};
use crate::codec::{Encoded, PayloadError};
use crate::kernels::Kernels;
use crate::kernels::work::{Converter, Work};
use crate::layout::Round;

/// The share that is sent at first.
const FIRST: f32 = 0.25;
/// Sums that grow side by side. As many in every instruction set, so that all have the same bits.
const LANES: usize = 16;

/// A codec's settings.
#[derive(Clone, Copy)]
pub(in crate::codec) struct Dgc {
    pub(in crate::codec) ratio: f32,
    pub(in crate::codec) momentum: f32,
    pub(in crate::codec) clip: Option<f32>,
    pub(in crate::codec) warmup_rounds: u32,
}

impl Dgc {
    pub(in crate::codec) fn payload_bytes(self, elements: usize) -> usize {
        topk::payload_bytes(elements, self.most())
    }

    /// The largest share that is ever sent.
    fn most(self) -> f32 {
        if self.warmup_rounds > 0 { self.ratio.max(FIRST) } else { self.ratio }
    }

    /// The share that is sent in a round. By square roots, whose bits are the same on every machine, as those of
    /// powers are not.
    fn ratio_in(self, round: Round) -> f32 {
        let done = round.0.saturating_sub(1);
        if done >= self.warmup_rounds || self.ratio >= FIRST {
            return self.ratio;
        }
        let (mut root, mut ratio) = (f64::from(self.ratio) / f64::from(FIRST), f64::from(FIRST));
        let mut exponent = ((u64::from(done) << 32) / u64::from(self.warmup_rounds)) as u32;
        while exponent != 0 {
            root = root.sqrt();
            if exponent >> 31 == 1 {
                ratio *= root;
            }
            exponent <<= 1;
        }
        ratio as f32
    }

    pub(in crate::codec) fn encode(
        self,
        kernels: &Kernels,
        values: &[f32],
        state: &mut [f32],
        round: Round,
        payload: &mut [u8],
    ) -> Encoded {
        let ratio = self.ratio_in(round);
        if state.is_empty() {
            return topk::encode(kernels, ratio, values, state, payload);
        }
        let elements = values.len();
        let shape = Shape::new(elements, count(elements, ratio));
        let payload = &mut payload[..shape.payload_bytes()];
        let (u, v) = state.split_at_mut(elements);
        let not_finite = kernels.work(Encode { dgc: self, shape, values, u, v, payload });
        payload::each(elements, payload, |i, _| (u[i], v[i]) = (0.0, 0.0));
        Encoded { bytes: payload.len(), not_finite }
    }

    pub(in crate::codec) fn check_payload(self, elements: usize, payload: &[u8]) -> Result<(), PayloadError> {
        payload::check_payload(
            "dgc",
            elements,
            count(elements, self.ratio)..=count(elements, self.most()),
            payload,
        )
    }
}

struct Encode<'a> {
    dgc: Dgc,
    shape: Shape,
    values: &'a [f32],
    u: &'a mut [f32],
    v: &'a mut [f32],
    payload: &'a mut [u8],
}

impl Work for Encode<'_> {
    type Output = u32;

    #[inline(always)]
    fn run<I: Converter>(self, _: I) -> u32 {
        let factor = match self.dgc.clip {
            None => 1.0,
            Some(clip) => clipping(clip, self.values),
        };
        let momentum = self.dgc.momentum;
        let mut count = 0;
        for ((u, v), &value) in self.u.iter_mut().zip(&mut *self.v).zip(self.values) {
            *u = bounded(momentum * *u + factor * finite(value));
            *v = bounded(*v + *u);
            count += not_finite(value);
        }
        self.shape.write_largest(self.v, self.payload);
        count
    }
}

/// What brings the norm down to the bound; 1 where it is not above. In f64, where no square is infinite.
#[inline(always)]
fn clipping(clip: f32, values: &[f32]) -> f32 {
    let mut sums = [0.0; LANES];
    let (blocks, rest) = values.as_chunks::<LANES>();
    for block in blocks {
        for i in 0..LANES {
            let value = f64::from(finite(block[i]));
            sums[i] += value * value;
        }
    }
    for (sum, &value) in sums.iter_mut().zip(rest) {
        *sum += f64::from(finite(value)) * f64::from(finite(value));
    }
    let norm = sums.iter().sum::<f64>().sqrt();
    let bound = f64::from(clip) * (values.len() as f64).sqrt();
    if norm > bound { (bound / norm) as f32 } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_falls_by_a_fourth_where_the_paper_has_it() {
        let dgc = Dgc { ratio: 0.25 / 256.0, momentum: 0.9, clip: None, warmup_rounds: 400 };
        for (round, expected) in [(0, 0.25), (1, 0.25), (101, 0.0625), (201, 0.015625), (301, 0.00390625)] {
            let seen = dgc.ratio_in(Round(round));
            assert!((seen / expected - 1.0).abs() < 1e-6, "round {round}: {seen}, expected {expected}");
        }
        assert_eq!(dgc.ratio_in(Round(401)), dgc.ratio);
        assert_eq!(dgc.ratio_in(Round(u32::MAX)), dgc.ratio);
        let falls = (1..450).map(|round| dgc.ratio_in(Round(round))).is_sorted_by(|a, b| a >= b);
        assert!(falls);
        assert_eq!(Dgc { ratio: 0.5, ..dgc }.ratio_in(Round(1)), 0.5);
        assert_eq!(Dgc { warmup_rounds: 0, ..dgc }.ratio_in(Round(1)), dgc.ratio);
    }
}
