//! Keys: the tensors of a model.
//!
//! Plain data. This module must not depend on chunks, windows or rounds.

use serde::{Deserialize, Serialize};

/// The number of a key in its job's manifest. Keys are numbered in the order of the forward pass. So a key with a lower number
/// is needed earlier (P3, section 1.1: initial layers get the higher priority).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct KeyId(pub u32);

impl KeyId {
    /// Returns the id as an index into per-key tables.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The element type of a key in the windows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// IEEE 754 single precision, little endian.
    #[default]
    F32,
    /// IEEE 754 half precision, little endian: 5 bits of exponent, 10 of fraction.
    F16,
    /// The upper half of an f32, little endian: 8 bits of exponent, 7 of fraction.
    BF16,
}

impl Dtype {
    /// All element types.
    pub const ALL: [Dtype; 3] = [Dtype::F32, Dtype::F16, Dtype::BF16];

    /// Returns the size of one element.
    pub fn bytes(self) -> usize {
        match self {
            Dtype::F32 => 4,
            Dtype::F16 | Dtype::BF16 => 2,
        }
    }

    /// Whether this type rounds the value to a finite number.
    pub fn can_hold(self, value: f32) -> bool {
        match self {
            Dtype::F32 => value.is_finite(),
            Dtype::F16 => half::f16::from_f32(value).is_finite(),
            Dtype::BF16 => half::bf16::from_f32(value).is_finite(),
        }
    }

    /// Returns the name on the control port.
    pub fn name(self) -> &'static str {
        match self {
            Dtype::F32 => "f32",
            Dtype::F16 => "f16",
            Dtype::BF16 => "bf16",
        }
    }
}

/// One tensor of the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Key {
    /// The name, unique in its job, e.g. `layer1.0.conv1.weight`.
    pub name: String,
    /// The extent of each dimension; empty for a scalar.
    pub shape: Vec<u64>,
    /// The element type.
    pub dtype: Dtype,
    /// The factor by which the job's learning rate is multiplied for this key.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub lr_mult: f32,
    /// The factor by which the job's weight decay is multiplied for this key.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub wd_mult: f32,
}

fn one() -> f32 {
    1.0
}

fn is_one(value: &f32) -> bool {
    *value == 1.0
}

impl Key {
    /// Returns an f32 key with multipliers of 1.
    pub fn f32(name: impl Into<String>, shape: impl Into<Vec<u64>>) -> Self {
        Key::new(Dtype::F32, name, shape)
    }

    /// Creates a key with multipliers of 1.
    pub fn new(dtype: Dtype, name: impl Into<String>, shape: impl Into<Vec<u64>>) -> Self {
        Key { name: name.into(), shape: shape.into(), dtype, lr_mult: 1.0, wd_mult: 1.0 }
    }

    /// Returns the number of elements; `None` if the product of the shape overflows.
    pub fn elements(&self) -> Option<u64> {
        self.shape.iter().try_fold(1u64, |product, &extent| product.checked_mul(extent))
    }

    /// Returns the size in bytes; `None` on overflow.
    pub fn bytes(&self) -> Option<u64> {
        self.elements()?.checked_mul(self.dtype.bytes() as u64)
    }
}
