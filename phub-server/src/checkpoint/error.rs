//! Errors of checkpoints, their files and their directory.
//!
//! Each message names the file or directory, and the next step. Text from a file is quoted and cut short, because it comes
//! from outside. Must not depend on how files are read or written.

use std::io;
use std::path::PathBuf;

use fabric::MapError;
use pbox_core::control::InvalidJobName;
use pbox_core::job::InvalidNumbers;
use pbox_core::manifest::{MAX_HEADER_BYTES, ManifestError};
use pbox_core::{Round, Share};
use rustix::io::Errno;

use super::format::FORMAT;

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
        "the state before round {} has {found}; it is in {aside}, {kept}, and no job continues from it; look at the learning \
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

    #[error("the snapshot of job {job:?} has not all tensors, and a checkpoint has; report this")]
    NotAll { job: String },

    #[error("cannot read the checkpoint {path}: {error}; {}", advice(error))]
    Read { path: PathBuf, error: io::Error },

    #[error("the checkpoint {path} is not a regular file; {ANEW}")]
    NotAFile { path: PathBuf },

    #[error("the checkpoint {path} cannot be used: {error}; {ANEW}")]
    Decode { path: PathBuf, error: DecodeError },

    #[error("the checkpoint {path} is of another job: {error}; {ANEW}")]
    Mismatch { path: PathBuf, error: Mismatch },

    #[error(
        "the checkpoint {path} is of this job over other hubs, and now this hub is {}; start the job with the hubs that it had, \
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

/// Keys that a checkpoint file cannot hold.
#[derive(Debug, PartialEq, thiserror::Error)]
#[allow(missing_docs)] // each variant is its message
pub enum UnusableKeys {
    #[error(
        "a key is called {name:?}; in checkpoints __metadata__ and names that begin with optimizer/ mean something \
         else: rename it"
    )]
    Reserved { name: String },

    #[error("with separate tensors for the optimizer's state, {error}")]
    Manifest { error: ManifestError },

    #[error(
        "the names and shapes take {bytes} bytes, and a safetensors header has at most {MAX_HEADER_BYTES}; shorten \
         the names, or join small tensors into larger ones"
    )]
    Header { bytes: usize },
}

/// Bytes that are not a checkpoint, or are a damaged checkpoint.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // each variant is its message
pub enum DecodeError {
    #[error("reading it: {0}")]
    Read(#[from] io::Error),

    #[error("it ends after {seen} bytes, and was {expected} bytes long when it was opened")]
    Ended { seen: u64, expected: u64 },

    #[error(
        "it is not a checkpoint that a parameter hub wrote (its first bytes are {seen:?}); other safetensors files \
         have no round and no optimizer to continue with"
    )]
    Foreign { seen: String },

    #[error(
        "it is of checkpoint format {seen:?}, and this program reads format {FORMAT}; use the program that wrote it, \
         {program:?}, or a newer one"
    )]
    Version { seen: String, program: String },

    #[error(transparent)]
    Header(#[from] ManifestError),

    #[error("its tensor {name:?} is {seen}, and a hub keeps F32: its writer is at fault")]
    Dtype { name: String, seen: &'static str },

    #[error("its {field} is {seen:?}: {reason}")]
    Metadata { field: &'static str, seen: String, reason: String },

    #[error(
        "it was altered or damaged: its digest is {written:?}, and its bytes have {computed:?}; copy \
         the original file again"
    )]
    Digest { written: String, computed: String },

    #[error(transparent)]
    Memory(#[from] MapError),
}

/// A valid checkpoint of another job.
#[derive(Debug, PartialEq, thiserror::Error)]
#[allow(missing_docs)] // each variant is its message
pub enum Mismatch {
    #[error("its optimizer is {file}, and the job asks for {job}; ask for the same")]
    Optimizer { file: String, job: String },

    #[error("its average of weights (ema) is {file}, and the job asks for {job}; ask for the same")]
    Ema { file: String, job: String },

    #[error("it has no tensor {name:?}, which the job has; train the same model")]
    Missing { name: String },

    #[error("its tensor {name:?} has the shape {file:?}, and the job's has {job:?}; train the same model")]
    Shape { name: String, file: Vec<u64>, job: Vec<u64> },

    #[error("it has {file} tensors, but the job has only {job} of them; train the same model")]
    Count { file: usize, job: usize },

    #[error(
        "it is {file}, but the job's hubs share the model in another way: expected {job}; ask for the same hubs, chunk size, \
         schedule and split_above"
    )]
    Share { file: String, job: String },

    #[error(
        "its optimizer's hyperparameters from round {round} on do not fit the job: {error}; train the same model"
    )]
    Numbers { round: u32, error: InvalidNumbers },

    #[error(
        "key {name:?} has lr_mult and wd_mult {file:?} in the file, and the job asks for {job:?}; ask for those of \
         the file"
    )]
    Multipliers { name: String, file: [f32; 2], job: [f32; 2] },

    #[error(
        "key {name:?} has its own hyperparameters in the file, and the job has no key of this name; train the same \
         model"
    )]
    Group { name: String },
}

/// Returns the advice for an error of the kernel.
fn advice(error: &io::Error) -> &'static str {
    match Errno::from_io_error(error) {
        Some(Errno::NOSPC | Errno::DQUOT) => "free space there, or give another directory",
        Some(Errno::FBIG) => {
            "raise the limit on file sizes (ulimit -f), or use a file system for larger files"
        }
        Some(Errno::ACCESS | Errno::PERM | Errno::ROFS) => {
            "give a directory in which the hub's user may make, read and write files"
        }
        Some(Errno::LOOP) => "remove the symbolic link, or give another directory",
        Some(Errno::NOENT | Errno::NOTDIR) => "make the directory, or give another one",
        Some(Errno::IO) => "check the disk (dmesg), or give a directory on another one",
        Some(Errno::MFILE | Errno::NFILE) => "raise the number of open files (ulimit -n)",
        _ => "see errno(3) for this error, or give another directory",
    }
}

/// Returns the beginning of a text from a file, short enough for the log.
pub(super) fn excerpt(text: &str) -> String {
    const CHARS: usize = 80;
    let mut shown: String = text.chars().take(CHARS).collect();
    if shown.len() < text.len() {
        shown.push_str("...");
    }
    shown
}
