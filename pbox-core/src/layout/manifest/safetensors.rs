//! Keys from the header of a safetensors file.
//!
//! ```text
//!   byte 0        8                      8 + n                        end of file
//!   | n, u64 LE   | JSON, n bytes        | the tensors' bytes         |
//!                   name -> dtype, shape, data_offsets from 8 + n on
//! ```
//!
//! Only the element types of the `safetensors` crate are used here. The crate's own reader needs the whole file in
//! memory. It keeps the last of two tensors with the same name, and does not name the fault of an offset. Both readers
//! accept the same files, and the tests compare the readers.
//!
//! The header comes from outside. Every field is checked, and memory stays a small multiple of the header's size. This module
//! must not depend on files: the caller reads the bytes.

use std::fmt;

use ::safetensors::Dtype as FileDtype;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

use super::{MAX_DIMENSIONS, MAX_KEYS, ManifestError, check};
use crate::layout::{Dtype, Key};

/// The limit on the length of a header in the safetensors format, in bytes.
pub const MAX_HEADER_BYTES: u64 = 100_000_000;

const PREFIX_BYTES: u64 = 8;
/// The limit on the part of the parser's message that an error repeats, in characters.
const ECHOED_CHARS: usize = 400;

/// Returns how many bytes from the start of the file [`from_safetensors`] needs: the length prefix, and the
/// header. `file_bytes` is the length of the whole file.
pub fn header_bytes(first8: [u8; 8], file_bytes: u64) -> Result<u64, ManifestError> {
    let seen = u64::from_le_bytes(first8);
    if seen > MAX_HEADER_BYTES {
        return Err(ManifestError::HeaderTooLarge { seen });
    }
    let end = PREFIX_BYTES + seen;
    if end > file_bytes {
        return Err(ManifestError::HeaderPastFile { end, file_bytes });
    }
    Ok(end)
}

/// Returns the tensors of a safetensors file as keys with multipliers of 1, in the order of their bytes in the file. Their
/// types must be F32, F16 or BF16. `header` is the start of the file, with at least [`header_bytes`] bytes; later bytes are
/// not read. `file_bytes` is the length of the whole file.
///
/// Every tensor of the file becomes a key, so the file must have the trained parameters but no running statistics. The
/// safetensors library writes tensors of one type in the order of their names. If the order of the forward pass matters
/// (P3), sort the keys afterwards.
pub fn from_safetensors(header: &[u8], file_bytes: u64) -> Result<Vec<Key>, ManifestError> {
    let Some(first8) = header.first_chunk() else {
        return Err(ManifestError::HeaderIncomplete { needed: PREFIX_BYTES, seen: header.len() });
    };
    let end = header_bytes(*first8, file_bytes)?;
    let json = usize::try_from(end).ok().and_then(|end| header.get(first8.len()..end));
    let json = json.ok_or(ManifestError::HeaderIncomplete { needed: end, seen: header.len() })?;
    let json = std::str::from_utf8(json)
        .map_err(|error| ManifestError::HeaderNotUtf8 { valid_up_to: error.valid_up_to() })?;
    let Header(mut tensors) = serde_json::from_str(json).map_err(not_json)?;
    tensors.sort_by_key(|(_, tensor)| tensor.data_offsets);

    let layout: Vec<_> = tensors.iter().map(|(_, tensor)| (tensor.dtype, tensor.data_offsets)).collect();
    let keys: Vec<_> = tensors
        .into_iter()
        .map(|(name, tensor)| Key::new(key_dtype(tensor.dtype).unwrap_or(Dtype::F32), name, tensor.shape.0))
        .collect();
    check(&keys)?;
    for (key, &(dtype, _)) in keys.iter().zip(&layout) {
        if key_dtype(dtype).is_none() {
            let (name, seen) = (key.name.clone(), dtype.to_string());
            return Err(ManifestError::Dtype { name, seen, next: next_step(dtype) });
        }
    }
    let data_bytes = check_offsets(&keys, layout.iter().map(|&(_, offsets)| offsets))?;
    let expected = end.saturating_add(data_bytes);
    if expected != file_bytes {
        return Err(ManifestError::FileLength { expected, seen: file_bytes });
    }
    Ok(keys)
}

/// Checks that each tensor begins at the end of the previous tensor, and has the length of its shape. Returns the end
/// of the last tensor.
fn check_offsets(keys: &[Key], offsets: impl Iterator<Item = (u64, u64)>) -> Result<u64, ManifestError> {
    let mut previous_end = 0;
    for (key, (begin, end)) in keys.iter().zip(offsets) {
        let name = || key.name.clone();
        if end < begin {
            return Err(ManifestError::OffsetsReversed { name: name(), begin, end });
        }
        if begin < previous_end {
            return Err(ManifestError::OffsetsOverlap { name: name(), begin, previous_end });
        }
        if begin > previous_end {
            return Err(ManifestError::OffsetsHole { name: name(), begin, previous_end });
        }
        if key.bytes() != Some(end - begin) {
            let (shape, expected) = (key.shape.clone(), key.bytes().unwrap_or(u64::MAX));
            return Err(ManifestError::ShapeAgainstOffsets {
                name: name(),
                shape,
                expected,
                seen: end - begin,
            });
        }
        previous_end = end;
    }
    Ok(previous_end)
}

/// Returns the key type for a type of the file, if keys can have it.
fn key_dtype(dtype: FileDtype) -> Option<Dtype> {
    match dtype {
        FileDtype::F32 => Some(Dtype::F32),
        FileDtype::F16 => Some(Dtype::F16),
        FileDtype::BF16 => Some(Dtype::BF16),
        _ => None,
    }
}

fn next_step(dtype: FileDtype) -> &'static str {
    match dtype {
        FileDtype::F64 => "convert the tensor to F32 and save the file again",
        _ => {
            "the hub cannot sum this type; save the file again without the tensor, or with the tensor as F32"
        }
    }
}

/// The tensors of a header, in its order. A name that is repeated in the header is in this list twice.
struct Header(Vec<(String, Tensor)>);

#[derive(Deserialize)]
struct Tensor {
    dtype: FileDtype,
    shape: Shape,
    data_offsets: (u64, u64),
}

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(HeaderVisitor)
    }
}

struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = Header;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
        let mut tensors = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            if name == "__metadata__" {
                map.next_value::<Metadata>()?;
                continue;
            }
            if tensors.len() == MAX_KEYS {
                return Err(A::Error::custom(format_args!("more than {MAX_KEYS} tensors")));
            }
            let tensor = map.next_value().map_err(|error| with_name(&name, error))?;
            tensors.push((name, tensor));
        }
        Ok(Header(tensors))
    }
}

/// Adds the tensor's name to an error of the parser: line and column do not help in a file without line breaks.
fn with_name<E: serde::de::Error>(name: &str, error: E) -> E {
    let shown: String = name.chars().take(ECHOED_CHARS / 4).collect();
    E::custom(format_args!("tensor {shown:?}: {error}"))
}

/// Returns the parser's message, shortened. The message may quote a string of the file, of any length and content.
fn not_json(error: serde_json::Error) -> ManifestError {
    let message = error.to_string();
    let reason = message.chars().take(ECHOED_CHARS).map(|c| if c.is_control() { ' ' } else { c });
    ManifestError::HeaderNotJson { reason: reason.collect() }
}

/// The extents of a tensor. The parser limits their number, because `[1,1,1,...]` would take four times its own length as
/// memory.
struct Shape(Vec<u64>);

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Extents;
        impl<'de> Visitor<'de> for Extents {
            type Value = Shape;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a shape of at most {MAX_DIMENSIONS} dimensions")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Shape, A::Error> {
                let mut extents = Vec::new();
                while let Some(extent) = seq.next_element()? {
                    if extents.len() == MAX_DIMENSIONS {
                        return Err(A::Error::invalid_length(MAX_DIMENSIONS + 1, &self));
                    }
                    extents.push(extent);
                }
                Ok(Shape(extents))
            }
        }
        deserializer.deserialize_seq(Extents)
    }
}

/// The free text of the file: an object of strings, which is checked and dropped.
struct Metadata;

impl<'de> Deserialize<'de> for Metadata {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Strings;
        impl<'de> Visitor<'de> for Strings {
            type Value = Metadata;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("__metadata__ as an object of strings")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Metadata, A::Error> {
                while map.next_entry::<String, String>()?.is_some() {}
                Ok(Metadata)
            }
        }
        deserializer.deserialize_map(Strings)
    }
}
