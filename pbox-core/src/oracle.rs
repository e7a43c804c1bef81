//! The specification of the arithmetic, one element at a time: what every kernel must equal bit for
//! bit. Tests and the probe compare against it.
//!
//! The sum runs in worker order, `((g0 + g1) + g2) + ...`, then one multiplication by `rescale`;
//! no operation is fused or reordered.

use crate::optimizer::Optimizer;

/// The numbers of one step, after the key's multipliers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// Multiplies the sum: one over the number of workers.
    pub rescale: f32,
    /// Learning rate times the key's multiplier.
    pub learning_rate: f32,
    /// Weight decay times the key's multiplier.
    pub weight_decay: f32,
    /// `mu` of Nesterov.
    pub momentum: f32,
}

impl Step {
    /// The step of `optimizer` at `learning_rate` for a key with these multipliers.
    pub fn new(optimizer: &Optimizer, workers: u32, learning_rate: f32, lr_mult: f32, wd_mult: f32) -> Self {
        let momentum = match *optimizer {
            Optimizer::Nesterov { momentum, .. } => momentum,
            _ => 0.0,
        };
        Step {
            rescale: 1.0 / workers as f32,
            learning_rate: learning_rate * lr_mult,
            weight_decay: optimizer.weight_decay() * wd_mult,
            momentum,
        }
    }
}

/// The gradients' sum in worker order.
pub fn sum(gradients: impl IntoIterator<Item = f32>) -> f32 {
    gradients.into_iter().reduce(|sum, gradient| sum + gradient).unwrap_or(0.0)
}

/// One element's step: `weight` and `state` are replaced by what the hub sends back and keeps.
pub fn step(optimizer: &Optimizer, step: &Step, sum: f32, weight: &mut f32, state: &mut f32) {
    match optimizer {
        Optimizer::Average => *weight = sum * step.rescale,
        Optimizer::Sgd { .. } => {
            let gradient = sum * step.rescale + step.weight_decay * *weight;
            *weight -= step.learning_rate * gradient;
        }
        Optimizer::Nesterov { .. } => {
            let gradient = sum * step.rescale + step.weight_decay * *weight;
            *state = step.momentum * *state + gradient;
            *weight -= step.learning_rate * (gradient + step.momentum * *state);
        }
    }
}
