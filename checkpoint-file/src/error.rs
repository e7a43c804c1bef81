//! Errors of a checkpoint's bytes. Text from a file is quoted and cut short, because other people may have written the
//! file.

use std::io;

use fabric::MapError;
use pbox_core::job::InvalidNumbers;
use pbox_core::manifest::{MAX_HEADER_BYTES, ManifestError};

use crate::format::FORMAT;

/// Keys that a checkpoint file cannot hold.
#[derive(Debug, PartialEq, thiserror::Error)]
#[allow(missing_docs)] // each variant is its message
pub enum UnusableKeys {
    #[error(
        "a key is called {name:?}; in checkpoints __metadata__ and names that begin with optimizer/ mean something \
         else: rename the key"
    )]
    Reserved { name: String },

    #[error("the tensors of the optimizer's state do not fit into one file: {error}")]
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
    #[error("reading the file: {0}")]
    Read(#[from] io::Error),

    #[error("the file ends after {seen} bytes, and was {expected} bytes long when it was opened")]
    Ended { seen: u64, expected: u64 },

    #[error(
        "the file is not a checkpoint that a parameter hub wrote (its first bytes are {seen:?}); other safetensors files \
         have no round and no optimizer to continue with: give a file of `phub-server serve --checkpoints`"
    )]
    Foreign { seen: String },

    #[error(
        "the file has checkpoint format {seen:?}, and this program reads format {FORMAT}; use the program that wrote the file, \
         {program:?}, or a newer one"
    )]
    Version { seen: String, program: String },

    #[error(transparent)]
    Header(#[from] ManifestError),

    #[error(
        "the file's tensor {name:?} is {seen}, and a checkpoint has {expected}: the file is for readers, or of another program"
    )]
    Dtype { name: String, seen: &'static str, expected: &'static str },

    #[error("the file's {field} is {seen:?}: {reason}")]
    Metadata { field: &'static str, seen: String, reason: String },

    #[error(
        "the file was altered or damaged: its digest is {written:?}, and its bytes have {computed:?}; copy \
         the original file again"
    )]
    Digest { written: String, computed: String },

    #[error("the differences from the last version cannot be used: {reason}; ask for the whole state")]
    Delta { reason: String },

    #[error(transparent)]
    Memory(#[from] MapError),
}

/// A valid checkpoint of another job.
#[derive(Debug, PartialEq, thiserror::Error)]
#[allow(missing_docs)] // each variant is its message
pub enum Mismatch {
    #[error("the file's optimizer is {file}, and the job asks for {job}; ask for the optimizer of the file")]
    Optimizer { file: String, job: String },

    #[error(
        "the file's average of weights (ema) is {file}, and the job asks for {job}; ask for the ema of the file"
    )]
    Ema { file: String, job: String },

    #[error("the file has no tensor {name:?}, which the job has; train the same model")]
    Missing { name: String },

    #[error(
        "the file's tensor {name:?} has the shape {file:?}, and the job's has {job:?}; train the same model"
    )]
    Shape { name: String, file: Vec<u64>, job: Vec<u64> },

    #[error("the file has {file} tensors, but the job has only {job} of them; train the same model")]
    Count { file: usize, job: usize },

    #[error(
        "the file is {file}, but the job's hubs share the model in another way: expected {job}; ask for the hubs, chunk size, \
         schedule and split_above with which the file was written"
    )]
    Share { file: String, job: String },

    #[error(
        "the file's hyperparameters of the optimizer from round {round} on do not fit the job: {error}; train the same model"
    )]
    Numbers { round: u32, error: InvalidNumbers },

    #[error(
        "key {name:?} has lr_mult and wd_mult {file:?} in the file, and the job asks for {job:?}; ask for the multipliers of \
         the file"
    )]
    Multipliers { name: String, file: [f32; 2], job: [f32; 2] },

    #[error(
        "key {name:?} has its own hyperparameters in the file, and the job has no key of this name; train the same \
         model"
    )]
    Group { name: String },
}

/// Returns the beginning of a text from a file, short enough for the log.
pub(crate) fn excerpt(text: &str) -> String {
    const CHARS: usize = 80;
    let mut shown: String = text.chars().take(CHARS).collect();
    if shown.len() < text.len() {
        shown.push_str("...");
    }
    shown
}
