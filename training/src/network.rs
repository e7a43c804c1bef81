//! A fully connected network with rectified hidden layers. Its passes go layer by layer: forward, loss, backward.
//!
//! The loops are plain loops over `f32`, and the order of each sum is fixed. Worker processes and the one-process run call
//! the same functions. The caller passes weights and takes gradients layer by layer, so that it can fetch and send them
//! meanwhile.

use pbox_core::{Key, KeyId};

use super::random::Random;
use super::samples::Samples;

/// The name of the random sequences of the first weights.
const WEIGHTS: u64 = 3;

/// The shape of a network: the widths of its input, of each hidden layer, and of its output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    widths: Vec<usize>,
}

impl Network {
    /// Creates a network with these widths.
    ///
    /// # Panics
    /// Panics if there are fewer than two widths.
    pub fn new(widths: impl Into<Vec<usize>>) -> Self {
        let widths = widths.into();
        assert!(widths.len() >= 2, "an input and an output");
        Network { widths }
    }

    /// Returns the number of layers with weights.
    pub fn layers(&self) -> usize {
        self.widths.len() - 1
    }

    /// Returns the key of a layer's weights, `[inputs, outputs]`. The inner loops run over outputs. Outputs do not depend
    /// on each other, so these loops vectorize without a change in the order of a sum.
    pub fn weight(layer: usize) -> KeyId {
        KeyId(2 * layer as u32)
    }

    /// Returns the key of a layer's biases.
    pub fn bias(layer: usize) -> KeyId {
        KeyId(2 * layer as u32 + 1)
    }

    /// Returns all keys, in the order of the forward pass.
    pub fn keys(&self) -> Vec<Key> {
        let layer = |layer: usize| {
            let (inputs, outputs) = self.extent(layer);
            let weight = Key::f32(format!("layer{layer}.weight"), [inputs as u64, outputs as u64]);
            let mut bias = Key::f32(format!("layer{layer}.bias"), [outputs as u64]);
            bias.wd_mult = 0.0; // as usual, because a penalty on biases does not prevent overfitting
            [weight, bias]
        };
        (0..self.layers()).flat_map(layer).collect()
    }

    /// Writes the first values of a key. Biases are 0, and weights are uniform with variance 2 / inputs. With this
    /// variance, a signal keeps its size through rectified layers (He et al. 2015, section 2.2).
    pub fn fill_weights(&self, seed: u64, key: KeyId, values: &mut [f32]) {
        let layer = key.index() / 2;
        if key == Self::bias(layer) {
            return values.fill(0.0);
        }
        let limit = (6.0 / self.extent(layer).0 as f32).sqrt();
        let mut random = Random::new(seed, &[WEIGHTS, key.0.into()]);
        values.fill_with(|| random.symmetric() * limit);
    }

    /// Returns the class that the network assigns to each sample.
    pub fn classify<'w>(&self, samples: &Samples, weights: impl Fn(KeyId) -> &'w [f32]) -> Vec<usize> {
        let mut pass = NetworkPass::new(self);
        pass.begin(samples);
        for layer in 0..self.layers() {
            pass.forward(layer, weights(Self::weight(layer)), weights(Self::bias(layer)));
        }
        let classes = self.widths[self.layers()];
        let best = |logits: &[f32]| (0..classes).max_by(|&a, &b| logits[a].total_cmp(&logits[b]));
        pass.activations[self.layers()].chunks(classes).filter_map(best).collect()
    }

    fn extent(&self, layer: usize) -> (usize, usize) {
        (self.widths[layer], self.widths[layer + 1])
    }
}

/// A mini-batch on its way through the network and back.
///
/// ```text
///   activations[0] --layer 0--> activations[1] --layer 1--> activations[2] = logits
///                    deltas[0]                   deltas[1]  <-- loss
/// ```
#[derive(Debug)]
pub struct NetworkPass<'a> {
    network: &'a Network,
    /// The batch, then each layer's output. All are stored row by row.
    activations: Vec<Vec<f32>>,
    /// The derivatives of the loss by each layer's output before rectification, row by row.
    deltas: Vec<Vec<f32>>,
}

impl<'a> NetworkPass<'a> {
    /// Creates an empty pass.
    pub fn new(network: &'a Network) -> Self {
        let layers = network.layers();
        NetworkPass { network, activations: vec![Vec::new(); layers + 1], deltas: vec![Vec::new(); layers] }
    }

    /// Returns the network.
    pub fn network(&self) -> &'a Network {
        self.network
    }

    /// Begins a batch.
    pub fn begin(&mut self, batch: &Samples) {
        self.activations[0].clear();
        self.activations[0].extend_from_slice(batch.inputs());
    }

    /// Computes a layer's output, from the output of the previous layer.
    pub fn forward(&mut self, layer: usize, weight: &[f32], bias: &[f32]) {
        let (inputs, outputs) = self.network.extent(layer);
        let (before, after) = self.activations.split_at_mut(layer + 1);
        let output = &mut after[0];
        output.clear();
        for row in before[layer].chunks(inputs) {
            let start = output.len();
            output.extend_from_slice(bias);
            let sums = &mut output[start..];
            for (x, weights) in row.iter().zip(weight.chunks(outputs)) {
                add_scaled(sums, *x, weights);
            }
            if layer + 1 < self.network.layers() {
                sums.iter_mut().for_each(|sum| *sum = sum.max(0.0));
            }
        }
    }

    /// Returns the mean cross-entropy of the softmax over the last layer's output. Afterwards the backward pass can begin.
    pub fn loss(&mut self, labels: &[usize]) -> f32 {
        let last = self.network.layers();
        let classes = self.network.widths[last];
        let share = 1.0 / labels.len() as f32;
        let delta = &mut self.deltas[last - 1];
        delta.clear();
        let mut loss = 0.0;
        for (logits, &label) in self.activations[last].chunks(classes).zip(labels) {
            // The largest logit is subtracted, because exp of a large logit is infinite.
            let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let start = delta.len();
            delta.extend(logits.iter().map(|logit| (logit - largest).exp()));
            let powers = &mut delta[start..];
            let total: f32 = powers.iter().sum();
            loss -= (powers[label] / total).max(f32::MIN_POSITIVE).ln();
            powers.iter_mut().for_each(|power| *power = *power / total * share);
            powers[label] -= share;
        }
        loss * share
    }

    /// Computes the derivatives for the previous layer from the derivatives for this layer. The first layer has no previous one.
    pub fn backward(&mut self, layer: usize, weight: &[f32]) {
        let Some(below) = layer.checked_sub(1) else { return };
        let (_, outputs) = self.network.extent(layer);
        let (before, after) = self.deltas.split_at_mut(layer);
        let delta_below = &mut before[below];
        delta_below.clear();
        for delta in after[0].chunks(outputs) {
            delta_below.extend(weight.chunks(outputs).map(|weights| dot(weights, delta)));
        }
        for (delta, &output) in delta_below.iter_mut().zip(&self.activations[layer]) {
            if output <= 0.0 {
                *delta = 0.0; // where the output is rectified, it is constant
            }
        }
    }

    /// Writes the gradient of a layer's weights.
    pub fn weight_gradient(&self, layer: usize, gradient: &mut [f32]) {
        let (inputs, outputs) = self.network.extent(layer);
        gradient.fill(0.0);
        for (row, delta) in self.activations[layer].chunks(inputs).zip(self.deltas[layer].chunks(outputs)) {
            for (x, gradients) in row.iter().zip(gradient.chunks_mut(outputs)) {
                add_scaled(gradients, *x, delta);
            }
        }
    }

    /// Writes the gradient of a layer's biases.
    pub fn bias_gradient(&self, layer: usize, gradient: &mut [f32]) {
        let (_, outputs) = self.network.extent(layer);
        gradient.fill(0.0);
        self.deltas[layer].chunks(outputs).for_each(|delta| add_scaled(gradient, 1.0, delta));
    }
}

fn add_scaled(sums: &mut [f32], scale: f32, values: &[f32]) {
    for (sum, value) in sums.iter_mut().zip(values) {
        *sum += scale * value;
    }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests;
