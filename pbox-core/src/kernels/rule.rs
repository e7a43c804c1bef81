//! The arithmetic of the optimizers on vectors. `oracle` is the specification.
//!
//! All functions are `#[inline(always)]`: each caller compiles them for its own instruction set.

use super::isa::{Isa, Vector};
use super::optimizer::Step;

/// The step of one optimizer.
pub(super) trait Rule {
    /// True if the step reads the weight. Otherwise the step only replaces the weight.
    const KEEPS_WEIGHTS: bool = true;
    /// The number of f32 of state for each element, at most 3.
    const STATE: usize;

    /// Returns the new weight and state. State beyond `STATE` is not read and not written.
    fn step<I: Isa>(isa: I, step: &Step, sum: I::Vector, weight: I::Vector, state: State<I>) -> Stepped<I>;
}

/// The state of an element: at most three f32.
type State<I> = [<I as Isa>::Vector; 3];

/// The new weight and the new state.
type Stepped<I> = (<I as Isa>::Vector, State<I>);

pub(super) struct Average;

impl Rule for Average {
    const KEEPS_WEIGHTS: bool = false;
    const STATE: usize = 0;

    #[inline(always)]
    fn step<I: Isa>(isa: I, step: &Step, sum: I::Vector, _weight: I::Vector, state: State<I>) -> Stepped<I> {
        (sum * isa.splat(step.rescale), state)
    }
}

pub(super) struct Sgd;

impl Rule for Sgd {
    const STATE: usize = 0;

    #[inline(always)]
    fn step<I: Isa>(isa: I, step: &Step, sum: I::Vector, weight: I::Vector, state: State<I>) -> Stepped<I> {
        (weight - isa.splat(step.learning_rate) * gradient(isa, step, sum, weight), state)
    }
}

pub(super) struct Momentum;

impl Rule for Momentum {
    const STATE: usize = 1;

    #[inline(always)]
    fn step<I: Isa>(isa: I, step: &Step, sum: I::Vector, weight: I::Vector, [m, ..]: State<I>) -> Stepped<I> {
        let m = isa.splat(step.momentum) * m + gradient(isa, step, sum, weight);
        (weight - isa.splat(step.learning_rate) * m, [m; 3])
    }
}

pub(super) struct Dampened;

impl Rule for Dampened {
    const STATE: usize = 1;

    #[inline(always)]
    fn step<I: Isa>(isa: I, step: &Step, sum: I::Vector, weight: I::Vector, [m, ..]: State<I>) -> Stepped<I> {
        let gradient = isa.splat(step.gain) * gradient(isa, step, sum, weight);
        let m = isa.splat(step.momentum) * m + gradient;
        (weight - isa.splat(step.learning_rate) * m, [m; 3])
    }
}

pub(super) struct Nesterov;

impl Rule for Nesterov {
    const STATE: usize = 1;

    #[inline(always)]
    fn step<I: Isa>(isa: I, step: &Step, sum: I::Vector, weight: I::Vector, [m, ..]: State<I>) -> Stepped<I> {
        let (rate, mu) = (isa.splat(step.learning_rate), isa.splat(step.momentum));
        let gradient = gradient(isa, step, sum, weight);
        let m = mu * m + gradient;
        (weight - rate * (gradient + mu * m), [m; 3])
    }
}

pub(super) struct Adam;

impl Rule for Adam {
    const STATE: usize = 2;

    #[inline(always)]
    fn step<I: Isa>(isa: I, step: &Step, sum: I::Vector, weight: I::Vector, moments: State<I>) -> Stepped<I> {
        let (update, moments) = update::<I, false>(isa, step, gradient(isa, step, sum, weight), moments);
        (weight - update, moments)
    }
}

pub(super) struct AdamW;

impl Rule for AdamW {
    const STATE: usize = 2;

    #[inline(always)]
    fn step<I: Isa>(isa: I, step: &Step, sum: I::Vector, weight: I::Vector, moments: State<I>) -> Stepped<I> {
        let (update, moments) = update::<I, false>(isa, step, sum * isa.splat(step.rescale), moments);
        (weight * isa.splat(step.adam.keep) - update, moments)
    }
}

pub(super) struct AmsGrad;

impl Rule for AmsGrad {
    const STATE: usize = 3;

    #[inline(always)]
    fn step<I: Isa>(isa: I, step: &Step, sum: I::Vector, weight: I::Vector, moments: State<I>) -> Stepped<I> {
        let (update, moments) = update::<I, true>(isa, step, gradient(isa, step, sum, weight), moments);
        (weight - update, moments)
    }
}

pub(super) struct AmsGradW;

impl Rule for AmsGradW {
    const STATE: usize = 3;

    #[inline(always)]
    fn step<I: Isa>(isa: I, step: &Step, sum: I::Vector, weight: I::Vector, moments: State<I>) -> Stepped<I> {
        let (update, moments) = update::<I, true>(isa, step, sum * isa.splat(step.rescale), moments);
        (weight * isa.splat(step.adam.keep) - update, moments)
    }
}

pub(super) struct Lion;

impl Rule for Lion {
    const STATE: usize = 1;

    #[inline(always)]
    fn step<I: Isa>(isa: I, step: &Step, sum: I::Vector, weight: I::Vector, [m, ..]: State<I>) -> Stepped<I> {
        let (numbers, gradient) = (&step.adam, sum * isa.splat(step.rescale));
        let toward = isa.splat(numbers.beta1) * m + isa.splat(numbers.gain1) * gradient;
        let m = isa.splat(numbers.beta2) * m + isa.splat(numbers.gain2) * gradient;
        (weight * isa.splat(numbers.keep) - isa.splat(numbers.step_size) * sign(isa, toward), [m; 3])
    }
}

pub(super) struct Lars;

impl Rule for Lars {
    const STATE: usize = 1;

    #[inline(always)]
    fn step<I: Isa>(isa: I, step: &Step, sum: I::Vector, weight: I::Vector, [m, ..]: State<I>) -> Stepped<I> {
        let gradient = gradient(isa, step, sum, weight);
        let m = isa.splat(step.momentum) * m + isa.splat(step.learning_rate) * gradient;
        (weight - m, [m; 3])
    }
}

impl Adapts for Lars {
    #[inline(always)]
    fn measured<I: Isa>(isa: I, step: &Step, mean: I::Vector, _: I::Vector, _: State<I>) -> I::Vector {
        mean * isa.splat(step.rescale)
    }
}

pub(super) struct Lamb;

impl Rule for Lamb {
    const STATE: usize = 2;

    #[inline(always)]
    fn step<I: Isa>(isa: I, step: &Step, sum: I::Vector, weight: I::Vector, moments: State<I>) -> Stepped<I> {
        let (update, moments) = update::<I, false>(isa, step, sum * isa.splat(step.rescale), moments);
        (weight - isa.splat(step.learning_rate) * decayed(isa, step, update, weight), moments)
    }
}

impl Adapts for Lamb {
    #[inline(always)]
    fn measured<I: Isa>(
        isa: I,
        step: &Step,
        mean: I::Vector,
        weight: I::Vector,
        moments: State<I>,
    ) -> I::Vector {
        let (update, _) = update::<I, false>(isa, step, mean * isa.splat(step.rescale), moments);
        decayed(isa, step, update, weight)
    }
}

/// An optimizer's rule that adapts its rate to two norms of a key. They are the norm of the weights, and the norm of
/// the gradient or of the update.
pub(super) trait Adapts: Rule {
    /// Returns a vector of the gradient or of the update, for the second norm.
    fn measured<I: Isa>(
        isa: I,
        step: &Step,
        mean: I::Vector,
        weight: I::Vector,
        state: State<I>,
    ) -> I::Vector;
}

/// Returns the mean gradient plus the L2 penalty.
#[inline(always)]
fn gradient<I: Isa>(isa: I, step: &Step, sum: I::Vector, weight: I::Vector) -> I::Vector {
    decayed(isa, step, sum * isa.splat(step.rescale), weight)
}

/// Returns a vector plus the decay of the weights. A decay of 0 is not added, because 0 times an infinite weight would be NaN.
#[inline(always)]
fn decayed<I: Isa>(isa: I, step: &Step, toward: I::Vector, weight: I::Vector) -> I::Vector {
    let decay = isa.splat(step.weight_decay);
    decay.if_above(isa.splat(0.0), toward + decay * weight, toward)
}

/// Returns 1 or -1. A zero and a NaN stay as they are.
#[inline(always)]
fn sign<I: Isa>(isa: I, values: I::Vector) -> I::Vector {
    let zero = isa.splat(0.0);
    values.if_above(zero, isa.splat(1.0), zero.if_above(values, isa.splat(-1.0), values))
}

/// Returns the update that Adam subtracts from a weight, and the new moments. With `HIGHEST`, the division is by the
/// highest second moment so far.
#[inline(always)]
fn update<I: Isa, const HIGHEST: bool>(
    isa: I,
    step: &Step,
    gradient: I::Vector,
    [m, v, highest]: State<I>,
) -> Stepped<I> {
    let numbers = &step.adam;
    let m = isa.splat(numbers.beta1) * m + isa.splat(numbers.gain1) * gradient;
    let v = isa.splat(numbers.beta2) * v + isa.splat(numbers.gain2) * gradient * gradient;
    let highest = if HIGHEST { highest.if_above(v, highest, v) } else { v };
    let root = highest.sqrt() / isa.splat(numbers.bias2);
    (isa.splat(numbers.step_size) * m / (root + isa.splat(numbers.epsilon)), [m, v, highest])
}
