//! `dgc`: sends the values with the largest accumulated momentum. It is `topk` with its own momentum (Lin et al., "Deep
//! Gradient Compression", 2018). The hub's optimizer should then have no momentum.
//!
//! For each element the worker keeps `u` and `v`; all `u` of the chunk come first:
//!
//! - clipping: gradients are scaled down if the norm of the chunk is above `clip * sqrt(elements)`;
//! - momentum correction, for a gradient `g`: `u = momentum * u + g; v += u`; the largest values of `v` are sent;
//! - momentum factor masking: `u` and `v` of every sent element become zero;
//! - warm-up: the share that is sent falls exponentially from a quarter to `ratio`.
//!
//! The paper clips by the norm of the whole model, at `threshold / sqrt(workers)`. The encoder of a chunk does not know
//! the whole model. So each chunk is clipped at its part of the threshold, as if all elements were equally large. This
//! part is the threshold times the square root of the chunk's share of the elements. Therefore `clip` is a root mean
//! square. For a threshold of the paper, `clip` is `threshold / sqrt(workers * elements of the model)`.
//!
//! The paper's warm-up divides the share by 4 in each epoch. Here the share falls in each round, from round 1 on.

use super::payload::{self, Shape};
use super::topk::{self, count};
use crate::codec::encoded::Encoded;
use crate::codec::error::PayloadError;
use crate::codec::number::{bounded, finite, not_finite};
use crate::kernels::Kernels;
use crate::kernels::{Converter, Work};
use crate::layout::Round;

/// The share that is sent in the first rounds.
const FIRST_RATIO: f32 = 0.25;
/// The number of sums that are computed side by side. It is the same for every instruction set, so that all instruction
/// sets give the same bits.
const SUMS: usize = 16;

/// A codec's settings.
#[derive(Clone, Copy)]
pub struct Dgc {
    pub ratio: f32,
    pub momentum: f32,
    pub clip: Option<f32>,
    pub warmup_rounds: u32,
}

impl Dgc {
    pub fn payload_bytes(self, elements: usize) -> usize {
        topk::payload_bytes(elements, self.max_ratio())
    }

    /// Returns the largest share that is ever sent.
    fn max_ratio(self) -> f32 {
        if self.warmup_rounds > 0 { self.ratio.max(FIRST_RATIO) } else { self.ratio }
    }

    /// Returns the share that is sent in a round. It is computed with square roots, whose bits are the same on every
    /// machine. Powers would have other bits on some machines.
    fn ratio_in(self, round: Round) -> f32 {
        let done = round.0.saturating_sub(1);
        if done >= self.warmup_rounds || self.ratio >= FIRST_RATIO {
            return self.ratio;
        }
        let (mut root, mut ratio) = (f64::from(self.ratio) / f64::from(FIRST_RATIO), f64::from(FIRST_RATIO));
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

    pub fn encode(
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
        payload::for_each(elements, payload, |i, _| (u[i], v[i]) = (0.0, 0.0));
        Encoded { bytes: payload.len(), not_finite }
    }

    pub fn check_payload(self, elements: usize, payload: &[u8]) -> Result<(), PayloadError> {
        payload::check_payload(
            "dgc",
            elements,
            count(elements, self.ratio)..=count(elements, self.max_ratio()),
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
            Some(clip) => clip_factor(clip, self.values),
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

/// Returns the factor that brings the norm down to its limit, or 1 if the norm is not above the limit. Computes in f64, in
/// which no square of an f32 is infinite.
#[inline(always)]
fn clip_factor(clip: f32, values: &[f32]) -> f32 {
    let mut sums = [0.0; SUMS];
    let (blocks, rest) = values.as_chunks::<SUMS>();
    for block in blocks {
        for i in 0..SUMS {
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
    fn the_share_falls_to_a_fourth_at_the_papers_steps() {
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
