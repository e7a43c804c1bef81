//! Checkpoints: a job's weights and optimizer state in a safetensors file, which is replaced as a whole; or each hub's
//! part of a job over several hubs, a file for each round.
//!
//! `format` says what is in a file, `write` makes it, `read` takes it apart and believes nothing of it, `image` sends it,
//! `store` is the directory, `parts` and `part_name` are the files of several hubs. `docs/formats.md` has the format for
//! other programs, `docs/decisions/0010-checkpoint-files.md` the reasons.
//!
//! Called from whatever thread may wait for a disk, never from a core's. Must not know cores, workers,
//! or how a snapshot came to be.

mod error;
mod format;
mod image;
mod part_name;
mod parts;
mod read;
mod store;
mod write;

pub use error::{CheckpointError, DecodeError, Mismatch, UnusableKeys};
pub use format::check_keys;
pub use image::Image;
pub use parts::PartOf;
pub use read::{Decoded, decode};
pub use store::CheckpointStore;

/// Bytes that are read, written and digested at a time: long enough for any disk, and all the memory
/// that a save needs beside the snapshot and the header.
const PIECE_BYTES: usize = 4 << 20;
