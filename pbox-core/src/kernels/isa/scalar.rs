//! The kernels for any processor: plain arrays, compiled for the lowest instruction set of the target. The kernels of
//! the other instruction sets use arrays of one number for the last elements of a chunk.

use std::ops::{Add, Div, Mul, Sub};

use super::{Convert, Isa, Vector, Work};
use crate::kernels::rule::Rule;
use crate::kernels::{Element, Slots, Step, body};

/// Plain arithmetic on `N` numbers.
#[derive(Clone, Copy)]
pub(in crate::kernels) struct Scalar<const N: usize>;

// As for the other instruction sets, the functions below are not inlined, so that their callers stay small.

#[inline(never)]
pub(in crate::kernels) fn work<W: Work>(work: W) -> W::Output {
    work.run(Scalar::<8>)
}

#[inline(never)]
pub(in crate::kernels) fn sum<E: Element, R: Rule>(
    step: &Step,
    slots: &Slots<E>,
    window: &mut [E],
    master: &mut [f32],
    first: &mut [f32],
    second: &mut [f32],
    third: &mut [f32],
) {
    body::run::<E, E, R, _>(E::converter(Scalar::<8>), step, slots, window, [master, first, second, third]);
}

#[inline(never)]
pub(in crate::kernels) fn step<E: Element, R: Rule>(
    step: &Step,
    slots: &Slots,
    window: &mut [E],
    master: &mut [f32],
    first: &mut [f32],
    second: &mut [f32],
    third: &mut [f32],
) {
    body::run::<f32, E, R, _>(E::converter(Scalar::<8>), step, slots, window, [master, first, second, third]);
}

/// `N` numbers.
#[derive(Clone, Copy)]
pub struct Numbers<const N: usize>([f32; N]);

impl<const N: usize> Numbers<N> {
    #[inline(always)]
    fn with(mut self, other: Self, operator: impl Fn(f32, f32) -> f32) -> Self {
        for i in 0..N {
            self.0[i] = operator(self.0[i], other.0[i]);
        }
        self
    }
}

macro_rules! each {
    ($Operator:ident, $operator:ident) => {
        impl<const N: usize> $Operator for Numbers<N> {
            type Output = Self;

            #[inline(always)]
            fn $operator(self, other: Self) -> Self {
                self.with(other, f32::$operator)
            }
        }
    };
}
each!(Add, add);
each!(Sub, sub);
each!(Mul, mul);
each!(Div, div);

impl<const N: usize> Vector for Numbers<N> {
    const LENGTH: usize = N;

    #[inline(always)]
    fn sqrt(self) -> Self {
        self.with(self, |value, _| value.sqrt())
    }

    #[inline(always)]
    fn if_above(self, bound: Self, then: Self, mut or: Self) -> Self {
        for i in 0..N {
            or.0[i] = if self.0[i] > bound.0[i] { then.0[i] } else { or.0[i] };
        }
        or
    }
}

impl<const N: usize> Isa for Scalar<N> {
    type Vector = Numbers<N>;

    #[inline(always)]
    fn splat(self, value: f32) -> Numbers<N> {
        Numbers([value; N])
    }
}

impl<const N: usize, E: Element> Convert<E> for Scalar<N> {
    #[inline(always)]
    fn widen_for_sum(self, elements: &[E]) -> Numbers<N> {
        let elements: &[E; N] = elements.try_into().expect("one element for each place of the vector");
        Numbers(std::array::from_fn(|i| elements[i].to_f32()))
    }

    #[inline(always)]
    fn narrow(self, values: Numbers<N>, elements: &mut [E]) {
        let elements: &mut [E; N] = elements.try_into().expect("one element for each place of the vector");
        for (element, value) in elements.iter_mut().zip(values.0) {
            *element = E::from_f32(value);
        }
    }
}
