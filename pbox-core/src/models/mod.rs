//! Built-in models: the parameter tensors of the networks that the papers measure.
//!
//! The probe without computation and the figures use these models. Names, shapes and order are those of the published
//! networks, so that the sizes of keys are real. Only trainable parameters are keys; the running statistics of a batch
//! normalization are not. The keys are in the order of the forward pass, which is also the order of P3's priorities.
//!
//! Plain data. This module must not depend on chunks, rounds or values.

mod builder;
mod googlenet;
mod inception3;
mod resnet50;
mod sockeye;
mod unknown;
mod vgg;

pub use unknown::UnknownModel;

use crate::layout::Key;

/// One built-in model.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// The name, as in [`model`].
    pub name: &'static str,
    /// The paper of the network, and the variant.
    pub paper: &'static str,
    /// The trainable parameters, in the order of the forward pass.
    pub keys: Vec<Key>,
}

impl Model {
    /// Returns the number of parameters of all keys.
    pub fn elements(&self) -> u64 {
        self.keys.iter().filter_map(Key::elements).sum()
    }

    /// Returns the size of all keys in bytes. A worker pushes this many bytes in each round, and gets as many back.
    pub fn bytes(&self) -> u64 {
        self.keys.iter().filter_map(Key::bytes).sum()
    }
}

/// The names of all built-in models.
pub const MODELS: &[&str] = &NAMES;

/// Returns the model with this name, e.g. `resnet50`.
pub fn model(name: &str) -> Result<Model, UnknownModel> {
    let entry = CATALOG.iter().find(|entry| entry.name == name).ok_or_else(|| UnknownModel::new(name))?;
    Ok(Model { name: entry.name, paper: entry.paper, keys: (entry.keys)() })
}

struct Entry {
    name: &'static str,
    paper: &'static str,
    keys: fn() -> Vec<Key>,
}

const CATALOG: [Entry; 7] = [
    Entry { name: "resnet50", paper: resnet50::PAPER, keys: resnet50::keys },
    Entry { name: "vgg16", paper: vgg::PAPER_16, keys: vgg::keys_16 },
    Entry { name: "vgg19", paper: vgg::PAPER_19, keys: vgg::keys_19 },
    Entry { name: "vgg19-22k", paper: vgg::PAPER_19_22K, keys: vgg::keys_19_22k },
    Entry { name: "inception3", paper: inception3::PAPER, keys: inception3::keys },
    Entry { name: "googlenet", paper: googlenet::PAPER, keys: googlenet::keys },
    Entry { name: "sockeye", paper: sockeye::PAPER, keys: sockeye::keys },
];

const NAMES: [&str; CATALOG.len()] = {
    let mut names = [""; CATALOG.len()];
    let mut i = 0;
    while i < names.len() {
        names[i] = CATALOG[i].name;
        i += 1;
    }
    names
};

#[cfg(test)]
mod tests;
