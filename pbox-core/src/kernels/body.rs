//! The one loop that all instruction sets share: sum a block of every slot, then step on it.
//!
//! `#[inline(always)]` throughout: each caller compiles it for its own instruction set.

use crate::oracle::{AdamStep, Step};
use crate::slots::Slots;

/// Elements summed at once: four 512-bit registers, or eight of 256 bits, of accumulators, so that
/// several loads are in flight for each slot.
const BLOCK: usize = 64;

/// What happens to a block of sums.
trait OnSum {
    fn block<const N: usize>(&mut self, at: usize, sum: &[f32; N]);
}

#[inline(always)]
fn each_block(slots: &Slots, on_sum: &mut impl OnSum) {
    let elements = slots.elements();
    let whole = elements - elements % BLOCK;
    for at in (0..whole).step_by(BLOCK) {
        on_sum.block(at, &sum::<BLOCK>(slots, at));
    }
    for at in whole..elements {
        on_sum.block(at, &sum::<1>(slots, at));
    }
}

#[inline(always)]
fn sum<const N: usize>(slots: &Slots, at: usize) -> [f32; N] {
    let mut sum: [f32; N] = *part(slots.slot(0), at);
    for rank in 1..slots.workers() {
        let slot: &[f32; N] = part(slots.slot(rank), at);
        for i in 0..N {
            sum[i] += slot[i];
        }
    }
    sum
}

#[inline(always)]
fn part<const N: usize>(slice: &[f32], at: usize) -> &[f32; N] {
    slice[at..at + N].try_into().expect("a range of N has N elements")
}

#[inline(always)]
fn part_mut<const N: usize>(slice: &mut [f32], at: usize) -> &mut [f32; N] {
    (&mut slice[at..at + N]).try_into().expect("a range of N has N elements")
}

struct Average<'a> {
    step: &'a Step,
    out: &'a mut [f32],
}

impl OnSum for Average<'_> {
    #[inline(always)]
    fn block<const N: usize>(&mut self, at: usize, sum: &[f32; N]) {
        let out: &mut [f32; N] = part_mut(self.out, at);
        for i in 0..N {
            out[i] = sum[i] * self.step.rescale;
        }
    }
}

struct Sgd<'a> {
    step: &'a Step,
    weights: &'a mut [f32],
}

impl OnSum for Sgd<'_> {
    #[inline(always)]
    fn block<const N: usize>(&mut self, at: usize, sum: &[f32; N]) {
        let Step { rescale, learning_rate, weight_decay, .. } = *self.step;
        let weights: &mut [f32; N] = part_mut(self.weights, at);
        for i in 0..N {
            let gradient = sum[i] * rescale + weight_decay * weights[i];
            weights[i] -= learning_rate * gradient;
        }
    }
}

struct Momentum<'a> {
    step: &'a Step,
    weights: &'a mut [f32],
    state: &'a mut [f32],
}

impl OnSum for Momentum<'_> {
    #[inline(always)]
    fn block<const N: usize>(&mut self, at: usize, sum: &[f32; N]) {
        let Step { rescale, learning_rate, weight_decay, momentum, .. } = *self.step;
        let weights: &mut [f32; N] = part_mut(self.weights, at);
        let state: &mut [f32; N] = part_mut(self.state, at);
        for i in 0..N {
            let gradient = sum[i] * rescale + weight_decay * weights[i];
            state[i] = momentum * state[i] + gradient;
            weights[i] -= learning_rate * state[i];
        }
    }
}

struct Nesterov<'a> {
    step: &'a Step,
    weights: &'a mut [f32],
    state: &'a mut [f32],
}

impl OnSum for Nesterov<'_> {
    #[inline(always)]
    fn block<const N: usize>(&mut self, at: usize, sum: &[f32; N]) {
        let Step { rescale, learning_rate, weight_decay, momentum, .. } = *self.step;
        let weights: &mut [f32; N] = part_mut(self.weights, at);
        let state: &mut [f32; N] = part_mut(self.state, at);
        for i in 0..N {
            let gradient = sum[i] * rescale + weight_decay * weights[i];
            state[i] = momentum * state[i] + gradient;
            weights[i] -= learning_rate * (gradient + momentum * state[i]);
        }
    }
}

struct Adam<'a> {
    step: &'a Step,
    weights: &'a mut [f32],
    moments: Moments<'a>,
}

impl OnSum for Adam<'_> {
    #[inline(always)]
    fn block<const N: usize>(&mut self, at: usize, sum: &[f32; N]) {
        let Step { rescale, weight_decay, adam, .. } = *self.step;
        let weights: &mut [f32; N] = part_mut(self.weights, at);
        let (first, second) = self.moments.block::<N>(at);
        for i in 0..N {
            let gradient = sum[i] * rescale + weight_decay * weights[i];
            weights[i] -= update(&adam, gradient, &mut first[i], &mut second[i]);
        }
    }
}

struct AdamW<'a> {
    step: &'a Step,
    weights: &'a mut [f32],
    moments: Moments<'a>,
}

impl OnSum for AdamW<'_> {
    #[inline(always)]
    fn block<const N: usize>(&mut self, at: usize, sum: &[f32; N]) {
        let Step { rescale, adam, .. } = *self.step;
        let weights: &mut [f32; N] = part_mut(self.weights, at);
        let (first, second) = self.moments.block::<N>(at);
        for i in 0..N {
            let kept = weights[i] * adam.keep;
            weights[i] = kept - update(&adam, sum[i] * rescale, &mut first[i], &mut second[i]);
        }
    }
}

/// The state of Adam and AdamW: all first moments of the chunk, then all second ones.
struct Moments<'a> {
    first: &'a mut [f32],
    second: &'a mut [f32],
}

impl<'a> Moments<'a> {
    #[inline(always)]
    fn new(state: &'a mut [f32]) -> Self {
        let (first, second) = state.split_at_mut(state.len() / 2);
        Moments { first, second }
    }

    #[inline(always)]
    fn block<const N: usize>(&mut self, at: usize) -> (&mut [f32; N], &mut [f32; N]) {
        (part_mut(self.first, at), part_mut(self.second, at))
    }
}

/// What Adam takes off a weight.
#[inline(always)]
fn update(step: &AdamStep, gradient: f32, first: &mut f32, second: &mut f32) -> f32 {
    *first = step.beta1 * *first + step.gain1 * gradient;
    *second = step.beta2 * *second + step.gain2 * gradient * gradient;
    step.step_size * *first / (second.sqrt() / step.bias2 + step.epsilon)
}

#[inline(always)]
pub(super) fn average(step: &Step, slots: &Slots, out: &mut [f32]) {
    each_block(slots, &mut Average { step, out });
}

#[inline(always)]
pub(super) fn sgd(step: &Step, slots: &Slots, weights: &mut [f32]) {
    each_block(slots, &mut Sgd { step, weights });
}

#[inline(always)]
pub(super) fn momentum(step: &Step, slots: &Slots, weights: &mut [f32], state: &mut [f32]) {
    each_block(slots, &mut Momentum { step, weights, state });
}

#[inline(always)]
pub(super) fn nesterov(step: &Step, slots: &Slots, weights: &mut [f32], state: &mut [f32]) {
    each_block(slots, &mut Nesterov { step, weights, state });
}

#[inline(always)]
pub(super) fn adam(step: &Step, slots: &Slots, weights: &mut [f32], state: &mut [f32]) {
    each_block(slots, &mut Adam { step, weights, moments: Moments::new(state) });
}

#[inline(always)]
pub(super) fn adamw(step: &Step, slots: &Slots, weights: &mut [f32], state: &mut [f32]) {
    each_block(slots, &mut AdamW { step, weights, moments: Moments::new(state) });
}
