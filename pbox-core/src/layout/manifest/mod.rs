//! The manifest: the ordered list of keys that a job and all its workers agree on.
//!
//! Its functions check a list ([`check`]), find where two lists differ ([`first_difference`]), and read a list from the
//! header of a safetensors file ([`from_safetensors`]). Lists come from workers and files, so everything is checked and has
//! a limit. Any thread may call these functions. This module must not depend on files, sockets, chunks or values.

mod difference;
mod error;
mod safetensors;

pub use difference::{Difference, first_difference};
pub use error::ManifestError;
pub use safetensors::{MAX_HEADER_BYTES, from_safetensors, header_bytes};

use std::collections::HashMap;
use std::fmt;

use serde::Deserializer;
use serde::de::{Error as _, SeqAccess, Visitor};

use crate::layout::Key;

/// The limit on the keys of a manifest. Models with many experts have ten thousand to a hundred thousand tensors. A hub
/// needs 0.6 kB for each key, however small the key is.
pub const MAX_KEYS: usize = 1 << 18;
/// The limit on the bytes of a key's name.
pub const MAX_NAME_BYTES: usize = 1024;
/// The limit on the dimensions of a shape, as in PyTorch and NumPy.
pub const MAX_DIMENSIONS: usize = 64;
/// The limit on the bytes of all keys: 1 TiB. A model of 175 billion f32 parameters has 0.7 TB. A hub holds a model once
/// for the weights, and once more for each worker.
pub const MAX_TOTAL_BYTES: u64 = 1 << 40;

/// Checks that `keys` can be a job's manifest, and returns the first fault. A manifest has 1 to [`MAX_KEYS`] keys, with
/// unique names of 1 to [`MAX_NAME_BYTES`] bytes. Shapes have at least one element and do not overflow, multipliers are
/// finite, and all keys together have at most [`MAX_TOTAL_BYTES`] bytes.
pub fn check(keys: &[Key]) -> Result<(), ManifestError> {
    if keys.is_empty() {
        return Err(ManifestError::NoKeys);
    }
    if keys.len() > MAX_KEYS {
        return Err(ManifestError::TooManyKeys { seen: keys.len() });
    }
    let mut first_use = HashMap::with_capacity(keys.len());
    let mut total: u64 = 0;
    for (index, key) in keys.iter().enumerate() {
        check_name(index, key)?;
        if let Some(first) = first_use.insert(key.name.as_str(), index) {
            return Err(ManifestError::DuplicateName { name: key.name.clone(), first, second: index });
        }
        check_multipliers(key)?;
        total = match total.checked_add(checked_bytes(key)?) {
            Some(total) if total <= MAX_TOTAL_BYTES => total,
            _ => return Err(ManifestError::TooManyBytes { name: key.name.clone() }),
        };
    }
    Ok(())
}

/// Reads a list of keys, but no more keys than a manifest may have.
pub(crate) fn read<'de, D: Deserializer<'de>>(list: D) -> Result<Vec<Key>, D::Error> {
    struct Keys;
    impl<'de> Visitor<'de> for Keys {
        type Value = Vec<Key>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of keys")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<Key>, A::Error> {
            let mut keys = Vec::new();
            while let Some(key) = list.next_element()? {
                if keys.len() == MAX_KEYS {
                    return Err(A::Error::custom(ManifestError::TooManyKeys { seen: MAX_KEYS + 1 }));
                }
                keys.push(key);
            }
            Ok(keys)
        }
    }
    list.deserialize_seq(Keys)
}

fn check_name(index: usize, key: &Key) -> Result<(), ManifestError> {
    match key.name.len() {
        0 => Err(ManifestError::EmptyName { index }),
        1..=MAX_NAME_BYTES => Ok(()),
        seen => Err(ManifestError::NameTooLong { index, seen }),
    }
}

fn check_multipliers(key: &Key) -> Result<(), ManifestError> {
    for (multiplier, seen) in [("lr_mult", key.lr_mult), ("wd_mult", key.wd_mult)] {
        if !seen.is_finite() {
            return Err(ManifestError::Multiplier { name: key.name.clone(), multiplier, seen });
        }
    }
    Ok(())
}

/// Returns the size of a key in bytes, if its shape is valid.
fn checked_bytes(key: &Key) -> Result<u64, ManifestError> {
    if key.shape.len() > MAX_DIMENSIONS {
        return Err(ManifestError::TooManyDimensions { name: key.name.clone(), seen: key.shape.len() });
    }
    // This check comes before the product, because a zero would hide an overflow of the other extents.
    if key.shape.contains(&0) {
        return Err(ManifestError::NoElements { name: key.name.clone(), shape: key.shape.clone() });
    }
    key.bytes()
        .ok_or_else(|| ManifestError::ShapeOverflow { name: key.name.clone(), shape: key.shape.clone() })
}

#[cfg(test)]
mod tests;
