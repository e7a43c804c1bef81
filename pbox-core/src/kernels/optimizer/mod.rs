//! Optimizers: their settings, and the numbers of one step.
//!
//! The arithmetic is in `rule`, and its specification in `oracle`. `numbers` has the hyperparameters, which may
//! change between rounds.

mod numbers;

use serde::{Deserialize, Serialize};

use crate::layout::{Dtype, Round};
use crate::strict_json;

pub use numbers::{Groups, Multipliers, Numbers, NumbersByRound};

/// The rule by which the hub computes the weights or gradients that it sends back to workers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "lowercase", deny_unknown_fields)]
pub enum Optimizer {
    /// The mean of the gradients: an all-reduce.
    #[serde(deserialize_with = "strict_json::none")]
    Average,
    /// The sum of the gradients: an all-reduce. Sums of whole numbers below 2^24 are exact.
    #[serde(deserialize_with = "strict_json::none")]
    Sum,
    /// `w -= lr * (g + wd * w)`, where `g` is the mean of the gradients.
    Sgd {
        /// Step size.
        learning_rate: f32,
        /// L2 penalty.
        #[serde(default)]
        weight_decay: f32,
    },
    /// Heavy-ball momentum, PyTorch's `SGD` without dampening:
    /// `g += wd * w; m = mu * m + g; w -= lr * m`.
    Momentum {
        /// Step size.
        learning_rate: f32,
        /// L2 penalty.
        #[serde(default)]
        weight_decay: f32,
        /// `mu`.
        momentum: f32,
    },
    /// Momentum that takes only a part of each gradient: PyTorch's `SGD` with dampening `d`.
    /// `g += wd * w; m = mu * m + (1 - d) * g; w -= lr * m`. A chunk's first step sets `m = g`.
    Dampened {
        /// Step size.
        learning_rate: f32,
        /// L2 penalty.
        #[serde(default)]
        weight_decay: f32,
        /// `mu`.
        momentum: f32,
        /// `d`.
        dampening: f32,
    },
    /// Nesterov's accelerated gradient as in PHub's public code (the paper gives no formula):
    /// `g += wd * w; m = mu * m + g; w -= lr * (g + mu * m)`.
    Nesterov {
        /// Step size.
        learning_rate: f32,
        /// L2 penalty.
        #[serde(default)]
        weight_decay: f32,
        /// `mu`.
        momentum: f32,
    },
    /// Adam with the L2 penalty in the gradient, PyTorch's `Adam`. In a chunk's step `t`, which starts at 1:
    /// `g += wd * w; m = b1 * m + (1 - b1) * g; v = b2 * v + (1 - b2) * g * g;`
    /// `w -= lr / (1 - b1^t) * m / (sqrt(v) / sqrt(1 - b2^t) + eps)`.
    ///
    /// A chunk's state is all of its `m`, then all of its `v`.
    Adam {
        /// Step size.
        learning_rate: f32,
        /// L2 penalty.
        #[serde(default)]
        weight_decay: f32,
        /// `b1`, the decay of the mean of gradients. It is an f64, because the step uses `1 - b1`, for which an f32 has too
        /// few digits.
        #[serde(default = "beta1")]
        beta1: f64,
        /// `b2`, the decay of the mean of squared gradients.
        #[serde(default = "beta2")]
        beta2: f64,
        /// `eps`, which keeps the quotient finite.
        #[serde(default = "epsilon")]
        epsilon: f32,
    },
    /// Adam with weight decay outside the gradient, PyTorch's `AdamW`. A step is `w *= 1 - lr * wd`, and then a step of
    /// [`Adam`] without a penalty. The state is that of [`Adam`].
    ///
    /// [`Adam`]: Optimizer::Adam
    AdamW {
        /// Step size.
        learning_rate: f32,
        /// Decay of the weights, in units of the step size.
        #[serde(default = "decoupled_weight_decay")]
        weight_decay: f32,
        /// `b1`, the decay of the mean of gradients. It is an f64, because the step uses `1 - b1`, for which an f32 has too
        /// few digits.
        #[serde(default = "beta1")]
        beta1: f64,
        /// `b2`, the decay of the mean of squared gradients.
        #[serde(default = "beta2")]
        beta2: f64,
        /// `eps`, which keeps the quotient finite.
        #[serde(default = "epsilon")]
        epsilon: f32,
    },
    /// [`Adam`] with a division by the highest `v` so far instead of the last `v`: PyTorch's `Adam` with `amsgrad`.
    ///
    /// A chunk's state is all of its `m`, then all of its `v`, then all of its highest `v`.
    ///
    /// [`Adam`]: Optimizer::Adam
    AmsGrad {
        /// Step size.
        learning_rate: f32,
        /// L2 penalty.
        #[serde(default)]
        weight_decay: f32,
        /// `b1`, the decay of the mean of gradients. It is an f64, because the step uses `1 - b1`, for which an f32 has too
        /// few digits.
        #[serde(default = "beta1")]
        beta1: f64,
        /// `b2`, the decay of the mean of squared gradients.
        #[serde(default = "beta2")]
        beta2: f64,
        /// `eps`, which keeps the quotient finite.
        #[serde(default = "epsilon")]
        epsilon: f32,
    },
    /// [`AdamW`] with a division by the highest `v` so far: PyTorch's `AdamW` with `amsgrad`. Its state is that of
    /// [`AmsGrad`].
    ///
    /// [`AdamW`]: Optimizer::AdamW
    /// [`AmsGrad`]: Optimizer::AmsGrad
    AmsGradW {
        /// Step size.
        learning_rate: f32,
        /// Decay of the weights, in units of the step size.
        #[serde(default = "decoupled_weight_decay")]
        weight_decay: f32,
        /// `b1`, the decay of the mean of gradients. It is an f64, because the step uses `1 - b1`, for which an f32 has too
        /// few digits.
        #[serde(default = "beta1")]
        beta1: f64,
        /// `b2`, the decay of the mean of squared gradients.
        #[serde(default = "beta2")]
        beta2: f64,
        /// `eps`, which keeps the quotient finite.
        #[serde(default = "epsilon")]
        epsilon: f32,
    },
    /// Lion (Chen et al. 2023): `u = b1 * m + (1 - b1) * g; w = w * (1 - lr * wd) - lr * sign(u); m = b2 * m + (1 - b2) * g`.
    /// The sign of zero is zero, and the sign of a NaN is a NaN.
    Lion {
        /// Step size. Every weight changes by the step size, so it should be three to ten times smaller than AdamW's.
        learning_rate: f32,
        /// Decay of the weights, in units of the step size.
        #[serde(default)]
        weight_decay: f32,
        /// `b1`, the weight of `m` in a step's direction.
        #[serde(default = "beta1")]
        beta1: f64,
        /// `b2`, the decay of the mean of gradients.
        #[serde(default = "beta2_of_lion")]
        beta2: f64,
    },
    /// LARS (You et al. 2017): `t = eta * |w| / (|g| + wd * |w|); m = mu * m + lr * t * (g + wd * w); w -= m`. The norms are
    /// those of a key. `t` is 1 if a norm is 0, and for keys whose multiplier of the weight decay is 0.
    Lars {
        /// Step size.
        learning_rate: f32,
        /// L2 penalty.
        #[serde(default)]
        weight_decay: f32,
        /// `mu`.
        momentum: f32,
        /// `eta`.
        #[serde(default = "trust")]
        trust: f32,
    },
    /// LAMB (You et al. 2020), with Adam's moments `m` and `v` in a chunk's step `t`, which starts at 1:
    /// `u = m / (1 - b1^t) / (sqrt(v) / sqrt(1 - b2^t) + eps) + wd * w; w -= lr * |w| / |u| * u`. The norms are those of a key.
    /// Their quotient is 1 if one norm is 0, and for keys whose multiplier of the weight decay is 0.
    Lamb {
        /// Step size.
        learning_rate: f32,
        /// Decay of the weights, as a part of the update.
        #[serde(default = "decoupled_weight_decay")]
        weight_decay: f32,
        /// `b1`, the decay of the mean of gradients. It is an f64, because the step uses `1 - b1`, for which an f32 has too
        /// few digits.
        #[serde(default = "beta1")]
        beta1: f64,
        /// `b2`, the decay of the mean of squared gradients.
        #[serde(default = "beta2")]
        beta2: f64,
        /// `eps`, which keeps the quotient finite.
        #[serde(default = "epsilon_of_lamb")]
        epsilon: f32,
    },
}

// These defaults are PyTorch's.
fn beta1() -> f64 {
    0.9
}
fn beta2() -> f64 {
    0.999
}
fn beta2_of_lion() -> f64 {
    0.99
}
fn epsilon() -> f32 {
    1e-8
}
fn epsilon_of_lamb() -> f32 {
    1e-6
}
fn trust() -> f32 {
    0.001
}
fn decoupled_weight_decay() -> f32 {
    0.01
}

/// An error: a setting is out of its range.
#[derive(Debug, PartialEq, thiserror::Error)]
#[error("{optimizer}: {setting} is {seen}; expected a finite number{range}")]
pub struct InvalidOptimizer {
    optimizer: &'static str,
    setting: &'static str,
    seen: f32,
    range: &'static str,
}

impl Optimizer {
    /// The names of all optimizers, as in the settings.
    pub const NAMES: [&str; 13] = [
        "average", "sum", "sgd", "momentum", "dampened", "nesterov", "adam", "adamw", "amsgrad", "amsgradw",
        "lion", "lars", "lamb",
    ];

    /// Returns the optimizer's name in the settings.
    pub fn name(&self) -> &'static str {
        match self {
            Optimizer::Average => "average",
            Optimizer::Sum => "sum",
            Optimizer::Sgd { .. } => "sgd",
            Optimizer::Momentum { .. } => "momentum",
            Optimizer::Dampened { .. } => "dampened",
            Optimizer::Nesterov { .. } => "nesterov",
            Optimizer::Adam { .. } => "adam",
            Optimizer::AdamW { .. } => "adamw",
            Optimizer::AmsGrad { .. } => "amsgrad",
            Optimizer::AmsGradW { .. } => "amsgradw",
            Optimizer::Lion { .. } => "lion",
            Optimizer::Lars { .. } => "lars",
            Optimizer::Lamb { .. } => "lamb",
        }
    }

    /// Returns the number of f32 of state that the hub keeps for each parameter, in addition to the weights.
    pub fn state_per_element(&self) -> usize {
        match self {
            Optimizer::Average | Optimizer::Sum | Optimizer::Sgd { .. } => 0,
            Optimizer::Momentum { .. } | Optimizer::Dampened { .. } | Optimizer::Nesterov { .. } => 1,
            Optimizer::Lion { .. } | Optimizer::Lars { .. } => 1,
            Optimizer::Adam { .. } | Optimizer::AdamW { .. } | Optimizer::Lamb { .. } => 2,
            Optimizer::AmsGrad { .. } | Optimizer::AmsGradW { .. } => 3,
        }
    }

    /// Whether a step depends on the number of earlier steps.
    pub fn uses_steps(&self) -> bool {
        match self {
            Optimizer::Average | Optimizer::Sum | Optimizer::Sgd { .. } => false,
            Optimizer::Momentum { .. } | Optimizer::Nesterov { .. } | Optimizer::Lion { .. } => false,
            Optimizer::Lars { .. } => false,
            Optimizer::Lamb { .. } => true,
            Optimizer::Dampened { .. } | Optimizer::Adam { .. } | Optimizer::AdamW { .. } => true,
            Optimizer::AmsGrad { .. } | Optimizer::AmsGradW { .. } => true,
        }
    }

    /// Whether the steps of a key wait for norms of the whole key.
    pub fn adapts_keys(&self) -> bool {
        matches!(self, Optimizer::Lars { .. } | Optimizer::Lamb { .. })
    }

    /// Whether the hub keeps weights. If it does, round 0 is the broadcast of rank 0's weights.
    pub fn keeps_weights(&self) -> bool {
        !matches!(self, Optimizer::Average | Optimizer::Sum)
    }

    /// Returns the initial step size, or zero if the optimizer has none.
    pub fn learning_rate(&self) -> f32 {
        match *self {
            Optimizer::Average | Optimizer::Sum => 0.0,
            Optimizer::Sgd { learning_rate, .. }
            | Optimizer::Momentum { learning_rate, .. }
            | Optimizer::Dampened { learning_rate, .. }
            | Optimizer::Nesterov { learning_rate, .. }
            | Optimizer::Adam { learning_rate, .. }
            | Optimizer::AdamW { learning_rate, .. }
            | Optimizer::AmsGrad { learning_rate, .. }
            | Optimizer::AmsGradW { learning_rate, .. }
            | Optimizer::Lion { learning_rate, .. }
            | Optimizer::Lars { learning_rate, .. }
            | Optimizer::Lamb { learning_rate, .. } => learning_rate,
        }
    }

    /// Returns the optimizer with another step size.
    pub fn with_learning_rate(mut self, rate: f32) -> Self {
        match &mut self {
            Optimizer::Average | Optimizer::Sum => {}
            Optimizer::Sgd { learning_rate, .. }
            | Optimizer::Momentum { learning_rate, .. }
            | Optimizer::Dampened { learning_rate, .. }
            | Optimizer::Nesterov { learning_rate, .. }
            | Optimizer::Adam { learning_rate, .. }
            | Optimizer::AdamW { learning_rate, .. }
            | Optimizer::AmsGrad { learning_rate, .. }
            | Optimizer::AmsGradW { learning_rate, .. }
            | Optimizer::Lion { learning_rate, .. }
            | Optimizer::Lars { learning_rate, .. }
            | Optimizer::Lamb { learning_rate, .. } => *learning_rate = rate,
        }
        self
    }

    /// Returns the L2 penalty or the decay of the weights, or zero if the optimizer has neither.
    pub fn weight_decay(&self) -> f32 {
        match *self {
            Optimizer::Average | Optimizer::Sum => 0.0,
            Optimizer::Sgd { weight_decay, .. }
            | Optimizer::Momentum { weight_decay, .. }
            | Optimizer::Dampened { weight_decay, .. }
            | Optimizer::Nesterov { weight_decay, .. }
            | Optimizer::Adam { weight_decay, .. }
            | Optimizer::AdamW { weight_decay, .. }
            | Optimizer::AmsGrad { weight_decay, .. }
            | Optimizer::AmsGradW { weight_decay, .. }
            | Optimizer::Lion { weight_decay, .. }
            | Optimizer::Lars { weight_decay, .. }
            | Optimizer::Lamb { weight_decay, .. } => weight_decay,
        }
    }

    /// Returns the number of f32 that the hub keeps for each element of a key of type `dtype`, in addition to the window of
    /// weights. They are the f32 master weight, if `dtype` has 16 bits, and the optimizer's state.
    pub fn kept_per_element(&self, dtype: Dtype) -> usize {
        self.master_per_element(dtype) + self.state_per_element()
    }

    /// Returns how many master weights the hub keeps for an element of type `dtype`: 1 for types of 16 bits. It is 0
    /// for f32, because the window then has the master weights, and for optimizers without weights.
    pub fn master_per_element(&self, dtype: Dtype) -> usize {
        usize::from(self.keeps_weights() && dtype != Dtype::F32)
    }

    /// Checks that every setting is in its range.
    pub fn check(&self) -> Result<(), InvalidOptimizer> {
        let optimizer = self.name();
        let finite = |setting, seen: f32, ok: bool, range| {
            if seen.is_finite() && ok {
                Ok(())
            } else {
                Err(InvalidOptimizer { optimizer, setting, seen, range })
            }
        };
        finite("learning_rate", self.learning_rate(), self.learning_rate() >= 0.0, ", at least 0")?;
        finite("weight_decay", self.weight_decay(), self.weight_decay() >= 0.0, ", at least 0")?;
        let fraction =
            |setting, seen: f32| finite(setting, seen, (0.0..1.0).contains(&seen), " from 0 to below 1");
        match *self {
            Optimizer::Average | Optimizer::Sum | Optimizer::Sgd { .. } => {}
            Optimizer::Momentum { momentum, .. } | Optimizer::Nesterov { momentum, .. } => {
                fraction("momentum", momentum)?;
            }
            Optimizer::Dampened { momentum, dampening, .. } => {
                fraction("momentum", momentum)?;
                fraction("dampening", dampening)?;
            }
            // A beta that becomes 1 in f32 would never change the mean.
            Optimizer::Adam { beta1, beta2, epsilon, .. }
            | Optimizer::AdamW { beta1, beta2, epsilon, .. }
            | Optimizer::AmsGrad { beta1, beta2, epsilon, .. }
            | Optimizer::AmsGradW { beta1, beta2, epsilon, .. }
            | Optimizer::Lamb { beta1, beta2, epsilon, .. } => {
                fraction("beta1", beta1 as f32)?;
                fraction("beta2", beta2 as f32)?;
                finite("epsilon", epsilon, epsilon > 0.0, " above 0")?;
            }
            Optimizer::Lion { beta1, beta2, .. } => {
                fraction("beta1", beta1 as f32)?;
                fraction("beta2", beta2 as f32)?;
            }
            Optimizer::Lars { momentum, trust, .. } => {
                fraction("momentum", momentum)?;
                finite("trust", trust, trust > 0.0, " above 0")?;
            }
        }
        Ok(())
    }
}

/// The numbers of one step, with the key's multipliers applied.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// The factor of the sum: one divided by the number of workers, or 1 for `Sum`. It is negative in a step up the
    /// gradient.
    pub rescale: f32,
    /// The learning rate times the key's multiplier.
    pub learning_rate: f32,
    /// The weight decay times the key's multiplier.
    pub weight_decay: f32,
    /// `mu` of momentum and Nesterov.
    pub momentum: f32,
    /// The part of a gradient that dampened momentum takes.
    pub gain: f32,
    /// The factor of a key's adapted rate: `eta` for LARS, 1 for LAMB. It is 0 for keys without an adapted rate, and for
    /// other optimizers.
    pub trust: f32,
    /// The numbers of Adam, AdamW, AMSGrad, Lion and LAMB; zeros for the other optimizers.
    pub adam: AdamStep,
}

/// The numbers of one step of Adam and of similar optimizers.
///
/// The factors are computed in f64 from the settings, and rounded once. The step uses them in the order of PyTorch's
/// single-tensor reference, including the division by `bias2`. So the results differ from PyTorch's only by roundings
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
    /// `lr / (1 - b1^t)`; `lr` for Lion; `1 / (1 - b1^t)` for LAMB.
    pub step_size: f32,
    /// `sqrt(1 - b2^t)`.
    pub bias2: f32,
    /// `eps`.
    pub epsilon: f32,
    /// `1 - lr * wd`, the factor of the weights of AdamW and Lion.
    pub keep: f32,
}

impl Step {
    /// Creates step `number` of a chunk, counted from 1, at `learning_rate`, for a key with these multipliers. Only
    /// optimizers that [use steps](Optimizer::uses_steps) use the number. The number is the chunk's round, if each round
    /// after the broadcast made a step.
    ///
    /// # Panics
    /// Panics if `number` is 0 for Adam or a similar optimizer.
    pub fn new(
        optimizer: &Optimizer,
        workers: u32,
        number: Round,
        learning_rate: f32,
        lr_mult: f32,
        wd_mult: f32,
    ) -> Self {
        let learning_rate = learning_rate * lr_mult;
        let weight_decay = optimizer.weight_decay() * wd_mult;
        let (mut momentum, mut gain, mut trust, mut adam) = (0.0, 0.0, 0.0, AdamStep::default());
        let rescale = if *optimizer == Optimizer::Sum { 1.0 } else { 1.0 / workers as f32 };
        match *optimizer {
            Optimizer::Average | Optimizer::Sum | Optimizer::Sgd { .. } => {}
            Optimizer::Momentum { momentum: mu, .. } | Optimizer::Nesterov { momentum: mu, .. } => {
                momentum = mu
            }
            Optimizer::Dampened { momentum: mu, dampening, .. } => {
                (momentum, gain) = (mu, if number > Round(1) { 1.0 - dampening } else { 1.0 });
            }
            Optimizer::Adam { beta1, beta2, epsilon, .. }
            | Optimizer::AdamW { beta1, beta2, epsilon, .. }
            | Optimizer::AmsGrad { beta1, beta2, epsilon, .. }
            | Optimizer::AmsGradW { beta1, beta2, epsilon, .. } => {
                adam = AdamStep::new([beta1, beta2], epsilon, number, learning_rate, weight_decay);
            }
            Optimizer::Lion { beta1, beta2, .. } => {
                let numbers = AdamStep::new([beta1, beta2], 0.0, Round(1), learning_rate, weight_decay);
                adam = AdamStep { step_size: learning_rate, ..numbers };
            }
            Optimizer::Lars { momentum: mu, trust: eta, .. } => {
                (momentum, trust) = (mu, if wd_mult == 0.0 { 0.0 } else { eta });
            }
            Optimizer::Lamb { beta1, beta2, epsilon, .. } => {
                adam = AdamStep::new([beta1, beta2], epsilon, number, 1.0, weight_decay);
                trust = if wd_mult == 0.0 { 0.0 } else { 1.0 };
            }
        }
        Step { rescale, learning_rate, weight_decay, momentum, gain, trust, adam }
    }

    /// Returns the numbers of a step with LARS or LAMB for a key. `quotient` is the norm of the gradient or of the update,
    /// divided by the norm of the weights. It is 0 if one of the norms is 0.
    pub fn adapted(self, optimizer: &Optimizer, quotient: f32) -> Self {
        if self.trust == 0.0 || quotient == 0.0 {
            return self;
        }
        // In LAMB, the decay of the weights is already a part of the update.
        let decay = if matches!(optimizer, Optimizer::Lars { .. }) { self.weight_decay } else { 0.0 };
        let trust = f64::from(self.trust) / (f64::from(quotient) + f64::from(decay));
        Step { learning_rate: self.learning_rate * trust as f32, ..self }
    }
}

impl AdamStep {
    fn new([b1, b2]: [f64; 2], epsilon: f32, number: Round, learning_rate: f32, weight_decay: f32) -> Self {
        assert_ne!(number, Round(0), "steps are counted from 1");
        let rate = f64::from(learning_rate);
        AdamStep {
            beta1: b1 as f32,
            gain1: (1.0 - b1) as f32,
            beta2: b2 as f32,
            gain2: (1.0 - b2) as f32,
            step_size: (rate / (1.0 - power(b1, number.0))) as f32,
            bias2: (1.0 - power(b2, number.0)).sqrt() as f32,
            epsilon,
            keep: (1.0 - rate * f64::from(weight_decay)) as f32,
        }
    }
}

/// Computes `base^exponent` by squaring. The standard library's `powi` may round differently on different platforms. A
/// worker that checks the hub's bits may run on another platform.
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

/// The parts of a chunk's work that are left out, to measure their cost. The results are wrong on purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ablate {
    /// Whether only rank 0's gradient is used instead of the sum.
    #[serde(default)]
    pub aggregate: bool,
    /// Whether the mean gradient is sent back and no step is made.
    #[serde(default)]
    pub optimize: bool,
}

#[cfg(test)]
mod tests;
