//! The work of each layer, from a model's keys and the sizes of its feature maps.
//!
//! A layer is one product (a convolution or a linear layer) with the normalization and the activation after
//! it. It has one key of two or more dimensions, and the keys of one dimension that follow that key. Pooling,
//! concatenation and residual additions are left out, because they are a few percent of the traffic. This
//! module must not depend on a particular network, or a device.

use pbox_core::Key;

/// The forward pass of one layer.
#[derive(Clone, Debug)]
pub struct LayerWork {
    /// The layer's name.
    pub name: String,
    /// The keys.
    pub keys: Vec<String>,
    /// Multiply-adds for one sample.
    pub multiply_adds: f64,
    /// Elements that the product reads and writes for one sample, without weights.
    pub elements: f64,
    /// The number of weights that the product reads, once per batch, or once per step of a recurrent layer.
    pub weights: f64,
    /// Elements that the passes after the product read and write for one sample.
    pub pointwise_elements: f64,
}

/// Height and width of a layer's square input and output; 1 and 1 for a linear layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Map {
    pub from: u64,
    pub to: u64,
}

impl Map {
    /// A linear layer.
    pub const POINT: Map = Map::same(1);

    /// Creates a map with input and output of one size.
    pub const fn same(side: u64) -> Self {
        Map { from: side, to: side }
    }

    /// Creates a map whose output has another size than its input, because of a stride or missing padding.
    pub const fn new(from: u64, to: u64) -> Self {
        Map { from, to }
    }
}

/// Returns the layers of a convolutional network. `map` returns a layer's sizes by its name.
pub(super) fn convolutions(keys: &[Key], map: fn(&str) -> Map) -> Vec<LayerWork> {
    let mut layers: Vec<LayerWork> = Vec::new();
    for key in keys {
        if key.shape.len() < 2 {
            let layer = layers.last_mut().expect("the published networks begin with a convolution");
            layer.keys.push(key.name.clone());
            continue;
        }
        let name = key.name.trim_end_matches(".weight");
        let Map { from, to } = map(name);
        let (outputs, weights) = ((key.shape[0] * to * to) as f64, elements(key));
        layers.push(LayerWork {
            name: name.to_owned(),
            keys: vec![key.name.clone()],
            multiply_adds: weights * (to * to) as f64,
            elements: (key.shape[1] * from * from) as f64 + outputs,
            weights,
            pointwise_elements: ACTIVATION * outputs,
        });
    }
    for layer in &mut layers {
        // The scale and the shift of a batch normalization. Its convolution has no bias.
        if layer.keys.len() == 3 {
            layer.pointwise_elements *= (ACTIVATION + BATCH_NORM) / ACTIVATION;
        }
    }
    layers
}

/// The number of passes over a layer's output. An activation reads and writes it. A batch normalization reads
/// it for its statistics, and then reads and writes it.
pub(super) const ACTIVATION: f64 = 2.0;
const BATCH_NORM: f64 = 3.0;

pub(super) fn elements(key: &Key) -> f64 {
    key.elements().expect("a published shape is no overflow") as f64
}
