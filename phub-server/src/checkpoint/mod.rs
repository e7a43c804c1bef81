//! Checkpoints: a job's weights and optimizer state in a safetensors file, and a few older files. A new file
//! replaces the previous one as a whole. In a job over several hubs each hub has its part, in a file for each
//! round.
//!
//! `format` defines a file, `write` makes it, `read` parses it and trusts nothing in it, `image` makes a file
//! in memory. `store` is the directory; `lock` and `permission` decide who may use it. `generations` are the
//! older files, `parts` and `part_name` are the files of jobs over several hubs, and `export` makes files for
//! other programs. All of them change files through `disk`. So the test `crash` can simulate, by seed, which
//! files a loss of power leaves. `docs/formats.md` has the format, `docs/decisions/0010-checkpoint-files.md`
//! the reasons.
//!
//! Called from any thread that may wait for a disk, never from a core's. Must not depend on cores, workers,
//! or on how a snapshot was made.

#[cfg(test)]
mod crash;
mod disk;
mod error;
mod export;
mod format;
mod generations;
mod image;
mod jobs;
mod lock;
mod part_name;
mod parts;
mod permission;
mod read;
mod store;
mod write;

pub use error::{CheckpointError, DecodeError, Mismatch, NotFinite, UnusableKeys};
pub use export::export;
pub use format::{check_keys, is_state};
pub use generations::{Loaded, named};
pub(crate) use image::{NoImage, image};
pub use jobs::SavedJob;
pub use parts::PartOf;
pub use permission::FileMode;
pub use read::{About, Decoded, about, decode};
pub use store::{CheckpointStore, KEEP};

/// The number of bytes that are read, written and digested at a time. They are long enough for any disk. A
/// save needs no other memory except for the snapshot and the header.
const PIECE_BYTES: usize = 4 << 20;
