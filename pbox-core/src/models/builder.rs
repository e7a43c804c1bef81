//! A collector of the keys of a model, layer by layer, in the order of the model's forward pass.
//!
//! Shapes are those of PyTorch and MXNet: the weight of a convolution is `[out, in, height, width]`, and that of a linear
//! layer is `[out, in]`. This module must not depend on any particular network.

use crate::layout::Key;

/// The height and the width of a convolution's kernel.
pub(super) type Kernel = (u64, u64);

#[derive(Default)]
pub(super) struct Builder {
    keys: Vec<Key>,
}

impl Builder {
    pub fn finish(self) -> Vec<Key> {
        self.keys
    }

    /// Adds a tensor of any shape. The name is the full name.
    pub fn tensor(&mut self, name: impl Into<String>, shape: &[u64]) {
        self.keys.push(Key::f32(name, shape));
    }

    /// Adds a convolution without bias, for a batch normalization after it.
    pub fn conv(&mut self, name: &str, from: u64, to: u64, (height, width): Kernel) {
        self.tensor(format!("{name}.weight"), &[to, from, height, width]);
    }

    /// Adds a convolution with bias.
    pub fn conv_bias(&mut self, name: &str, from: u64, to: u64, kernel: Kernel) {
        self.conv(name, from, to, kernel);
        self.tensor(format!("{name}.bias"), &[to]);
    }

    /// Adds the trainable part of a batch normalization.
    pub fn batch_norm(&mut self, name: &str, channels: u64) {
        self.tensor(format!("{name}.weight"), &[channels]);
        self.tensor(format!("{name}.bias"), &[channels]);
    }

    /// Adds a fully connected layer with bias.
    pub fn linear(&mut self, name: &str, from: u64, to: u64) {
        self.tensor(format!("{name}.weight"), &[to, from]);
        self.tensor(format!("{name}.bias"), &[to]);
    }
}
