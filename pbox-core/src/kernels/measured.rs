//! The sums of squares that LARS and LAMB need: of the weights, and of the gradient or the update.
//!
//! LARS and LAMB need another pass over a chunk, after the chunk's mean was written. The pass only reads. So a chunk can be
//! measured again if its pushes have changed. All instruction sets give the same bits, as with a
//! [magnitude](super::magnitude).

use super::LANES;
use super::compiled::Kernels;
use super::isa::scalar::Scalar;
use super::isa::{Convert, Converter, Isa, Vector, Work};
use super::optimizer::{Optimizer, Step};
use super::rule::{Adapts, Lamb, Lars};

/// The elements of a key before a step.
#[derive(Clone, Copy, Debug)]
pub struct Before<'a> {
    /// The mean gradient.
    pub mean: &'a [f32],
    /// The weights in f32.
    pub weights: &'a [f32],
    /// The states of the optimizer. A state that the optimizer does not have is empty.
    pub states: [&'a [f32]; 2],
}

impl Kernels {
    /// Returns the sum of the squares of the weights, and of the gradient (LARS) or the update (LAMB).
    ///
    /// # Panics
    /// Panics if the optimizer is neither LARS nor LAMB, or if lengths differ.
    pub fn squares(&self, optimizer: &Optimizer, step: &Step, before: Before) -> [f64; 2] {
        let elements = before.mean.len();
        assert_eq!(before.weights.len(), elements, "a weight for each mean");
        let lengths = before.states.map(|state| state.len());
        let expected = optimizer.state_per_element();
        assert_eq!(
            lengths.map(|length| length == elements),
            [true, expected > 1],
            "the states of the optimizer"
        );
        match optimizer {
            Optimizer::Lars { .. } => self.work(Squares::<Lars> { step, before, rule: Lars }),
            Optimizer::Lamb { .. } => self.work(Squares::<Lamb> { step, before, rule: Lamb }),
            _ => panic!("{} adapts no keys", optimizer.name()),
        }
    }
}

struct Squares<'a, R> {
    step: &'a Step,
    before: Before<'a>,
    #[expect(dead_code, reason = "names the rule")]
    rule: R,
}

impl<R: Adapts> Work for Squares<'_, R> {
    type Output = [f64; 2];

    #[inline(always)]
    fn run<I: Converter>(self, isa: I) -> [f64; 2] {
        let Squares { step, before, .. } = self;
        let (length, elements) = (<I as Isa>::Vector::LENGTH, before.mean.len());
        let mut squares = [[0.0f64; LANES]; 2];
        let mut values = [[0.0f32; LANES]; 2];
        let whole = elements - elements % LANES;
        for at in (0..whole).step_by(LANES) {
            for part in (0..LANES).step_by(length) {
                measure::<R, I>(isa, step, &before, at + part, &mut values, part);
            }
            add(&values, &mut squares);
        }
        values = [[0.0; LANES]; 2];
        for at in whole..elements {
            measure::<R, Scalar<1>>(Scalar, step, &before, at, &mut values, at - whole);
        }
        add(&values, &mut squares);
        squares.map(|lanes| lanes.iter().sum())
    }
}

/// Writes the measured values of one vector, from `at` on.
#[inline(always)]
fn measure<R: Adapts, I: Convert<f32>>(
    isa: I,
    step: &Step,
    before: &Before,
    at: usize,
    [weights, others]: &mut [[f32; LANES]; 2],
    place: usize,
) {
    let length = I::Vector::LENGTH;
    let block = at..at + length;
    let (mean, weight) = (isa.widen(&before.mean[block.clone()]), isa.widen(&before.weights[block.clone()]));
    let (first, unused) = (isa.widen(&before.states[0][block.clone()]), isa.splat(0.0));
    let second = if R::STATE > 1 { isa.widen(&before.states[1][block]) } else { unused };
    isa.narrow(weight, &mut weights[place..][..length]);
    let other = R::measured(isa, step, mean, weight, [first, second, unused]);
    isa.narrow(other, &mut others[place..][..length]);
}

#[inline(always)]
fn add(values: &[[f32; LANES]; 2], squares: &mut [[f64; LANES]; 2]) {
    for (values, squares) in values.iter().zip(squares) {
        for (value, square) in values.iter().zip(squares) {
            *square += f64::from(*value) * f64::from(*value);
        }
    }
}
