//! The specification of the arithmetic, one element at a time. Every kernel must equal it bit for bit. Tests and
//! the probe compare with it.
//!
//! The sum runs in worker order, `((g0 + g1) + g2) + ...`, and is then multiplied by `rescale`. No operation is
//! fused or reordered. Additions, multiplications, divisions and square roots are those of IEEE 754, exactly
//! rounded, so that the width of a vector does not change the result.
//!
//! All arithmetic is in f32. Gradients of another type are converted first, which is exact, and the result is
//! rounded last.

use super::element::Element;
use super::optimizer::Optimizer;
use crate::layout::Round;

/// The numbers of one step, after the key's multipliers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// Multiplies the sum: one over the number of workers.
    pub rescale: f32,
    /// Learning rate times the key's multiplier.
    pub learning_rate: f32,
    /// Weight decay times the key's multiplier.
    pub weight_decay: f32,
    /// `mu` of momentum and Nesterov.
    pub momentum: f32,
    /// The numbers of Adam and AdamW; zeros for the other optimizers.
    pub adam: AdamStep,
}

/// The numbers of one step of Adam and AdamW.
///
/// They are computed in f64 from the settings and rounded once. The step uses them in the order of PyTorch's
/// single-tensor reference, including the division by `bias2`, so that the results differ only by roundings
/// (`tests/torch.rs`).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AdamStep {
    /// `b1`.
    pub beta1: f32,
    /// `1 - b1`.
    pub gain1: f32,
    /// `b2`.
    pub beta2: f32,
    /// `1 - b2`.
    pub gain2: f32,
    /// `lr / (1 - b1^t)`.
    pub step_size: f32,
    /// `sqrt(1 - b2^t)`.
    pub bias2: f32,
    /// `eps`.
    pub epsilon: f32,
    /// `1 - lr * wd`, the factor of AdamW's weights.
    pub keep: f32,
}

impl Step {
    /// The step of `optimizer` in a chunk's `round`, at `learning_rate`, for a key with these multipliers.
    ///
    /// Round 0 is the broadcast, so `round` is also the number of the optimizer's step, from 1 on. Only the bias
    /// correction of Adam and AdamW uses it.
    ///
    /// # Panics
    /// With Adam or AdamW and round 0.
    pub fn new(
        optimizer: &Optimizer,
        workers: u32,
        round: Round,
        learning_rate: f32,
        lr_mult: f32,
        wd_mult: f32,
    ) -> Self {
        let learning_rate = learning_rate * lr_mult;
        let weight_decay = optimizer.weight_decay() * wd_mult;
        let (mut momentum, mut adam) = (0.0, AdamStep::default());
        match *optimizer {
            Optimizer::Average | Optimizer::Sgd { .. } => {}
            Optimizer::Momentum { momentum: mu, .. } | Optimizer::Nesterov { momentum: mu, .. } => {
                momentum = mu
            }
            Optimizer::Adam { beta1, beta2, epsilon, .. }
            | Optimizer::AdamW { beta1, beta2, epsilon, .. } => {
                adam = AdamStep::new([beta1, beta2], epsilon, round, learning_rate, weight_decay);
            }
        }
        Step { rescale: 1.0 / workers as f32, learning_rate, weight_decay, momentum, adam }
    }
}

impl AdamStep {
    fn new(betas: [f32; 2], epsilon: f32, round: Round, learning_rate: f32, weight_decay: f32) -> Self {
        assert_ne!(round, Round(0), "round 0 is the broadcast, not a step");
        let [b1, b2] = betas.map(f64::from);
        let rate = f64::from(learning_rate);
        AdamStep {
            beta1: betas[0],
            gain1: (1.0 - b1) as f32,
            beta2: betas[1],
            gain2: (1.0 - b2) as f32,
            step_size: (rate / (1.0 - power(b1, round.0))) as f32,
            bias2: (1.0 - power(b2, round.0)).sqrt() as f32,
            epsilon,
            keep: (1.0 - rate * f64::from(weight_decay)) as f32,
        }
    }
}

/// `base^exponent` by squaring. The standard library's `powi` may round differently from one platform
/// to another; a worker that checks the hub's bits may run on another one.
fn power(mut base: f64, mut exponent: u32) -> f64 {
    let mut power = 1.0;
    while exponent > 0 {
        if exponent & 1 == 1 {
            power *= base;
        }
        base *= base;
        exponent >>= 1;
    }
    power
}

/// The sum of the gradients in worker order.
pub fn sum(gradients: impl IntoIterator<Item = f32>) -> f32 {
    gradients.into_iter().reduce(|sum, gradient| sum + gradient).unwrap_or(0.0)
}

/// One element's step. The new `weight` is sent back; the new `state` stays in the hub.
///
/// `state` belongs to the element and has at least [`state_per_element`](Optimizer::state_per_element) f32: `m`,
/// then `v`.
pub fn step(optimizer: &Optimizer, step: &Step, sum: f32, weight: &mut f32, state: &mut [f32]) {
    let mean = sum * step.rescale;
    match optimizer {
        Optimizer::Average => *weight = mean,
        Optimizer::Sgd { .. } => {
            let gradient = mean + step.weight_decay * *weight;
            *weight -= step.learning_rate * gradient;
        }
        Optimizer::Momentum { .. } => {
            let gradient = mean + step.weight_decay * *weight;
            state[0] = step.momentum * state[0] + gradient;
            *weight -= step.learning_rate * state[0];
        }
        Optimizer::Nesterov { .. } => {
            let gradient = mean + step.weight_decay * *weight;
            state[0] = step.momentum * state[0] + gradient;
            *weight -= step.learning_rate * (gradient + step.momentum * state[0]);
        }
        Optimizer::Adam { .. } => {
            let gradient = mean + step.weight_decay * *weight;
            adam(&step.adam, gradient, weight, state);
        }
        Optimizer::AdamW { .. } => {
            *weight *= step.adam.keep;
            adam(&step.adam, mean, weight, state);
        }
    }
}

/// One element's step for a key of any type. The new `window` is sent back; the new `kept` stays in the hub
/// ([`kept_per_element`](Optimizer::kept_per_element): the master weight, if there is one, then the state).
///
/// The step runs in f32 on the master weight, and the window gets the rounded result. For f32 the window itself is
/// the master.
pub fn step_rounded<E: Element>(
    optimizer: &Optimizer,
    numbers: &Step,
    sum: f32,
    window: &mut E,
    kept: &mut [f32],
) {
    if optimizer.master_per_element(E::DTYPE) > 0 {
        let (master, state) = kept.split_first_mut().expect("there is a master weight");
        step(optimizer, numbers, sum, master, state);
        *window = E::from_f32(*master);
    } else {
        let mut weight = window.to_f32();
        step(optimizer, numbers, sum, &mut weight, kept);
        *window = E::from_f32(weight);
    }
}

fn adam(step: &AdamStep, gradient: f32, weight: &mut f32, state: &mut [f32]) {
    state[0] = step.beta1 * state[0] + step.gain1 * gradient;
    state[1] = step.beta2 * state[1] + step.gain2 * gradient * gradient;
    *weight -= step.step_size * state[0] / (state[1].sqrt() / step.bias2 + step.epsilon);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_differ_from_the_library_only_by_roundings() {
        for base in [0.0, 0.5, 0.9, 0.999, f64::from(f32::from_bits(0x3f7f_ffff))] {
            for exponent in [1, 2, 3, 10, 1000, 65_537, u32::MAX] {
                let (seen, expected) = (power(base, exponent), base.powf(f64::from(exponent)));
                assert!((seen - expected).abs() <= 1e-6 * expected + 1e-300, "{base}^{exponent}: {seen}");
            }
        }
        assert_eq!(power(0.0, 0), 1.0);
    }

    /// The first step of Adam has size `lr` against the gradient's sign, for gradients of any size.
    #[test]
    fn adams_first_step_has_the_size_of_the_learning_rate() {
        let (learning_rate, weight_decay, beta1, beta2, epsilon) = (0.5, 0.0, 0.9, 0.999, 1e-12);
        let optimizer = Optimizer::Adam { learning_rate, weight_decay, beta1, beta2, epsilon };
        let numbers = Step::new(&optimizer, 1, Round(1), learning_rate, 1.0, 1.0);
        for gradient in [1e-3, -7.0, 1e4] {
            let (mut weight, mut state) = (0.0, [0.0; 2]);
            step(&optimizer, &numbers, gradient, &mut weight, &mut state);
            assert!((weight + 0.5f32.copysign(gradient)).abs() < 1e-6, "{gradient}: {weight}");
        }
    }
}
