//! How large a mean of slots is, and how many of its values are no numbers.
//!
//! Not a part of the step: [`Gauge`](crate::weights) asks for it in a few rounds.

use super::compiled::{Kernels, Slots};
use super::element::Element;
use super::isa::{Convert, Converter, Vector, Work};

/// The most values of a vector.
const WIDEST: usize = 32;

/// Of some values: the sum of the squares of those that are finite, and the number of the others.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Magnitude {
    /// The sum of the squares.
    pub squares: f64,
    /// Infinities and NaNs.
    pub not_finite: u64,
}

impl Kernels {
    /// The magnitude of the slots' sum, divided by `workers`.
    pub fn magnitude<E: Element>(&self, slots: &Slots<E>, workers: u32) -> Magnitude {
        E::magnitude(self, slots, workers)
    }

    pub(super) fn magnitude_as<E: Element>(&self, slots: &Slots<E>, workers: u32) -> Magnitude {
        let Magnitude { squares, not_finite } = self.work(OfSum { slots });
        Magnitude { squares: squares / f64::from(workers).powi(2), not_finite }
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
        of_sum(E::converter(isa), self.slots)
    }
}

#[inline(always)]
fn of_sum<E: Element, I: Convert<E> + Convert<f32>>(isa: I, slots: &Slots<E>) -> Magnitude {
    let (elements, length) = (slots.elements(), I::Vector::LENGTH);
    let whole = elements - elements % length;
    // A number of its own for each place of a vector, so that the places do not wait for each other.
    let (mut squares, mut not_finite) = ([0.0f64; WIDEST], [0u32; WIDEST]);
    let mut add = |place: usize, sum: f32| {
        let (finite, square) = (sum.is_finite(), f64::from(sum) * f64::from(sum));
        squares[place] += if finite { square } else { 0.0 };
        not_finite[place] += u32::from(!finite);
    };
    let mut sums = [0.0f32; WIDEST];
    for at in (0..whole).step_by(length) {
        let slot = |rank: usize| isa.widen(&slots.slot(rank)[at..at + length]);
        let sum = (1..slots.workers()).fold(slot(0), |sum, rank| sum + slot(rank));
        isa.narrow(sum, &mut sums[..length]);
        for (place, &sum) in sums[..length].iter().enumerate() {
            add(place, sum);
        }
    }
    for at in whole..elements {
        let slot = |rank: usize| slots.slot(rank)[at].to_f32();
        add(0, (1..slots.workers()).fold(slot(0), |sum, rank| sum + slot(rank)));
    }
    Magnitude {
        squares: squares.iter().sum(),
        not_finite: not_finite.iter().map(|&count| u64::from(count)).sum(),
    }
}
