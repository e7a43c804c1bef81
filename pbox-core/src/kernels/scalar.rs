//! The kernels for any processor: plain arrays, compiled for the baseline. With one number at a time, they also do
//! the rest of a chunk for the other instruction sets.

use std::ops::{Add, Div, Mul, Sub};

use super::element::Element;
use super::oracle::Step;
use super::rule::{Adam, AdamW, Average, Momentum, Nesterov, Rule, Sgd};
use super::slots::Slots;
use super::table::Table;
use super::vector::{Convert, Isa, Vector};
use super::work::{InstructionSet, Work};
use super::{Kernels, body};

pub(super) const KERNELS: Kernels = Kernels {
    name: "scalar",
    set: InstructionSet::Scalar,
    available: || true,
    f32: table(),
    f16: table(),
    bf16: table(),
};

/// Plain arithmetic on `N` numbers.
#[derive(Clone, Copy)]
pub(super) struct Scalar<const N: usize>;

const fn table<E: Element>() -> Table<E> {
    Table {
        average: run::<E, Average>,
        sgd: run::<E, Sgd>,
        momentum: run::<E, Momentum>,
        nesterov: run::<E, Nesterov>,
        adam: run::<E, Adam>,
        adamw: run::<E, AdamW>,
        widen: widen::<E>,
        narrow: narrow::<E>,
    }
}

fn run<E: Element, R: Rule>(step: &Step, slots: &Slots<E>, window: &mut [E], kept: &mut [f32]) {
    body::run::<E, R, _>(Scalar::<8>, step, slots, window, kept);
}

fn widen<E: Element>(elements: &[E], wide: &mut [f32]) {
    body::widen(Scalar::<8>, elements, wide);
}

fn narrow<E: Element>(values: &[f32], elements: &mut [E]) {
    body::narrow(Scalar::<8>, values, elements);
}

pub(super) fn work<W: Work>(work: W) -> W::Output {
    work.run(Scalar::<8>)
}

/// `N` numbers.
#[derive(Clone, Copy)]
pub(super) struct Numbers<const N: usize>([f32; N]);

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
