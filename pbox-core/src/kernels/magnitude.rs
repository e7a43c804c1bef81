//! The magnitude of a mean of slots, and the number of its values that are not finite.
//!
//! Measuring is not a part of the step. [`Gauge`](crate::weights) asks for it in a few rounds. A job with steps that
//! wait for the whole gradient asks in each round. All instruction sets give the same bits. An element's square is
//! added to the sum of its lane, which its index names, and the lanes are added in order.

use std::ops::Range;

use super::LANES;
use super::compiled::{Kernels, Slots};
use super::element::Element;
use super::isa::{Convert, Converter, Vector, Work};

/// The sum of the squares of the finite values, and the number of values that are not finite.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Magnitude {
    /// The sum of the squares.
    pub squares: f64,
    /// Infinities and NaNs.
    pub not_finite: u64,
}

impl Kernels {
    /// Returns the magnitude of the slots' sum, divided by `workers`.
    pub fn magnitude<E: Element>(&self, slots: &Slots<E>, workers: u32) -> Magnitude {
        E::magnitude(self, slots, workers)
    }

    pub(super) fn magnitude_as<E: Element>(&self, slots: &Slots<E>, workers: u32) -> Magnitude {
        let Magnitude { squares, not_finite } = self.work(OfSum { slots });
        Magnitude { squares: squares / f64::from(workers).powi(2), not_finite }
    }

    /// Writes the sum of the slots' elements from `at` on, times `rescale`, and returns the magnitude of that. It has the bits of
    /// the mean in a [step](Self::run).
    ///
    /// # Panics
    /// Panics if the slots have fewer elements.
    pub fn mean<E: Element>(
        &self,
        slots: &Slots<E>,
        rescale: f32,
        at: usize,
        means: &mut [f32],
    ) -> Magnitude {
        E::mean(self, slots, rescale, at, means)
    }

    pub(super) fn mean_as<E: Element>(
        &self,
        slots: &Slots<E>,
        rescale: f32,
        at: usize,
        means: &mut [f32],
    ) -> Magnitude {
        self.work(Mean { slots, rescale, at, means })
    }
}

/// The magnitude of the slots' sum.
struct OfSum<'a, E> {
    slots: &'a Slots<'a, E>,
}

impl<E: Element> Work for OfSum<'_, E> {
    type Output = Magnitude;

    #[inline(always)]
    fn run<I: Converter>(self, isa: I) -> Magnitude {
        let all = 0..self.slots.elements();
        of_mean(E::converter(isa), self.slots, 1.0, all, |_, _| {})
    }
}

/// The mean of some elements, which is kept, and its magnitude.
struct Mean<'a, E> {
    slots: &'a Slots<'a, E>,
    rescale: f32,
    at: usize,
    means: &'a mut [f32],
}

impl<E: Element> Work for Mean<'_, E> {
    type Output = Magnitude;

    #[inline(always)]
    fn run<I: Converter>(self, isa: I) -> Magnitude {
        let Mean { slots, rescale, at, means } = self;
        let range = at..at + means.len();
        let keep = |from: usize, mean: &[f32]| means[from - at..][..mean.len()].copy_from_slice(mean);
        of_mean(E::converter(isa), slots, rescale, range, keep)
    }
}

#[inline(always)]
fn of_mean<E: Element, I: Convert<E> + Convert<f32>>(
    isa: I,
    slots: &Slots<E>,
    rescale: f32,
    range: Range<usize>,
    mut keep: impl FnMut(usize, &[f32]),
) -> Magnitude {
    let length = I::Vector::LENGTH;
    let (mut squares, mut not_finite) = ([0.0f64; LANES], [0u32; LANES]);
    let mut add = |means: &[f32; LANES]| {
        for (lane, &mean) in means.iter().enumerate() {
            let (finite, square) = (mean.is_finite(), f64::from(mean) * f64::from(mean));
            squares[lane] += if finite { square } else { 0.0 };
            not_finite[lane] += u32::from(!finite);
        }
    };
    let rest = range.end - range.len() % LANES;
    let mut means = [0.0f32; LANES];
    for at in (range.start..rest).step_by(LANES) {
        for part in (0..LANES).step_by(length) {
            let slot = |rank: usize| isa.widen_for_sum(&slots.slot(rank)[at + part..][..length]);
            let sum = (1..slots.workers()).fold(slot(0), |sum, rank| sum + slot(rank));
            let mean = <I as Convert<E>>::in_order(isa, sum) * isa.splat(rescale);
            isa.narrow(mean, &mut means[part..][..length]);
        }
        add(&means);
        keep(at, &means);
    }
    if rest < range.end {
        means.fill(0.0);
        for (at, mean) in (rest..range.end).zip(&mut means) {
            let slot = |rank: usize| slots.slot(rank)[at].to_f32();
            *mean = (1..slots.workers()).fold(slot(0), |sum, rank| sum + slot(rank)) * rescale;
        }
        add(&means);
        keep(rest, &means[..range.end - rest]);
    }
    Magnitude {
        squares: squares.iter().sum(),
        not_finite: not_finite.iter().map(|&count| u64::from(count)).sum(),
    }
}
