//! The loop that all instruction sets, element types and optimizers share. It sums a block of every slot (a worker's gradient)
//! in f32, steps on the sum, and rounds the result into the window.
//!
//! All functions are `#[inline(always)]`: each caller compiles them for its own instruction set. A closure is not compiled
//! for that set. With a closure that converted bf16, a mean and its step took 6 to 8 times as long (4 workers, in cache).

use std::ops::Range;

use super::compiled::{GROUP, Slots};
use super::element::Element;
use super::isa::scalar::Scalar;
use super::isa::{Convert, Vector};
use super::optimizer::Step;
use super::rule::Rule;
use crate::layout::Dtype;

/// One chunk, with the values that only the hub keeps: master weights and optimizer states. If the optimizer does not
/// use one of these slices, the slice is empty.
struct Chunk<'a, S, E> {
    step: &'a Step,
    slots: &'a Slots<'a, S>,
    window: &'a mut [E],
    master: &'a mut [f32],
    first: &'a mut [f32],
    second: &'a mut [f32],
    third: &'a mut [f32],
}

/// Splits the kept values of a chunk by kind: the master weights, if there are any, then each state.
pub(super) fn by_kind<E: Element, R: Rule>(kept: &mut [f32], elements: usize) -> [&mut [f32]; 4] {
    let (master, state) = kept.split_at_mut(if has_master::<E, R>() { elements } else { 0 });
    let (first, state) = state.split_at_mut(if R::STATE > 0 { elements } else { 0 });
    let (second, third) = state.split_at_mut(if R::STATE > 1 { elements } else { 0 });
    [master, first, second, third]
}

/// Sums and steps elements, with their kept values [by kind](by_kind).
#[inline(always)]
pub(super) fn run<S: Element, E: Element, R: Rule, I: Convert<S> + Convert<E> + Convert<f32>>(
    isa: I,
    step: &Step,
    slots: &Slots<S>,
    window: &mut [E],
    [master, first, second, third]: [&mut [f32]; 4],
) {
    let elements = slots.elements();
    // With slices of exactly these lengths, the compiler removes bounds checks from the loop.
    let of = |is_used: bool| if is_used { elements } else { 0 };
    let window = &mut window[..elements];
    let master = &mut master[..of(has_master::<E, R>())];
    let first = &mut first[..of(R::STATE > 0)];
    let second = &mut second[..of(R::STATE > 1)];
    let third = &mut third[..of(R::STATE > 2)];
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

/// Whether the hub keeps f32 master weights in addition to the window, because the window has 16-bit weights.
#[inline(always)]
fn has_master<E: Element, R: Rule>() -> bool {
    R::KEEPS_WEIGHTS && !matches!(E::DTYPE, Dtype::F32)
}

impl<S: Element, E: Element> Chunk<'_, S, E> {
    #[inline(always)]
    fn block<R: Rule, I: Convert<S> + Convert<E> + Convert<f32>>(&mut self, isa: I, at: usize) {
        let block = at..at + I::Vector::LENGTH;
        let sum = sum(isa, self.slots, at);
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
}

/// Sums the elements of all slots, for one vector from `at` on.
#[inline(always)]
pub(super) fn sum<S: Element, I: Convert<S>>(isa: I, slots: &Slots<S>, at: usize) -> I::Vector {
    let first = slot(isa, slots, 0, at);
    isa.in_order(add_slots(isa, slots, first, 1..slots.workers(), at))
}

/// Adds the elements of some slots, in order.
///
/// Each iteration adds four slots. The last three or fewer are added after the loop. Sums of 5 to 8 slots in cache run at
/// 195 to 218 GB/s in this way (AVX-512). With one slot per iteration, they run at 137 to 195 GB/s, depending on the loop's
/// address.
#[inline(always)]
fn add_slots<S: Element, I: Convert<S>>(
    isa: I,
    slots: &Slots<S>,
    mut sum: I::Vector,
    ranks: Range<usize>,
    at: usize,
) -> I::Vector {
    let mut rank = ranks.start;
    while rank + 4 <= ranks.end {
        sum = sum + slot(isa, slots, rank, at);
        sum = sum + slot(isa, slots, rank + 1, at);
        sum = sum + slot(isa, slots, rank + 2, at);
        sum = sum + slot(isa, slots, rank + 3, at);
        rank += 4;
    }
    let rest = ranks.end - rank;
    if rest > 0 {
        sum = sum + slot(isa, slots, rank, at);
    }
    if rest > 1 {
        sum = sum + slot(isa, slots, rank + 1, at);
    }
    if rest > 2 {
        sum = sum + slot(isa, slots, rank + 2, at);
    }
    sum
}

#[inline(always)]
fn slot<S: Element, I: Convert<S>>(isa: I, slots: &Slots<S>, rank: usize, at: usize) -> I::Vector {
    isa.widen_for_sum(&slots.slot(rank)[at..at + I::Vector::LENGTH])
}

/// Sums elements of many slots, from `at` on, one group of slots after another. So the processor follows only a few streams
/// at a time, and the sums stay in the first-level cache. The order of additions and the bits are those of [`run`].
#[inline(always)]
pub(super) fn sum_in_groups<S: Element, I: Convert<S> + Convert<f32>>(
    isa: I,
    slots: &Slots<S>,
    at: usize,
    sums: &mut [f32],
) {
    let workers = slots.workers();
    for from in (0..workers).step_by(GROUP) {
        let group = from..workers.min(from + GROUP);
        let length = I::Vector::LENGTH;
        let whole = sums.len() - sums.len() % length;
        for (place, sums) in sums[..whole].chunks_exact_mut(length).enumerate() {
            add_group(isa, slots, group.clone(), at + place * length, sums);
        }
        for (place, sums) in sums[whole..].chunks_exact_mut(1).enumerate() {
            add_group(Scalar::<1>, slots, group.clone(), at + whole + place, sums);
        }
    }
}

/// Adds a group of slots to sums with the length of one vector. Until the last group, the sums are in the order of
/// [`widen_for_sum`](Convert::widen_for_sum).
#[inline(always)]
fn add_group<S: Element, I: Convert<S> + Convert<f32>>(
    isa: I,
    slots: &Slots<S>,
    group: Range<usize>,
    at: usize,
    sums: &mut [f32],
) {
    let (first, rest) = match group.start {
        0 => (slot(isa, slots, 0, at), 1..group.end),
        _ => (<I as Convert<f32>>::widen(isa, sums), group.clone()),
    };
    let sum = add_slots(isa, slots, first, rest, at);
    let sum = if group.end == slots.workers() { <I as Convert<S>>::in_order(isa, sum) } else { sum };
    <I as Convert<f32>>::narrow(isa, sum, sums);
}
