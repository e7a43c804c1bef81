//! Errors of checkpoints, their files and their directory.
//!
//! Each message names the file or directory, and the next step. Must not depend on how files are read or written.

use std::io;
use std::path::PathBuf;

use checkpoint_file::{DecodeError, Mismatch, UnusableKeys};
use fabric::MapError;
use pbox_core::control::InvalidJobName;
use pbox_core::{Round, Share};
use rustix::io::Errno;

/// The advice for a file that cannot be used.
const ANEW: &str = "to start the job from zero, move the file away, or give the job another name";

/// A checkpoint that cannot be saved or loaded, or a directory that cannot hold checkpoints.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // each variant is its message; the message prints the fields
pub enum CheckpointError {
    #[error("checkpoint directory {dir}: {doing}: {error}; {}", advice(error))]
    Directory { dir: PathBuf, doing: &'static str, error: io::Error },

    #[error(
        "checkpoint directory {dir} is in use by another hub ({}); stop that hub, or give this hub another directory",
        holder.map_or("of another machine or container".into(), |pid| format!("process {pid} has it locked"))
    )]
    InUse { dir: PathBuf, holder: Option<u32> },

    #[error(transparent)]
    JobName(#[from] InvalidJobName),

    #[error("job {job:?} cannot have checkpoints: {error}")]
    Keys { job: String, error: UnusableKeys },

    #[error(
        "cannot save the checkpoint {path}: {doing}: {error} ({needed_bytes} bytes needed, {} free there); {kept}; {}",
        free_bytes.map_or("unknown".into(), |bytes| bytes.to_string()),
        advice(error)
    )]
    Save {
        path: PathBuf,
        doing: &'static str,
        needed_bytes: u64,
        free_bytes: Option<u64>,
        error: io::Error,
        /// The fate of the previous checkpoint: kept or replaced.
        kept: &'static str,
    },

    #[error(
        "the state before round {} has {found}; it is saved in {aside}, from which no job continues, and {kept}; look at the learning \
         rate and at the gradients",
        round.0
    )]
    NotFinite {
        round: Round,
        found: NotFinite,
        aside: PathBuf,
        /// The fate of the previous checkpoint: kept or replaced.
        kept: &'static str,
    },

    #[error("the snapshot of job {job:?} has not all tensors that a checkpoint needs; report this")]
    NotAll { job: String },

    #[error("job {job:?}: there is no memory for the state of its checkpoint: {error}")]
    Memory { job: String, error: MapError },

    #[error("cannot read the checkpoint {path}: {error}; {}", advice(error))]
    Read { path: PathBuf, error: io::Error },

    #[error("the checkpoint {path} is not a regular file; {ANEW}")]
    NotAFile { path: PathBuf },

    #[error("the checkpoint {path} cannot be used: {error}; {ANEW}")]
    Decode { path: PathBuf, error: DecodeError },

    #[error("the checkpoint {path} is of another job: {error}; {ANEW}")]
    Mismatch { path: PathBuf, error: Mismatch },

    #[error(
        "the checkpoint {path} is of this job over other hubs, and now this hub is {}; start the job with its former hubs, \
         in the same order; {ANEW}",
        if share.is_whole() { "its only hub".to_owned() } else { share.to_string() }
    )]
    OtherShape { path: PathBuf, share: Share },

    #[error("the checkpoint {path} is of round {}, and its name says {}; {ANEW}", seen.0, expected.0)]
    PartRound { path: PathBuf, seen: Round, expected: Round },
}

impl CheckpointError {
    /// Whether another hub uses the directory.
    pub fn is_in_use(&self) -> bool {
        matches!(self, CheckpointError::InUse { .. })
    }

    /// Whether a file is damaged, so that the job may continue from an older file. A file of another job, or
    /// of a newer program, is not damaged.
    pub(super) fn is_damage(&self) -> bool {
        match self {
            CheckpointError::NotAFile { .. } => true,
            CheckpointError::Decode { error, .. } => {
                !matches!(error, DecodeError::Version { .. } | DecodeError::Memory(_))
            }
            _ => false,
        }
    }
}

/// Values of a state that are NaN or infinite.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{values} values that are NaN or infinite, the first in {first:?}")]
pub struct NotFinite {
    /// The tensor of the first such value, by its name in the file.
    pub first: String,
    /// The number of values.
    pub values: u64,
}

impl From<CheckpointError> for String {
    fn from(error: CheckpointError) -> Self {
        error.to_string()
    }
}

/// Returns the advice for an error of the kernel.
fn advice(error: &io::Error) -> &'static str {
    match Errno::from_io_error(error) {
        Some(Errno::NOSPC | Errno::DQUOT) => "free space in the file system, or give another directory",
        Some(Errno::FBIG) => {
            "raise the limit on file sizes (ulimit -f), or use a file system for larger files"
        }
        Some(Errno::ACCESS | Errno::PERM | Errno::ROFS) => {
            "give a directory in which the hub's user may make, read and write files"
        }
        Some(Errno::LOOP) => "remove the symbolic link, or give another directory",
        Some(Errno::NOENT | Errno::NOTDIR) => "make the directory, or give another one",
        Some(Errno::IO) => "check the disk (dmesg), or give a directory on another disk",
        Some(Errno::MFILE | Errno::NFILE) => "raise the number of open files (ulimit -n)",
        _ => "see errno(3) for this error, or give another directory",
    }
}
