//! The tensors that a hub keeps of each key: weights, the optimizer's state, and the average of weights. A new kind of
//! tensor is added in this file.
//!
//! ```text
//!   kept beside a window, chunk by chunk:  [ master weights ][ first state | second | ... ][ averages ]
//!   in a snapshot:                         [ weights        ][ first state | second | ... ][ averages ]
//! ```
//!
//! Only weights of 16 bits have master weights; with f32, the window itself has them. Except in the kernels, averages are
//! handled as one more state.

use serde::{Deserialize, Serialize};

use super::average::Decay;
use super::optimizer::Optimizer;
use crate::layout::Dtype;

/// The name of averages among the states.
const EMA: &str = "ema";

/// One of the tensors that a hub keeps for a key; each has the key's shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Tensor {
    /// The f32 master weights.
    Weights,
    /// One of the states, by its place in [`Tensors::state_names`].
    State(usize),
}

impl Tensor {
    /// Returns the tensor's index among the tensors of a chunk.
    pub fn place(self) -> usize {
        match self {
            Tensor::Weights => 0,
            Tensor::State(which) => 1 + which,
        }
    }
}

/// The tensors of each key that a snapshot has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Selection {
    /// All tensors: the state from which a job continues.
    All,
    /// One, for readers.
    One(Tensor),
}

impl Selection {
    /// Whether a tensor is selected.
    pub fn has(self, tensor: Tensor) -> bool {
        self == Selection::All || self == Selection::One(tensor)
    }
}

/// The tensors that the hub of a job keeps for a key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tensors {
    optimizer: Optimizer,
    ema: Option<f64>,
}

impl From<Optimizer> for Tensors {
    /// Returns the tensors of a job without an average.
    fn from(optimizer: Optimizer) -> Self {
        Tensors { optimizer, ema: None }
    }
}

impl Tensors {
    /// Adds an average of weights with this decay, if there is one.
    pub fn with_ema(self, ema: Option<f64>) -> Self {
        Tensors { ema, ..self }
    }

    /// Returns the optimizer to which the state belongs.
    pub fn optimizer(&self) -> &Optimizer {
        &self.optimizer
    }

    /// Returns the decay of the average, if there is one.
    pub fn ema(&self) -> Option<f64> {
        self.ema
    }

    /// Returns the decay of the average as the kernels need it.
    pub(crate) fn decay(&self) -> Option<Decay> {
        self.ema.map(Decay::new)
    }

    /// Returns the names of the values that are kept in addition to the weights, in their order: PyTorch's names, then
    /// `ema`.
    pub fn state_names(&self) -> impl Iterator<Item = &'static str> {
        let own = names_of(&self.optimizer).iter().copied();
        own.chain(self.ema.is_some().then_some(EMA))
    }

    /// Returns the number of f32 that the hub keeps for each parameter, in addition to the weights.
    pub fn state_per_element(&self) -> usize {
        self.optimizer.state_per_element() + usize::from(self.ema.is_some())
    }

    /// Returns the number of f32 that a checkpoint has for each parameter. They are the weight and the state; 0 if the hub
    /// keeps no weights.
    pub fn saved_per_element(&self) -> usize {
        if self.optimizer.keeps_weights() { 1 + self.state_per_element() } else { 0 }
    }

    /// Returns the number of f32 that the hub keeps for each element of a key of type `dtype`, in addition to the window of
    /// weights. They are the f32 master weight, if `dtype` has 16 bits, and the state.
    pub fn kept_per_element(&self, dtype: Dtype) -> usize {
        self.optimizer.master_per_element(dtype) + self.state_per_element()
    }

    /// Returns the averages of weights, if the job keeps them.
    pub fn averages(&self) -> Option<Tensor> {
        self.state_names().position(|name| name == EMA).map(Tensor::State)
    }

    /// Returns all tensors of a key, in the order of a chunk's values.
    pub fn all(&self) -> impl Iterator<Item = Tensor> + use<> {
        let saved = self.saved_per_element();
        let weights = (saved > 0).then_some(Tensor::Weights);
        weights.into_iter().chain((1..saved).map(|place| Tensor::State(place - 1)))
    }

    /// Returns the selected tensors of a key, in the order of a chunk's values.
    pub fn selected(&self, selection: Selection) -> impl Iterator<Item = Tensor> + use<> {
        self.all().filter(move |&tensor| selection.has(tensor))
    }
}

/// Returns PyTorch's names for an optimizer's state, in the order in which the kernels keep it.
fn names_of(optimizer: &Optimizer) -> &'static [&'static str] {
    match optimizer {
        Optimizer::Average | Optimizer::Sum | Optimizer::Sgd { .. } => &[],
        Optimizer::Momentum { .. } | Optimizer::Dampened { .. } | Optimizer::Nesterov { .. } => {
            &["momentum_buffer"]
        }
        Optimizer::Lars { .. } => &["momentum_buffer"],
        Optimizer::Lamb { .. } => &["exp_avg", "exp_avg_sq"],
        Optimizer::Adam { .. } | Optimizer::AdamW { .. } => &["exp_avg", "exp_avg_sq"],
        Optimizer::AmsGrad { .. } | Optimizer::AmsGradW { .. } => {
            &["exp_avg", "exp_avg_sq", "max_exp_avg_sq"]
        }
        Optimizer::Lion { .. } => &["exp_avg"],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_has_a_name() {
        for name in Optimizer::NAMES {
            let momentum = match name {
                "momentum" | "nesterov" | "lars" => r#","momentum":0.5"#,
                "dampened" => r#","momentum":0.5,"dampening":0.5"#,
                _ => "",
            };
            let rate = if matches!(name, "average" | "sum") { "" } else { r#","learning_rate":0.5"# };
            let json = format!(r#"{{"name":"{name}"{rate}{momentum}}}"#);
            let optimizer: Optimizer = serde_json::from_str(&json).unwrap();
            for tensors in [Tensors::from(optimizer), Tensors::from(optimizer).with_ema(Some(0.5))] {
                assert_eq!(tensors.state_names().count(), tensors.state_per_element(), "{name}");
            }
        }
    }

    #[test]
    fn an_average_is_the_last_state_of_any_type() {
        let optimizer = Optimizer::Momentum { learning_rate: 0.1, weight_decay: 0.0, momentum: 0.9 };
        let tensors = Tensors::from(optimizer).with_ema(Some(0.9));
        let places: Vec<usize> = tensors.all().map(Tensor::place).collect();
        assert_eq!(tensors.state_names().last(), Some("ema"));
        assert_eq!((places, tensors.saved_per_element()), (vec![0, 1, 2], 3));
        assert_eq!([Dtype::F32, Dtype::BF16].map(|dtype| tensors.kept_per_element(dtype)), [2, 3]);
    }
}
