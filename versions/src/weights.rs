//! Weights in the type in which they are published: named tensors, as little-endian bytes.
//!
//! Plain data.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::str::FromStr;

use half::{bf16, f16};
use safetensors::Dtype;

use crate::delta::checksum;
use crate::disk;
use crate::error::VersionError;
use crate::shard::{self, Stored};
use crate::work::on_all_cores;

/// The element type in which weights are published.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// 32 bits, exactly the hub's values.
    #[default]
    F32,
    /// bfloat16: the number nearest to each value, ties to even.
    Bf16,
    /// IEEE 754 half precision: the number nearest to each value, ties to even.
    F16,
}

/// An error: a text that names no [`Precision`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("type {seen:?}: expected f32, bf16 or f16")]
pub struct NoPrecision {
    /// The text.
    pub seen: String,
}

impl FromStr for Precision {
    type Err = NoPrecision;

    fn from_str(text: &str) -> Result<Self, NoPrecision> {
        let named = Self::NAMED.into_iter().find(|(name, _)| *name == text);
        named.map(|(_, precision)| precision).ok_or_else(|| NoPrecision { seen: text.to_owned() })
    }
}

impl Precision {
    /// All precisions with their names.
    pub const NAMED: [(&str, Precision); 3] =
        [("f32", Precision::F32), ("bf16", Precision::Bf16), ("f16", Precision::F16)];

    /// Returns the precision's name.
    pub fn name(self) -> &'static str {
        Self::NAMED.into_iter().find(|(_, precision)| *precision == self).map_or("", |(name, _)| name)
    }

    pub(crate) fn dtype(self) -> Dtype {
        match self {
            Precision::F32 => Dtype::F32,
            Precision::Bf16 => Dtype::BF16,
            Precision::F16 => Dtype::F16,
        }
    }

    fn of(dtype: Dtype) -> Option<Self> {
        [Precision::F32, Precision::Bf16, Precision::F16]
            .into_iter()
            .find(|precision| precision.dtype() == dtype)
    }

    /// Returns the lowest number that this precision rounds to infinity.
    fn infinite_from(self) -> f32 {
        match self {
            Precision::F32 => f32::INFINITY,
            Precision::Bf16 => f32::from_bits(0x7f7f_8000),
            Precision::F16 => 65_520.0,
        }
    }

    /// Returns the first finite value that this precision rounds to infinity.
    fn beyond(self, values: &[f32]) -> Option<f32> {
        if self == Precision::F32 {
            return None;
        }
        let is_beyond = |value: f32| value.is_finite() && value.abs() >= self.infinite_from();
        // Without an early end, the compiler uses vector instructions.
        let has_one = |values: &&[f32]| values.iter().fold(false, |any, &value| any | is_beyond(value));
        let (blocks, last) = values.as_chunks::<1024>();
        let found = blocks.iter().map(|block| &block[..]).chain([last]).find(has_one)?;
        found.iter().copied().find(|&value| is_beyond(value))
    }

    /// Returns the length of one element in bytes.
    fn bytes(self) -> usize {
        self.dtype().bitsize() / 8
    }

    /// Writes values in this precision.
    fn write(self, values: &[f32], to: &mut [u8]) {
        match self {
            Precision::F32 => write_by(values, to, f32::to_le_bytes),
            Precision::Bf16 => write_by(values, to, |value| bf16::from_f32(value).to_le_bytes()),
            Precision::F16 => write_by(values, to, |value| f16::from_f32(value).to_le_bytes()),
        }
    }
}

/// Writes the bytes of values. (`flat_map` and `collect` took half of the time of a reader.)
fn write_by<const N: usize>(values: &[f32], to: &mut [u8], bytes_of: impl Fn(f32) -> [u8; N]) {
    for (bytes, &value) in to.as_chunks_mut().0.iter_mut().zip(values) {
        *bytes = bytes_of(value);
    }
}

/// Values of a tensor, row by row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Values<'a> {
    /// Values that are rounded to the tensor's precision.
    F32(&'a [f32]),
    /// Elements that have the tensor's precision already, little endian.
    Rounded(&'a [u8]),
}

impl<'a> Values<'a> {
    /// Returns the number of the values in a tensor of this precision.
    pub fn count(&self, precision: Precision) -> usize {
        match self {
            Values::F32(values) => values.len(),
            Values::Rounded(bytes) => bytes.len() / precision.bytes(),
        }
    }

    /// Splits the values: returns the first `count` values, and the rest.
    ///
    /// # Panics
    /// Panics if there are fewer values.
    pub fn split_at(&self, count: usize, precision: Precision) -> (Self, Self) {
        match self {
            Values::F32(values) => {
                let (first, others) = values.split_at(count);
                (Values::F32(first), Values::F32(others))
            }
            Values::Rounded(bytes) => {
                let (first, others) = bytes.split_at(count * precision.bytes());
                (Values::Rounded(first), Values::Rounded(others))
            }
        }
    }
}

/// A tensor to add to a model's weights.
#[derive(Clone, Debug)]
pub struct NewTensor<'a> {
    /// The tensor's name.
    pub name: &'a str,
    /// The tensor's shape.
    pub shape: Vec<usize>,
    /// The tensor's values, in pieces.
    pub pieces: Vec<Values<'a>>,
    /// The tensor's precision.
    pub precision: Precision,
}

impl NewTensor<'_> {
    /// Rounds the values.
    fn tensor(&self) -> Result<Tensor, NotWeights> {
        let NewTensor { name, ref shape, ref pieces, precision } = *self;
        let values = pieces.iter().map(|piece| piece.count(precision)).sum();
        if shape.iter().try_fold(1usize, |all, &of| all.checked_mul(of)) != Some(values) {
            return Err(NotWeights::Shape { name: name.to_owned(), shape: shape.clone(), values });
        }
        let mut bytes = vec![0; values * precision.bytes()];
        let mut rest = &mut bytes[..];
        for piece in pieces {
            let (to, others) = rest.split_at_mut(piece.count(precision) * precision.bytes());
            rest = others;
            match piece {
                Values::F32(values) => {
                    if let Some(value) = precision.beyond(values) {
                        let dtype = precision.name();
                        return Err(NotWeights::Range { name: name.to_owned(), value, dtype });
                    }
                    precision.write(values, to);
                }
                Values::Rounded(bytes) => to.copy_from_slice(bytes),
            }
        }
        Ok(Tensor { dtype: precision.dtype(), shape: shape.clone(), bytes })
    }
}

/// One tensor of a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tensor {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

/// A model's weights, by name.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Weights(pub(crate) BTreeMap<String, Tensor>);

/// An error: a model cannot have this tensor.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[allow(missing_docs)] // each variant is its message; the message prints the fields
pub enum NotWeights {
    #[error("tensor {name:?} has {values} values, which do not fit its shape {shape:?}")]
    Shape { name: String, shape: Vec<usize>, values: usize },

    #[error(
        "tensor {name:?} has the value {value:e}, which {dtype} rounds to infinity; choose another element type for this tensor"
    )]
    Range { name: String, value: f32, dtype: &'static str },

    #[error("tensor {name:?} occurs twice")]
    Twice { name: String },

    #[error("a tensor cannot have the name {name:?}: safetensors files use this name themselves")]
    Reserved { name: String },
}

impl Weights {
    /// Rounds tensors, on all cores, and puts them together.
    ///
    /// # Errors
    /// Returns the index of the tensor, and an error, if its number of values does not match its shape, if its name is taken, or
    /// if a finite value would become infinite.
    pub fn of(tensors: &[NewTensor<'_>]) -> Result<Self, (usize, NotWeights)> {
        let mut weights = Weights::default();
        for (at, tensor) in on_all_cores(tensors, NewTensor::tensor).into_iter().enumerate() {
            let name = tensors[at].name.to_owned();
            let added = tensor.and_then(|tensor| weights.insert(name, tensor));
            added.map_err(|error| (at, error))?;
        }
        Ok(weights)
    }

    /// Rounds a tensor, and adds it.
    ///
    /// # Errors
    /// Returns the errors of [`of`](Self::of).
    pub fn add(
        &mut self,
        name: &str,
        shape: Vec<usize>,
        values: &[f32],
        precision: Precision,
    ) -> Result<(), NotWeights> {
        let pieces = vec![Values::F32(values)];
        self.insert(name.to_owned(), NewTensor { name, shape, pieces, precision }.tensor()?)
    }

    fn insert(&mut self, name: String, tensor: Tensor) -> Result<(), NotWeights> {
        if name == "__metadata__" {
            return Err(NotWeights::Reserved { name });
        }
        if self.0.contains_key(&name) {
            return Err(NotWeights::Twice { name });
        }
        self.0.insert(name, tensor);
        Ok(())
    }

    /// Writes the weights to a new safetensors file. The file exists completely or not at all.
    ///
    /// # Errors
    /// Returns an error if the file exists, or if it cannot be written.
    pub fn save(&self, to: &Path) -> Result<(), VersionError> {
        disk::write_new(to, |out| shard::write(out, true, &self.stored(&self.checksums())))
    }

    /// Returns the checksum of each tensor.
    pub(crate) fn checksums(&self) -> Vec<String> {
        let tensors: Vec<&Tensor> = self.0.values().collect();
        on_all_cores(&tensors, |tensor| checksum(&tensor.bytes))
    }

    /// Returns a digest of all tensors, with their names, types and shapes.
    pub fn digest(&self) -> String {
        self.digest_of(&self.checksums())
    }

    /// Returns the digest of weights with these checksums.
    pub(crate) fn digest_of(&self, checksums: &[String]) -> String {
        let all = self.0.iter().zip(checksums);
        let lines = all.map(|((name, tensor), checksum)| {
            format!("{name:?} {:?} {:?} {checksum}\n", tensor.dtype, tensor.shape)
        });
        checksum(lines.collect::<String>().as_bytes())
    }

    /// Returns the tensors in the form of a whole version.
    pub(crate) fn stored<'a>(&'a self, checksums: &'a [String]) -> Vec<Stored<'a>> {
        let tensors = self.0.iter().zip(checksums);
        tensors
            .map(|((name, Tensor { dtype, shape, bytes }), checksum)| Stored {
                name,
                dtype: *dtype,
                shape: shape.clone(),
                bytes,
                checksum,
            })
            .collect()
    }

    /// Returns the number of tensors.
    pub fn tensors(&self) -> usize {
        self.0.len()
    }

    /// Returns the length of all values, in bytes.
    pub fn bytes(&self) -> u64 {
        self.0.values().map(|tensor| tensor.bytes.len() as u64).sum()
    }

    /// Returns the bytes of a tensor: little endian, row by row.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.0.get(name).map(|tensor| tensor.bytes.as_slice())
    }

    /// Returns the element type and the shape of a tensor.
    pub fn form(&self, name: &str) -> Option<(Precision, &[usize])> {
        let tensor = self.0.get(name)?;
        Some((Precision::of(tensor.dtype)?, &tensor.shape))
    }

    /// Returns the names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Whether these weights and `other` have the same tensors, with the same types and shapes. Then a delta
    /// can lead from one to the other.
    pub(crate) fn is_like(&self, other: &Weights) -> bool {
        let form = |(name, tensor): (&String, &Tensor)| (name.clone(), tensor.dtype, tensor.shape.clone());
        self.0.iter().map(form).eq(other.0.iter().map(form))
    }
}

impl fmt::Debug for Weights {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Weights({} tensors, {} bytes)", self.tensors(), self.bytes())
    }
}
