//! The loop that all instruction sets, element types and optimizers share: it sums a block of every slot in f32,
//! steps on the sum, and rounds the result into the window.
//!
//! All functions are `#[inline(always)]`: each caller compiles them for its own instruction set.

use super::compiled::Slots;
use super::element::Element;
use super::isa::scalar::Scalar;
use super::isa::{Convert, Vector};
use super::optimizer::Step;
use super::rule::Rule;
use crate::layout::Dtype;

/// One chunk, with its kept values by kind. Kinds that the rule does not use are empty.
struct Chunk<'a, S, E> {
    step: &'a Step,
    slots: &'a Slots<'a, S>,
    window: &'a mut [E],
    master: &'a mut [f32],
    first: &'a mut [f32],
    second: &'a mut [f32],
    third: &'a mut [f32],
}

/// Sums and steps a chunk. `kept` has its master weights, if it has any, then its state.
#[inline(always)]
pub(super) fn run<S: Element, E: Element, R: Rule, I: Convert<S> + Convert<E> + Convert<f32>>(
    isa: I,
    step: &Step,
    slots: &Slots<S>,
    window: &mut [E],
    kept: &mut [f32],
) {
    let elements = slots.elements();
    let (master, state) = kept.split_at_mut(if has_master::<E, R>() { elements } else { 0 });
    let (first, state) = state.split_at_mut(if R::STATE > 0 { elements } else { 0 });
    let (second, third) = state.split_at_mut(if R::STATE > 1 { elements } else { 0 });
    let mut chunk = Chunk { step, slots, window, master, first, second, third };
    let length = I::Vector::LENGTH;
    let whole = elements - elements % length;
    for at in (0..whole).step_by(length) {
        chunk.block::<R, I>(isa, at);
    }
    for at in whole..elements {
        chunk.block::<R, Scalar<1>>(Scalar, at);
    }
}

/// Converts elements to f32. Both slices have the same length.
#[inline(always)]
pub(super) fn widen<E: Element, I: Convert<E> + Convert<f32>>(isa: I, elements: &[E], wide: &mut [f32]) {
    let length = I::Vector::LENGTH;
    let (mut places, mut blocks) = (wide.chunks_exact_mut(length), elements.chunks_exact(length));
    for (place, block) in (&mut places).zip(&mut blocks) {
        isa.narrow(isa.widen(block), place);
    }
    for (place, element) in places.into_remainder().iter_mut().zip(blocks.remainder()) {
        *place = element.to_f32();
    }
}

/// Converts f32 to elements. Both slices have the same length.
#[inline(always)]
pub(super) fn narrow<E: Element, I: Convert<E> + Convert<f32>>(isa: I, values: &[f32], elements: &mut [E]) {
    let length = I::Vector::LENGTH;
    let (mut places, mut blocks) = (elements.chunks_exact_mut(length), values.chunks_exact(length));
    for (place, block) in (&mut places).zip(&mut blocks) {
        isa.narrow(isa.widen(block), place);
    }
    for (place, &value) in places.into_remainder().iter_mut().zip(blocks.remainder()) {
        *place = E::from_f32(value);
    }
}

/// Whether master weights stand beside the window, because the window's type is too coarse.
#[inline(always)]
fn has_master<E: Element, R: Rule>() -> bool {
    R::KEEPS_WEIGHTS && !matches!(E::DTYPE, Dtype::F32)
}

impl<S: Element, E: Element> Chunk<'_, S, E> {
    #[inline(always)]
    fn block<R: Rule, I: Convert<S> + Convert<E> + Convert<f32>>(&mut self, isa: I, at: usize) {
        let block = at..at + I::Vector::LENGTH;
        let sum = self.sum(isa, at);
        let unused = isa.splat(0.0);
        let weight = if has_master::<E, R>() {
            isa.widen(&self.master[block.clone()])
        } else if R::KEEPS_WEIGHTS {
            isa.widen(&self.window[block.clone()])
        } else {
            unused
        };
        let first = if R::STATE > 0 { isa.widen(&self.first[block.clone()]) } else { unused };
        let second = if R::STATE > 1 { isa.widen(&self.second[block.clone()]) } else { unused };
        let third = if R::STATE > 2 { isa.widen(&self.third[block.clone()]) } else { unused };
        let (weight, [first, second, third]) = R::step(isa, self.step, sum, weight, [first, second, third]);
        if has_master::<E, R>() {
            isa.narrow(weight, &mut self.master[block.clone()]);
        }
        isa.narrow(weight, &mut self.window[block.clone()]);
        if R::STATE > 0 {
            isa.narrow(first, &mut self.first[block.clone()]);
        }
        if R::STATE > 1 {
            isa.narrow(second, &mut self.second[block.clone()]);
        }
        if R::STATE > 2 {
            isa.narrow(third, &mut self.third[block]);
        }
    }

    /// Each iteration adds four slots, and the last three or fewer are added after the loop. Sums of 5 to 8 slots
    /// in cache run at 195 to 218 GB/s this way (AVX-512). With one slot an iteration they run at 137 to 195 GB/s,
    /// depending on the loop's address.
    #[inline(always)]
    fn sum<I: Convert<S>>(&self, isa: I, at: usize) -> I::Vector {
        let mut sum = self.slot(isa, 0, at);
        let workers = self.slots.workers();
        let mut rank = 1;
        while rank + 4 <= workers {
            sum = sum + self.slot(isa, rank, at);
            sum = sum + self.slot(isa, rank + 1, at);
            sum = sum + self.slot(isa, rank + 2, at);
            sum = sum + self.slot(isa, rank + 3, at);
            rank += 4;
        }
        let rest = workers - rank;
        if rest > 0 {
            sum = sum + self.slot(isa, rank, at);
        }
        if rest > 1 {
            sum = sum + self.slot(isa, rank + 1, at);
        }
        if rest > 2 {
            sum = sum + self.slot(isa, rank + 2, at);
        }
        isa.in_order(sum)
    }

    #[inline(always)]
    fn slot<I: Convert<S>>(&self, isa: I, rank: usize, at: usize) -> I::Vector {
        isa.widen_for_sum(&self.slots.slot(rank)[at..at + I::Vector::LENGTH])
    }
}
