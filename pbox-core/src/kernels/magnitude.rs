//! The magnitude of a mean of slots (the sum of the mean's squares), and the number of the mean's values that are not
//! finite.
//!
//! The measurement is not a part of the step. [`Gauge`](crate::weights) measures in a few rounds. A job whose steps wait for
//! the whole gradient measures in each round. All instruction sets give the same bits. The index of an element decides to
//! which lane its square is added, and the lanes are added in order.

use super::compiled::{InGroups, Kernels, MANY, Slots, TILE};
use super::element::Element;
use super::isa::scalar::Scalar;
use super::isa::{Convert, Converter, Isa, Vector, Work};
use super::{LANES, body};

/// The sum of the squares of the finite values, and the number of values that are not finite.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Magnitude {
    /// The sum of the squares.
    pub squares: f64,
    /// The number of infinities and NaNs.
    pub not_finite: u64,
}

impl Kernels {
    /// Returns the magnitude of the slots' sum, divided by `workers`.
    pub fn magnitude<E: Element>(&self, slots: &Slots<E>, workers: u32) -> Magnitude {
        E::magnitude(self, slots, workers)
    }

    pub(super) fn magnitude_as<E: Element>(&self, slots: &Slots<E>, workers: u32) -> Magnitude {
        let (mut lanes, mut sums) = (Lanes::default(), [0.0; TILE]);
        for at in (0..slots.elements()).step_by(TILE) {
            let sums = &mut sums[..TILE.min(slots.elements() - at)];
            self.mean_tile(slots, 1.0, at, sums, &mut lanes);
        }
        let Magnitude { squares, not_finite } = lanes.magnitude();
        Magnitude { squares: squares / f64::from(workers).powi(2), not_finite }
    }

    /// Writes the sum of the slots' elements from `at` on, times `rescale`, and returns the magnitude of the result. The
    /// bits are those of the mean in a [step](Self::run).
    ///
    /// # Panics
    /// Panics if the slots do not have these elements.
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
        let mut lanes = Lanes::default();
        for (tile, means) in means.chunks_mut(TILE).enumerate() {
            self.mean_tile(slots, rescale, at + tile * TILE, means, &mut lanes);
        }
        lanes.magnitude()
    }

    fn mean_tile<E: Element>(
        &self,
        slots: &Slots<E>,
        rescale: f32,
        at: usize,
        means: &mut [f32],
        lanes: &mut Lanes,
    ) {
        if slots.workers() < MANY {
            return self.work(Mean { slots, rescale, at, means, lanes });
        }
        let mut sums = [0.0; TILE];
        let sums = &mut sums[..means.len()];
        self.work(InGroups { slots, at, sums });
        Slots::with_one(sums, |slots| self.work(Mean { slots, rescale, at: 0, means, lanes }));
    }
}

const _: () = assert!(TILE.is_multiple_of(LANES), "a tile is whole lanes");

/// The magnitude so far, by lane.
#[derive(Clone, Copy, Debug, Default)]
struct Lanes {
    squares: [f64; LANES],
    not_finite: [u32; LANES],
}

impl Lanes {
    #[inline(always)]
    fn add(&mut self, means: &[f32; LANES]) {
        for (lane, &mean) in means.iter().enumerate() {
            let (finite, square) = (mean.is_finite(), f64::from(mean) * f64::from(mean));
            self.squares[lane] += if finite { square } else { 0.0 };
            self.not_finite[lane] += u32::from(!finite);
        }
    }

    fn magnitude(&self) -> Magnitude {
        Magnitude {
            squares: self.squares.iter().sum(),
            not_finite: self.not_finite.iter().map(|&count| u64::from(count)).sum(),
        }
    }
}

/// The mean of some elements, and its magnitude. The number of elements before these elements is a multiple of the number
/// of lanes.
struct Mean<'a, E> {
    slots: &'a Slots<'a, E>,
    rescale: f32,
    at: usize,
    means: &'a mut [f32],
    lanes: &'a mut Lanes,
}

impl<E: Element> Work for Mean<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<I: Converter>(self, isa: I) {
        run(E::converter(isa), self);
    }
}

#[inline(always)]
fn run<E: Element, I: Convert<E> + Convert<f32>>(isa: I, mean: Mean<E>) {
    let Mean { slots, rescale, at, means, lanes: so_far } = mean;
    let length = I::Vector::LENGTH;
    let (mut lanes, whole) = (*so_far, means.len() - means.len() % LANES);
    let mut vectors = means.chunks_exact_mut(LANES);
    for (number, means) in (&mut vectors).enumerate() {
        let means: &mut [f32; LANES] = means.try_into().expect("a value for each lane");
        for part in (0..LANES).step_by(length) {
            let mean = body::sum(isa, slots, at + number * LANES + part) * isa.splat(rescale);
            isa.narrow(mean, &mut means[part..][..length]);
        }
        lanes.add(means);
    }
    let (rest, mut last) = (vectors.into_remainder(), [0.0; LANES]);
    for (place, mean) in rest.chunks_exact_mut(1).enumerate() {
        let one = Scalar::<1>;
        one.narrow(body::sum(one, slots, at + whole + place) * one.splat(rescale), mean);
    }
    last[..rest.len()].copy_from_slice(rest);
    lanes.add(&last);
    *so_far = lanes;
}
