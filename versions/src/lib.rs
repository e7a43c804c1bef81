//! Versions of a model's weights in a directory, which engines read while a job trains.
//!
//! ```text
//!   Weights --Publisher::publish--> DIR/weight_v000001/  whole: the values
//!                                   DIR/weight_v000002/  delta: the difference of each tensor that changed, as one zstd frame each
//!                                   DIR/weight_v000003/  delta
//!   DIR --------Reader::go_to---------> Weights of any version; each tensor is compared with its checksum
//! ```
//!
//! | file | content |
//! | --- | --- |
//! | `weights.rs` | tensors in the type in which they are published |
//! | `delta.rs` | the exact difference of two tensors as a zstd frame, and its inverse |
//! | `index.rs` | the index of a version: its kind, and the places of its tensors |
//! | `shard.rs` | one safetensors file of a version |
//! | `publisher.rs` | the one program that writes a directory |
//! | `reader.rs` | the programs that read a directory |
//! | `disk.rs` | files and directories that exist completely or not at all |
//! | `work.rs` | work on many tensors, on all cores of the machine |
//!
//! The layout of the directory is that of slime, miles and SGLang's `/pull_weights`; `docs/formats.md`
//! describes the layout. This crate must not depend on hubs, jobs' protocols or the network.

#![forbid(unsafe_code)]

mod delta;
mod disk;
mod error;
mod index;
mod publisher;
mod reader;
mod shard;
#[cfg(test)]
mod tests;
mod weights;
mod work;

pub use error::VersionError;
pub use index::{Origin, VersionId};
pub use publisher::{Deltas, Published, Publisher, Rules};
pub use reader::{At, Listed, Reader, list, without_index};
pub use weights::{Elements, NewTensor, NoPrecision, NotWeights, Precision, Weights};
