//! Optimizers: their settings, and learning rates over time.
//!
//! Settings only. The arithmetic is in `rule`, its specification in `oracle`.

use serde::{Deserialize, Serialize};

use crate::layout::{Dtype, Round};
use crate::strict_json;

/// How the hub computes what it sends back to the workers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "lowercase", deny_unknown_fields)]
pub enum Optimizer {
    /// The mean of the gradients: an all-reduce.
    #[serde(deserialize_with = "strict_json::none")]
    Average,
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
    /// Adam with the L2 penalty in the gradient, PyTorch's `Adam`. In a chunk's step `t`, which is its round and
    /// starts at 1:
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
        /// `b1`, the decay of the mean of gradients.
        #[serde(default = "beta1")]
        beta1: f32,
        /// `b2`, the decay of the mean of squared gradients.
        #[serde(default = "beta2")]
        beta2: f32,
        /// `eps`, which keeps the quotient finite.
        #[serde(default = "epsilon")]
        epsilon: f32,
    },
    /// Adam with weight decay outside the gradient, PyTorch's `AdamW`: `w *= 1 - lr * wd`, then [`Adam`] without a
    /// penalty, with the same state.
    ///
    /// [`Adam`]: Optimizer::Adam
    AdamW {
        /// Step size.
        learning_rate: f32,
        /// Decay of the weights, in units of the step size.
        #[serde(default = "decoupled_weight_decay")]
        weight_decay: f32,
        /// `b1`, the decay of the mean of gradients.
        #[serde(default = "beta1")]
        beta1: f32,
        /// `b2`, the decay of the mean of squared gradients.
        #[serde(default = "beta2")]
        beta2: f32,
        /// `eps`, which keeps the quotient finite.
        #[serde(default = "epsilon")]
        epsilon: f32,
    },
}

// PyTorch's defaults.
fn beta1() -> f32 {
    0.9
}
fn beta2() -> f32 {
    0.999
}
fn epsilon() -> f32 {
    1e-8
}
fn decoupled_weight_decay() -> f32 {
    0.01
}

/// Settings outside their range.
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
    pub const NAMES: [&str; 6] = ["average", "sgd", "momentum", "nesterov", "adam", "adamw"];

    /// Its name.
    pub fn name(&self) -> &'static str {
        match self {
            Optimizer::Average => "average",
            Optimizer::Sgd { .. } => "sgd",
            Optimizer::Momentum { .. } => "momentum",
            Optimizer::Nesterov { .. } => "nesterov",
            Optimizer::Adam { .. } => "adam",
            Optimizer::AdamW { .. } => "adamw",
        }
    }

    /// The f32 of state that the hub keeps for each parameter, besides the weights.
    pub fn state_per_element(&self) -> usize {
        match self {
            Optimizer::Average | Optimizer::Sgd { .. } => 0,
            Optimizer::Momentum { .. } | Optimizer::Nesterov { .. } => 1,
            Optimizer::Adam { .. } | Optimizer::AdamW { .. } => 2,
        }
    }

    /// f32 that a checkpoint has for each parameter: the weight and the state, where the hub keeps weights.
    pub fn saved_per_element(&self) -> usize {
        if self.keeps_weights() { 1 + self.state_per_element() } else { 0 }
    }

    /// Whether the hub keeps weights. If so, the first round is the broadcast of rank 0's weights.
    pub fn keeps_weights(&self) -> bool {
        !matches!(self, Optimizer::Average)
    }

    /// The step size at the start; zero if the optimizer has none.
    pub fn learning_rate(&self) -> f32 {
        match *self {
            Optimizer::Average => 0.0,
            Optimizer::Sgd { learning_rate, .. }
            | Optimizer::Momentum { learning_rate, .. }
            | Optimizer::Nesterov { learning_rate, .. }
            | Optimizer::Adam { learning_rate, .. }
            | Optimizer::AdamW { learning_rate, .. } => learning_rate,
        }
    }

    /// The L2 penalty, or the decay of the weights; zero if the optimizer has none.
    pub fn weight_decay(&self) -> f32 {
        match *self {
            Optimizer::Average => 0.0,
            Optimizer::Sgd { weight_decay, .. }
            | Optimizer::Momentum { weight_decay, .. }
            | Optimizer::Nesterov { weight_decay, .. }
            | Optimizer::Adam { weight_decay, .. }
            | Optimizer::AdamW { weight_decay, .. } => weight_decay,
        }
    }

    /// The f32 that the hub keeps for each element of a key of type `dtype`, besides the weights window: the master
    /// weight, if the type is too coarse for it, then the optimizer's state.
    pub fn kept_per_element(&self, dtype: Dtype) -> usize {
        self.master_per_element(dtype) + self.state_per_element()
    }

    /// The master weights of an element of type `dtype`: one, or none if the window itself is the master or there
    /// are no weights.
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
        finite("learning_rate", self.learning_rate(), true, "")?;
        finite("weight_decay", self.weight_decay(), self.weight_decay() >= 0.0, ", at least 0")?;
        let fraction =
            |setting, seen: f32| finite(setting, seen, (0.0..1.0).contains(&seen), " from 0 to below 1");
        match *self {
            Optimizer::Average | Optimizer::Sgd { .. } => {}
            Optimizer::Momentum { momentum, .. } | Optimizer::Nesterov { momentum, .. } => {
                fraction("momentum", momentum)?;
            }
            Optimizer::Adam { beta1, beta2, epsilon, .. }
            | Optimizer::AdamW { beta1, beta2, epsilon, .. } => {
                fraction("beta1", beta1)?;
                fraction("beta2", beta2)?;
                finite("epsilon", epsilon, epsilon > 0.0, " above 0")?;
            }
        }
        Ok(())
    }
}

/// Parts of a chunk's work that are left out, to measure their cost. The results are wrong on purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ablate {
    /// Use rank 0's gradient alone instead of the sum.
    #[serde(default)]
    pub aggregate: bool,
    /// Send the mean gradient back instead of stepping.
    #[serde(default)]
    pub optimize: bool,
}

/// Learning rates by round. A change names the first round that it holds for, so that all cores change at the same
/// step, whatever round their chunks are in when the change arrives.
#[derive(Clone, Debug, PartialEq)]
pub struct LearningRates {
    /// (first round, rate), rounds ascending; the first entry starts at round 0.
    changes: Vec<(Round, f32)>,
}

impl LearningRates {
    /// `rate` from round 0 on.
    pub fn new(rate: f32) -> Self {
        LearningRates { changes: vec![(Round(0), rate)] }
    }

    /// Sets `rate` from round `from` on, until the next change. Workers in different rounds set the same schedule at
    /// different times: a rate that a faster worker set for later rounds stays.
    pub fn change(&mut self, from: Round, rate: f32) {
        self.changes.retain(|&(round, _)| round != from);
        let place = self.changes.partition_point(|&(round, _)| round < from);
        self.changes.insert(place, (from, rate));
    }

    /// The rate of a round.
    pub fn at(&self, round: Round) -> f32 {
        let last = self.changes.iter().rev().find(|&&(from, _)| from <= round);
        last.unwrap_or(&self.changes[0]).1
    }

    /// The changes that matter from `round` on: (first round, rate), rounds ascending, the first at `round` or
    /// before.
    pub fn changes_from(&self, round: Round) -> Vec<(Round, f32)> {
        let mut rates = self.clone();
        rates.forget_before(round);
        rates.changes
    }

    /// Forgets changes that no round from `oldest` on needs.
    pub fn forget_before(&mut self, oldest: Round) {
        let current = self.changes.iter().rposition(|&(from, _)| from <= oldest).unwrap_or(0);
        self.changes.drain(..current);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_holds_from_its_round_on() {
        let mut rates = LearningRates::new(0.1);
        rates.change(Round(5), 0.01);
        rates.change(Round(9), 0.001);
        assert_eq!([0, 4, 5, 8, 9, 100].map(|r| rates.at(Round(r))), [0.1, 0.1, 0.01, 0.01, 0.001, 0.001]);
        rates.change(Round(9), 0.5);
        assert_eq!(rates.at(Round(9)), 0.5);
        rates.change(Round(7), 0.02);
        assert_eq!([6, 7, 8, 9].map(|r| rates.at(Round(r))), [0.01, 0.02, 0.02, 0.5], "later changes stay");
        rates.forget_before(Round(6));
        assert_eq!((rates.at(Round(6)), rates.at(Round(9))), (0.01, 0.5));
    }

    #[test]
    fn settings_out_of_range_are_named() {
        let bad = Optimizer::Nesterov { learning_rate: 0.1, weight_decay: 0.0, momentum: 1.5 };
        assert_eq!(
            bad.check().unwrap_err().to_string(),
            "nesterov: momentum is 1.5; expected a finite number from 0 to below 1"
        );
        assert!(Optimizer::Sgd { learning_rate: f32::NAN, weight_decay: 0.0 }.check().is_err());
        assert_eq!(Optimizer::Average.check(), Ok(()));
        let adam = |beta1, beta2, epsilon| {
            let (learning_rate, weight_decay) = (0.1, 0.0);
            Optimizer::AdamW { learning_rate, weight_decay, beta1, beta2, epsilon }.check()
        };
        assert_eq!(adam(0.0, 0.999, 1e-8), Ok(()));
        for (bad, words) in [
            (adam(1.0, 0.999, 1e-8), "adamw: beta1 is 1; expected a finite number from 0 to below 1"),
            (adam(0.9, -0.5, 1e-8), "adamw: beta2 is -0.5; expected a finite number from 0 to below 1"),
            (adam(0.9, 0.999, 0.0), "adamw: epsilon is 0; expected a finite number above 0"),
        ] {
            assert_eq!(bad.unwrap_err().to_string(), words);
        }
    }

    #[test]
    fn unknown_settings_are_refused() {
        for (json, field) in [
            (r#"{"name":"average","learning_rate":0.1}"#, "learning_rate"),
            (r#"{"x":1,"name":"average"}"#, "x"),
            (r#"{"name":"sgd","learning_rate":0.1,"momentum":0.9}"#, "momentum"),
        ] {
            let error = serde_json::from_str::<Optimizer>(json).unwrap_err().to_string();
            assert!(error.starts_with(&format!("unknown field `{field}`, ")), "{json}: {error}");
        }
        assert_eq!(serde_json::from_str::<Optimizer>(r#"{"name":"average"}"#).unwrap(), Optimizer::Average);
    }

    #[test]
    fn missing_settings_have_pytorchs_defaults() {
        let read = |json: &str| serde_json::from_str::<Optimizer>(json).unwrap();
        let (learning_rate, beta1, beta2, epsilon) = (0.5, 0.9, 0.999, 1e-8);
        assert_eq!(
            read(r#"{"name": "adam", "learning_rate": 0.5}"#),
            Optimizer::Adam { learning_rate, weight_decay: 0.0, beta1, beta2, epsilon }
        );
        assert_eq!(
            read(r#"{"name": "adamw", "learning_rate": 0.5}"#),
            Optimizer::AdamW { learning_rate, weight_decay: 0.01, beta1, beta2, epsilon }
        );
        assert_eq!(
            read(r#"{"name": "momentum", "learning_rate": 0.5, "momentum": 0.25}"#),
            Optimizer::Momentum { learning_rate, weight_decay: 0.0, momentum: 0.25 }
        );
    }
}
