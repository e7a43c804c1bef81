//! Errors of a directory of versions.

use std::io;
use std::path::{Path, PathBuf};

use crate::index::VersionId;

/// An error of a directory of versions. After an error, no version is shown or changed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // each variant is its message; the message prints the fields
pub enum VersionError {
    #[error("{path}: {doing}: {error}")]
    Disk { path: PathBuf, doing: &'static str, error: io::Error },

    #[error(
        "{path}: another program publishes versions in this directory; give each publisher a separate directory"
    )]
    InUse { path: PathBuf },

    #[error("{path}: {what}: {why}; publish a whole version again, and look at the disk")]
    Faulty { path: PathBuf, what: &'static str, why: String },

    #[error(
        "{path} has no index: its publisher is still writing this version, or ended before the version was whole; \
         read another version, and remove this directory if no publisher runs"
    )]
    NoIndex { path: PathBuf },

    #[error(
        "{path} is a file; expected the directory of a version: remove the file, or give it another name"
    )]
    NotADirectory { path: PathBuf },

    #[error("{path} cannot be copied next to the weights: {why}")]
    Also { path: PathBuf, why: &'static str },

    #[error("{path} has no version {version}; it has {there}")]
    NoSuchVersion { path: PathBuf, version: VersionId, there: String },

    #[error("{path} has no versions; expected a directory of `phub-server publish`")]
    Empty { path: PathBuf },

    #[error(
        "{path}: version {version} is a delta on version {base}, which was removed; read a later version, or wait for the next whole version"
    )]
    BaseGone { path: PathBuf, version: VersionId, base: VersionId },

    #[error(
        "{path}: tensor {tensor:?} of version {version} has checksum {seen}, and {expected} was published; do not use \
         this version: read another one"
    )]
    Checksum { path: PathBuf, version: VersionId, tensor: String, expected: String, seen: String },

    #[error(
        "{path}: the weights of version {version} have digest {seen}, and {expected} was published: a version on which \
         this delta builds was replaced; do not use this version: read another one"
    )]
    Digest { path: PathBuf, version: VersionId, expected: String, seen: String },

    #[error(
        "{path}: tensor {tensor:?} has {bytes} bytes, and an overwrite delta takes tensors below 4 GiB; publish with \
         --delta xor or --delta smaller"
    )]
    TooLong { path: PathBuf, tensor: String, bytes: u64 },

    #[error(
        "{path}: expected the name of the job whose versions are in this directory, and the file is empty; write the job's \
         name into the file"
    )]
    NoJob { path: PathBuf },

    #[error(
        "{path} has versions of job {theirs:?}, and this is job {ours:?}; give each job a separate directory"
    )]
    OtherJob { path: PathBuf, ours: String, theirs: String },
}

impl VersionError {
    /// Returns a function that creates the error of a system call on `path`, made while `doing` something.
    pub(crate) fn disk(path: &Path, doing: &'static str) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |error| VersionError::Disk { path, doing, error }
    }

    /// Whether a retry may succeed: perhaps a publisher has not written the files yet, or has removed the files
    /// meanwhile.
    pub fn may_pass(&self) -> bool {
        match self {
            VersionError::Disk { error, .. } => error.kind() == io::ErrorKind::NotFound,
            VersionError::NoIndex { .. }
            | VersionError::NoSuchVersion { .. }
            | VersionError::Empty { .. }
            | VersionError::BaseGone { .. } => true,
            _ => false,
        }
    }

    /// Creates the error for a file that no publisher writes in this form.
    pub(crate) fn faulty(path: &Path, what: &'static str, why: impl ToString) -> Self {
        VersionError::Faulty { path: path.to_owned(), what, why: why.to_string() }
    }
}
