//! The manifest: the ordered list of keys that a job and all its workers agree on.
//!
//! Checks a list ([`check`]), finds where two lists differ ([`first_difference`]), and reads a list from the header
//! of a safetensors file ([`from_safetensors`]). Lists come from workers and files, so everything is checked and
//! bounded. Plain functions that any thread may call. Must not know files, sockets, chunks or values.

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

/// The most keys of a manifest. Models of many experts have some ten thousand to a hundred thousand tensors, and a hub needs 0.6 kB
/// for each, however small it is.
pub const MAX_KEYS: usize = 1 << 18;
/// The most bytes of a key's name.
pub const MAX_NAME_BYTES: usize = 1024;
/// The most dimensions of a shape, as in PyTorch and NumPy.
pub const MAX_DIMENSIONS: usize = 64;
/// The most bytes of all keys: 1 TiB. 175 billion f32 parameters are 0.7 TB, and a hub holds the model once for the
/// weights and once more for each worker.
pub const MAX_TOTAL_BYTES: u64 = 1 << 40;

/// Checks that `keys` can be a job's manifest: 1 to [`MAX_KEYS`] keys with unique names of 1 to [`MAX_NAME_BYTES`]
/// bytes, shapes of at least one element that do not overflow, finite multipliers, and at most [`MAX_TOTAL_BYTES`]
/// bytes in all. The error is the first fault.
///
/// A scalar (a shape without dimensions) is valid and has one element.
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

/// Reads a list of keys, and no more of it than a manifest has.
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

/// Returns the size of a key, if its shape is valid.
fn checked_bytes(key: &Key) -> Result<u64, ManifestError> {
    if key.shape.len() > MAX_DIMENSIONS {
        return Err(ManifestError::TooManyDimensions { name: key.name.clone(), seen: key.shape.len() });
    }
    // Checked before the product, because a zero would hide an overflow of the other extents.
    if key.shape.contains(&0) {
        return Err(ManifestError::NoElements { name: key.name.clone(), shape: key.shape.clone() });
    }
    key.bytes()
        .ok_or_else(|| ManifestError::ShapeOverflow { name: key.name.clone(), shape: key.shape.clone() })
}

#[cfg(test)]
mod tests;
