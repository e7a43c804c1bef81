//! Writes a checkpoint to a temporary file, which then replaces the previous file.
//!
//! ```text
//!   make temporary -> reserve its length -> header, values -> digest -> fsync -> rename -> fsync dir
//!        |___________________ an error: temporary removed, previous file untouched ____|
//!        |___ no room: remove an older file and try again, as long as an older file may be removed
//!                                  a value that is not finite: renamed to another file, previous file untouched
//! ```
//!
//! Owned by the thread that saves. Must not depend on the cores.

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use checkpoint_file::{DIGEST_AT, PIECE_BYTES, Plan, digest_text};
use pbox_core::Snapshot;
use rustix::fs::statvfs;
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use xxhash_rust::xxh3::Xxh3;
use zerocopy::IntoBytes;

use super::disk::{self, NewFile};
use super::error::{CheckpointError, NotFinite};
use super::permission::FileMode;

const UNTOUCHED: &str = "the previous checkpoint is unchanged";
const REPLACED: &str = "the file is whole, but a power failure now may bring back the previous file";

/// The action that failed, and the error.
type Failed = (&'static str, io::Error);

/// A trait that adds the failed action to an error.
trait Doing<T> {
    fn doing(self, what: &'static str) -> Result<T, Failed>;
}

impl<T, E: Into<io::Error>> Doing<T> for Result<T, E> {
    fn doing(self, what: &'static str) -> Result<T, Failed> {
        self.map_err(|error| (what, error.into()))
    }
}

/// The names of a checkpoint's files in one directory.
pub(super) struct Names<'a> {
    pub dir: &'a Path,
    /// The file that is replaced.
    pub path: &'a Path,
    /// The file that is replaced instead of `path` if a value is not finite.
    pub aside: &'a Path,
    /// The file's name before the rename. It must not exist.
    pub temporary: PathBuf,
    /// The mode of the new file.
    pub mode: FileMode,
}

/// Writes `plan` with the snapshot's values to the temporary file, and renames it to `path` right after the call of
/// `keep`. If the disk is full, tries again as long as `make_room` removes a file. Makes no room for a state that is
/// not finite.
pub(super) fn replace(
    names: Names<'_>,
    plan: &Plan,
    snapshot: &Snapshot,
    mut make_room: impl FnMut() -> io::Result<bool>,
    keep: impl FnOnce() -> io::Result<()>,
) -> Result<(), CheckpointError> {
    let Names { dir, path, aside, temporary, mode } = names;
    let error = |kept| {
        move |(doing, error): Failed| CheckpointError::Save {
            path: path.to_owned(),
            doing,
            needed_bytes: plan.file_bytes,
            // The free space is read after the temporary file was removed, so the next attempt will have this
            // space.
            free_bytes: statvfs(dir).ok().map(|free| free.f_bavail.saturating_mul(free.f_frsize)),
            error,
            kept,
        }
    };
    let mut is_worth_it = None;
    let mut written = loop {
        let why = match write(&temporary, mode, plan, snapshot) {
            Ok(written) => break written,
            Err(why) => why,
        };
        let has_no_room = matches!(Errno::from_io_error(&why.1), Some(Errno::NOSPC | Errno::DQUOT));
        let goes_on = has_no_room
            && *is_worth_it.get_or_insert_with(|| is_finite(plan, snapshot))
            && make_room().doing("removing an older checkpoint, to make room").map_err(error(UNTOUCHED))?;
        if !goes_on {
            return Err(error(UNTOUCHED)(why));
        }
    };
    if let Some(found) = written.not_finite.take() {
        written.rename(aside).map_err(error(UNTOUCHED))?;
        let (round, aside) = (snapshot.round(), aside.to_owned());
        return Err(CheckpointError::NotFinite { round, found, aside, kept: UNTOUCHED });
    }
    keep().doing("keeping the previous checkpoint").map_err(error(UNTOUCHED))?;
    written.rename(path).map_err(error(UNTOUCHED))?;
    // A rename is on the disk only after the sync of the directory.
    let synced = disk::sync_dir(dir).doing("syncing the file's name to the disk (fsync of the directory)");
    synced.map_err(error(REPLACED))
}

fn write(path: &Path, mode: FileMode, plan: &Plan, snapshot: &Snapshot) -> Result<Temporary, Failed> {
    check_size_limit(plan.file_bytes).doing("checking the limit on file sizes")?;
    let mut temporary =
        Temporary::make(path, mode).doing("making a temporary file next to the checkpoint")?;
    // The reservation makes a full disk an error before the long write begins.
    temporary.file.reserve(plan.file_bytes).doing("reserving space for the file")?;
    temporary.not_finite = fill(&temporary.file, plan, snapshot).doing("writing the file")?;
    temporary.file.sync().doing("syncing the file to the disk (fsync)")?;
    Ok(temporary)
}

/// The file before its rename. If it was not renamed, dropping this value removes it.
struct Temporary {
    file: NewFile,
    path: PathBuf,
    remove: bool,
    not_finite: Option<NotFinite>,
}

impl Temporary {
    fn make(path: &Path, mode: FileMode) -> io::Result<Self> {
        let file = mode.make_file(path)?;
        Ok(Temporary { file, path: path.to_owned(), remove: true, not_finite: None })
    }

    fn rename(mut self, path: &Path) -> Result<(), Failed> {
        disk::rename(&self.path, path).doing("renaming the temporary file to the checkpoint's name")?;
        self.remove = false;
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if self.remove
            && let Err(error) = disk::remove(&self.path)
        {
            tracing::warn!(
                "cannot remove {}: {error}; the hub's next start removes the file",
                self.path.display()
            );
        }
    }
}

/// Checks the limit on file sizes before a write. A write beyond the limit would raise a signal that ends the hub.
fn check_size_limit(bytes: u64) -> Result<(), Errno> {
    match getrlimit(Resource::Fsize).current {
        Some(limit) if limit < bytes => Err(Errno::FBIG),
        _ => Ok(()),
    }
}

fn fill(file: &NewFile, plan: &Plan, snapshot: &Snapshot) -> io::Result<Option<NotFinite>> {
    let mut pieces = BufWriter::with_capacity(PIECE_BYTES, file);
    let (hash, not_finite) = stream(&mut pieces, plan, snapshot)?;
    pieces.flush()?;
    file.write_at(digest_text(&hash).as_bytes(), DIGEST_AT as u64)?;
    Ok(not_finite)
}

/// Whether all values are finite.
fn is_finite(plan: &Plan, snapshot: &Snapshot) -> bool {
    stream(io::sink(), plan, snapshot).is_ok_and(|(_, not_finite)| not_finite.is_none())
}

/// Writes the file from its beginning to its end, chunk by chunk. Returns the digest of the written bytes.
/// Also returns the tensors that are not finite.
fn stream(mut sink: impl Write, plan: &Plan, snapshot: &Snapshot) -> io::Result<(Xxh3, Option<NotFinite>)> {
    let mut not_finite: Option<NotFinite> = None;
    let mut hash = Xxh3::new();
    let mut write = |bytes: &[u8]| {
        hash.update(bytes);
        sink.write_all(bytes)
    };
    write(&plan.header)?;
    for entry in &plan.entries {
        for values in snapshot.tensor(&snapshot.pieces()[entry.piece], entry.tensor) {
            // Values are f32 in this machine's byte order: little endian, as in the windows and the file.
            write(values.as_bytes())?;
            // The values that are not finite are counted while the values are in the cache.
            let count = values.iter().filter(|value| !value.is_finite()).count() as u64;
            if count > 0 {
                let first = || NotFinite { first: entry.shown.name.clone(), values: 0 };
                not_finite.get_or_insert_with(first).values += count;
            }
        }
    }
    Ok((hash, not_finite))
}
