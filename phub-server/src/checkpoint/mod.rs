//! Checkpoints: a job's weights and optimizer state in a safetensors file, and a few older files. A new file replaces
//! the previous file as a whole. In a job over several hubs each hub has its part, in a file for each round.
//!
//! The crate `checkpoint_file` defines the bytes of a file. `write` makes a file, and `image` makes a file in memory.
//! `store` is the directory; `lock` and `permission` decide who may use it. `generations` are the older files,
//! `parts` and `part_name` are the files of jobs over several hubs, and `export` makes files for other programs. All
//! of them change files through `disk`. So the test `crash` can simulate, by seed, which files a loss of power
//! leaves. `docs/formats.md` has the format, `docs/decisions/0010-checkpoint-files.md` the reasons.
//!
//! Called from any thread that may wait for a disk, never from a core's thread. Must not depend on cores, workers,
//! or on how a snapshot was made.

#[cfg(test)]
mod crash;
mod disk;
mod error;
mod export;
mod generations;
mod image;
mod jobs;
mod lock;
mod part_name;
mod parts;
mod permission;
mod store;
mod write;

pub use error::{CheckpointError, NotFinite};
pub use export::export;
pub use generations::{Loaded, named};
pub(crate) use image::Image;
pub use jobs::SavedJob;
pub use parts::PartOf;
pub use permission::FileMode;
pub use store::{CheckpointStore, KEEP};
