//! The faults of a manifest, and of the safetensors header from which it is read.
//!
//! Names come from outside and appear in logs, so they are printed quoted and escaped. This module must not depend on where
//! the bytes come from.

use super::{MAX_DIMENSIONS, MAX_HEADER_BYTES, MAX_KEYS, MAX_NAME_BYTES, MAX_TOTAL_BYTES};

/// The first fault of a list of keys, or of a safetensors header.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the message documents the variant and its fields
pub enum ManifestError {
    #[error("the manifest has no key; a job needs at least one tensor: give the model's parameters")]
    NoKeys,

    #[error(
        "the manifest has {seen} keys or more, at most {MAX_KEYS} are allowed; join small tensors into larger ones"
    )]
    TooManyKeys { seen: usize },

    #[error("key {index} has an empty name; every key needs a name that is unique in its job")]
    EmptyName { index: usize },

    #[error(
        "the name of key {index} has {seen} bytes, at most {MAX_NAME_BYTES} are allowed; shorten the name"
    )]
    NameTooLong { index: usize, seen: usize },

    #[error(
        "keys {first} and {second} are both called {name:?}; names must be unique in a job: rename one of the keys"
    )]
    DuplicateName { name: String, first: usize, second: usize },

    #[error("key {name:?} has {seen} dimensions, at most {MAX_DIMENSIONS} are allowed; flatten the tensor")]
    TooManyDimensions { name: String, seen: usize },

    #[error("key {name:?} has the shape {shape:?}, which has no elements; omit the key")]
    NoElements { name: String, shape: Vec<u64> },

    #[error("key {name:?} has the shape {shape:?}, whose size in bytes is over 2^64; the shape is wrong")]
    ShapeOverflow { name: String, shape: Vec<u64> },

    #[error(
        "key {name:?} brings the manifest over {MAX_TOTAL_BYTES} bytes, the most for one job; its shape is wrong, \
         or the model must be split over several jobs"
    )]
    TooManyBytes { name: String },

    #[error("{multiplier} of key {name:?} is {seen}; expected a finite number")]
    Multiplier { name: String, multiplier: &'static str, seen: f32 },

    #[error(
        "the length of the safetensors header is {seen} bytes, at most {MAX_HEADER_BYTES} are allowed; this is not \
         a safetensors file, or it is damaged"
    )]
    HeaderTooLarge { seen: u64 },

    #[error(
        "the safetensors header ends at byte {end}, but the file has {file_bytes} bytes; it is cut off, or not a \
         safetensors file: copy or save it again"
    )]
    HeaderPastFile { end: u64, file_bytes: u64 },

    #[error(
        "the safetensors header needs the file's first {needed} bytes, but only {seen} are there; give a complete file"
    )]
    HeaderIncomplete { needed: u64, seen: usize },

    #[error("the safetensors header is not UTF-8 after its byte {valid_up_to}; the file is damaged")]
    HeaderNotUtf8 { valid_up_to: usize },

    #[error(
        "the safetensors header is not JSON of the expected form: {reason}; the file is damaged, or its writer is \
         wrong"
    )]
    HeaderNotJson { reason: String },

    #[error("tensor {name:?} is {seen}, but keys must be F32, F16 or BF16: {next}")]
    Dtype { name: String, seen: String, next: &'static str },

    #[error(
        "tensor {name:?} has the data_offsets [{begin}, {end}], which do not ascend; the file is damaged, or its \
         writer is wrong"
    )]
    OffsetsReversed { name: String, begin: u64, end: u64 },

    #[error(
        "tensor {name:?} begins at byte {begin}, inside the previous tensor, which ends at byte {previous_end}; \
         the file is damaged, or its writer is wrong"
    )]
    OffsetsOverlap { name: String, begin: u64, previous_end: u64 },

    #[error(
        "tensor {name:?} begins at byte {begin}, but the bytes from {previous_end} on belong to no tensor; the file \
         is damaged, or its writer is wrong"
    )]
    OffsetsHole { name: String, begin: u64, previous_end: u64 },

    #[error(
        "tensor {name:?} has the shape {shape:?}, which takes {expected} bytes, but its data_offsets span {seen}; \
         the file is damaged, or its writer is wrong"
    )]
    ShapeAgainstOffsets { name: String, shape: Vec<u64>, expected: u64, seen: u64 },

    #[error(
        "the file has {seen} bytes, but its safetensors header expects {expected}; it is cut off or padded: copy or \
         save it again"
    )]
    FileLength { expected: u64, seen: u64 },
}
