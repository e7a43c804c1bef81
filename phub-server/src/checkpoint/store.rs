//! The directory that holds the checkpoints of all jobs.
//!
//! ```text
//!   <job>.safetensors                 the newest whole checkpoint; `generations` has the older checkpoints
//!   <job>@<round>.hub<h>of<n>.safetensors   this hub's part of a job over several hubs (`parts`)
//!   .<job>.<16 hex digits>.phub-tmp   a file that is being written; removed at the next start
//!   .phub-lock                        locked, as the directory itself is, while a hub uses the directory (`lock`)
//! ```
//!
//! A job's name cannot lead out of the directory: it has no slash, and the file always has an ending. The
//! files of jobs `.` and `..` are `..safetensors` and `...safetensors`.
//!
//! Shared by the threads that save and load. If two saves of one job end at the same time, the later state
//! stays. Must not depend on the contents of a file.

use std::fs::File;
use std::io;
use std::num::NonZeroU32;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use authority::{hex, random, unhex};
use checkpoint_file::{DecodeError, FileShare, Plan, decode, entries, of_piece, whole};
use pbox_core::control::check_job_name;
use pbox_core::{Dtype, Key, Restored, Selection, Share, Snapshot, Tensors};
use rustix::io::Errno;

use super::disk;
use super::error::CheckpointError;
use super::generations::not_finite_name;
use super::lock::{Lock, NotLocked};
use super::parts::PartOf;
use super::permission::FileMode;
use super::write::{self, Names};
use crate::log_limiter::LogLimiter;

/// The number of checkpoints of a job that are kept by default.
pub const KEEP: NonZeroU32 = NonZeroU32::new(3).unwrap();

const TEMPORARY: &str = ".phub-tmp";

/// A directory of checkpoints, which no other hub uses at the same time.
#[derive(Debug)]
pub struct CheckpointStore {
    pub(super) dir: PathBuf,
    /// The number of checkpoints of a job that are kept.
    pub(super) keep: NonZeroU32,
    /// The number of jobs whose files are kept; `None` for all jobs.
    pub(super) jobs: Option<NonZeroU32>,
    mode: FileMode,
    /// The lock, which is taken again if the directory was replaced.
    lock: Mutex<Lock>,
    /// The count of removals of old files for lack of room. The log mentions only some removals.
    pub(super) made_room: LogLimiter,
}

impl CheckpointStore {
    /// Opens a directory that only the hub's user can use; see [`open_for`](Self::open_for).
    pub fn open(dir: impl Into<PathBuf>) -> Result<Self, CheckpointError> {
        Self::open_for(dir, FileMode::default())
    }

    /// Opens a directory, and removes files that a killed hub left half written. The parent of the directory
    /// must exist. New files get this mode, and so does a new directory. An existing directory keeps its
    /// mode; a warning is logged if other users can use it.
    pub fn open_for(dir: impl Into<PathBuf>, mode: FileMode) -> Result<Self, CheckpointError> {
        let store = Self::open_silently(dir, mode)?;
        let unknown = |error| store.failed("checking who can read it", error);
        if let Some(why) = store.is_open_to_others().map_err(unknown)? {
            tracing::warn!("{why}");
        }
        if mode == FileMode::default() {
            store.warn_of_readers().map_err(unknown)?;
        }
        Ok(store)
    }

    /// Opens a directory like [`open_for`](Self::open_for), but logs no warning. A check of the settings uses it.
    pub fn open_silently(dir: impl Into<PathBuf>, mode: FileMode) -> Result<Self, CheckpointError> {
        let dir = dir.into();
        let failed = |doing| {
            let dir = dir.clone();
            move |error: io::Error| CheckpointError::Directory { dir, doing, error }
        };
        // The directory's parents are not made: a mistyped path, or a disk that is not mounted, must be an error.
        match mode.make_directory(&dir) {
            Err(_) if dir.is_dir() => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(failed("opening it: the path is a file, or a symbolic link without a target")(
                    io::Error::from_raw_os_error(Errno::NOTDIR.raw_os_error()),
                ));
            }
            made => made.map_err(failed("making it"))?,
        }
        let lock = Mutex::new(take_lock(&dir)?);
        bring_to_disk(&dir).map_err(failed("syncing the directory to the disk (fsync)"))?;
        remove_temporaries(&dir).map_err(failed("removing files that a former hub left half written"))?;
        let store = CheckpointStore {
            dir: dir.clone(),
            keep: KEEP,
            jobs: None,
            mode,
            lock,
            made_room: LogLimiter::default(),
        };
        // Even if the lock file exists, the hub may be unable to make other files in the directory.
        store.probe().map_err(failed("making a file in it"))?;
        Ok(store)
    }

    /// Sets the number of checkpoints that are kept of a job over one hub.
    pub fn keeping(self, keep: NonZeroU32) -> Self {
        CheckpointStore { keep, ..self }
    }

    /// Sets the number of jobs whose files are kept; `None` for all jobs.
    pub fn keeping_jobs(self, jobs: Option<NonZeroU32>) -> Self {
        CheckpointStore { jobs, ..self }
    }

    /// Returns the path of a file in the directory.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Returns the error for a failed action in the directory.
    pub(crate) fn failed(&self, doing: &'static str, error: io::Error) -> CheckpointError {
        CheckpointError::Directory { dir: self.dir.clone(), doing, error }
    }

    /// Returns the path of a job's checkpoint, which perhaps does not exist yet.
    pub fn path(&self, job: &str) -> Result<PathBuf, CheckpointError> {
        check_job_name(job)?;
        Ok(self.dir.join(format!("{job}.safetensors")))
    }

    /// Loads a file. If the file must be a part, `part` names the part.
    pub(super) fn load_file(
        &self,
        path: PathBuf,
        job: &str,
        keys: &[Key],
        tensors: &Tensors,
        part: Option<PartOf<'_>>,
    ) -> Result<Option<Restored>, CheckpointError> {
        let unusable = |error| CheckpointError::Keys { job: job.to_owned(), error };
        let entries = match part {
            Some(PartOf { pieces, .. }) => entries(keys, tensors, pieces.iter().map(of_piece)),
            None => entries(keys, tensors, whole(keys)),
        };
        let entries = entries.map_err(unusable)?;
        let share = part.and_then(|PartOf { share, pieces, .. }| FileShare::new(share, keys, pieces));
        // To open a FIFO would wait for a writer, so the type of the file is checked first.
        match std::fs::metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(CheckpointError::Read { path, error }),
            Ok(found) if !found.is_file() => return Err(CheckpointError::NotAFile { path }),
            Ok(_) => {}
        }
        let open = || {
            let file = File::open(&path)?;
            let bytes = file.metadata()?.len();
            Ok((file, bytes))
        };
        let (file, bytes) = match open() {
            Ok(opened) => opened,
            Err(error) => return Err(CheckpointError::Read { path, error }),
        };
        match decode(file, bytes).map(|decoded| decoded.restore(keys, tensors, &entries, share)) {
            Ok(Ok(restored)) => Ok(Some(restored)),
            Ok(Err(error)) => Err(CheckpointError::Mismatch { path, error }),
            Err(DecodeError::Memory(error)) => Err(CheckpointError::Memory { job: job.to_owned(), error }),
            Err(error) => Err(CheckpointError::Decode { path, error }),
        }
    }

    /// Saves `snapshot` as the newest checkpoint of a job. In a job over several hubs, saves it as this hub's
    /// part for its round. Returns the length of the file. On return, the file is on the disk. An error says
    /// whether the previous file was replaced: only the last step can fail after the replacement. A state that is
    /// not finite replaces no file, and is kept under another name.
    pub fn save(&self, job: &str, share: Share, snapshot: &Snapshot) -> Result<u64, CheckpointError> {
        let path = self.file_of(job, share, snapshot.round())?;
        if snapshot.selection() != Selection::All {
            return Err(CheckpointError::NotAll { job: job.to_owned() });
        }
        self.keep_lock()?;
        let unusable = |error| CheckpointError::Keys { job: job.to_owned(), error };
        let plan = Plan::new(job, snapshot, share, None, Dtype::F32).map_err(unusable)?;
        let (whole, round) = (share.is_whole(), snapshot.round());
        let aside = self.file(&not_finite_name(job, share));
        let names = Names {
            dir: &self.dir,
            path: &path,
            aside: &aside,
            temporary: self.temporary(job).map_err(|error| self.failed("naming a file", error))?,
            mode: self.mode,
        };
        let keep = || if whole { self.keep_newest(job, &path, round) } else { Ok(()) };
        let make_room = || self.make_room(job, share, round);
        write::replace(names, &plan, snapshot, make_room, keep)?;
        if whole && let Err(error) = self.prune(job, round) {
            tracing::warn!(job, %error, "cannot remove old checkpoints");
        }
        Ok(plan.file_bytes)
    }

    /// Locks the directory again, if another directory has its name now.
    pub(super) fn keep_lock(&self) -> Result<(), CheckpointError> {
        let mut lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let is_same = lock.is_of(&self.dir);
        if !is_same.map_err(|error| self.failed("checking that the directory was not replaced", error))? {
            *lock = take_lock(&self.dir)?;
            tracing::warn!(
                "{} was replaced by another directory, which the hub has locked now",
                self.dir.display()
            );
        }
        Ok(())
    }

    /// Returns the path of a temporary file that no other save uses.
    fn temporary(&self, job: &str) -> io::Result<PathBuf> {
        let random = hex(&random::<8>()?);
        Ok(self.dir.join(format!(".{job}.{random}{TEMPORARY}")))
    }

    /// Checks that the hub can make files in the directory.
    fn probe(&self) -> io::Result<()> {
        let path = self.temporary("probe")?;
        self.mode.make_file(&path)?;
        disk::remove(&path)
    }

    /// Returns a warning if the directory's mode allows other users more than the files' mode. The warning
    /// says what other users can do, and how to prevent it. The mode is not changed: an administrator may have chosen it, and
    /// other programs may need it.
    fn is_open_to_others(&self) -> io::Result<Option<String>> {
        let (mode, wanted, dir) = (self.dir.metadata()?.mode(), self.mode.of_directory(), self.dir.display());
        let more = mode & 0o066 & !wanted;
        if more == 0 {
            return Ok(None);
        }
        let can = match more & 0o022 {
            0 => "list the directory, and lock it so that no hub starts",
            _ => "remove and replace files in the directory, and lock it so that no hub starts",
        };
        let closes = match mode & 0o1000 {
            0 => format!("chmod {wanted:03o} {dir} closes the directory"),
            _ => format!("{dir} is for files of all users: give --checkpoints a separate directory below it"),
        };
        let mode = mode & 0o7777;
        Ok(Some(format!(
            "the directory of checkpoints {dir} has mode {mode:03o}: other users can {can}; {closes}"
        )))
    }

    /// Logs which checkpoints other users can read, because both the mode of the file and the mode of the
    /// directory permit it.
    fn warn_of_readers(&self) -> io::Result<()> {
        if self.dir.metadata()?.mode() & 0o011 == 0 {
            return Ok(());
        }
        let mut open = Vec::new();
        for entry in std::fs::read_dir(&self.dir)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_checkpoint = name.ends_with(".safetensors") && entry.file_type()?.is_file();
            if is_checkpoint && entry.metadata()?.mode() & 0o044 != 0 {
                open.push(name);
            }
        }
        if let Some(first) = open.first() {
            tracing::warn!(
                count = open.len(),
                first,
                "other users can read checkpoints in {0}: chmod 600 {0}/*.safetensors closes the files, and --checkpoint-mode 640 \
                 allows a group to read them",
                self.dir.display()
            );
        }
        Ok(())
    }
}

fn take_lock(dir: &Path) -> Result<Lock, CheckpointError> {
    let dir = dir.to_owned();
    Lock::take(&dir).map_err(|why| match why {
        NotLocked::InUse(holder) => CheckpointError::InUse { dir, holder },
        NotLocked::Failed(doing, error) => CheckpointError::Directory { dir, doing, error },
    })
}

/// Syncs the directory and its own name to the disk. A killed hub may have changed the directory and the name without
/// a sync, and jobs will continue from the files that are visible now.
fn bring_to_disk(dir: &Path) -> io::Result<()> {
    disk::sync_dir(dir)?;
    let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty());
    match disk::sync_dir(parent.unwrap_or(Path::new("."))) {
        // A user without access to the parent directory cannot sync it.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        synced => synced,
    }
}

/// Removes temporary files. This hub holds the lock, so no process is writing them.
fn remove_temporaries(dir: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        let ours = name.to_str().is_some_and(is_temporary);
        if ours && entry.file_type()?.is_file() {
            disk::remove(&entry.path())?;
            tracing::info!("removed {}, which a former hub left half written", entry.path().display());
        }
    }
    Ok(())
}

/// Whether a name has the form `.<job>.<16 hexadecimal digits>.phub-tmp`.
fn is_temporary(name: &str) -> bool {
    let parts = name.strip_prefix('.').and_then(|name| name.strip_suffix(TEMPORARY)?.rsplit_once('.'));
    parts.is_some_and(|(job, random)| check_job_name(job).is_ok() && unhex::<8>(random).is_some())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::checkpoint::lock::LOCK;

    #[test]
    fn only_half_written_files_of_a_hub_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let store = CheckpointStore::open(dir.path()).unwrap();
        let left = [store.temporary("job").unwrap(), store.temporary("a..").unwrap()];
        drop(store);
        let others = [
            "job.safetensors",
            ".phub-tmp",
            ".job.phub-tmp",
            ".job.0123456789abcdeg.phub-tmp",
            "job.0123456789abcdef.phub-tmp",
            ".j b.0123456789abcdef.phub-tmp",
        ];
        let others = others.map(|name| dir.path().join(name));
        left.iter().chain(&others).for_each(|path| std::fs::write(path, "").unwrap());
        let directory = dir.path().join(".job.0123456789abcdef.phub-tmp");
        std::fs::create_dir(&directory).unwrap();
        let _store = CheckpointStore::open(dir.path()).unwrap();
        assert!(left.iter().all(|path| !path.exists()));
        assert!(others.iter().chain([&directory]).all(|path| path.exists()));
    }

    #[test]
    fn a_directory_that_was_made_open_stays_so_and_is_told_with_what_closes_it() {
        let parent = tempfile::tempdir().unwrap();
        let told = |mode: u32, files: &str| {
            let dir = parent.path().join(format!("{mode:o}-{files}"));
            std::fs::create_dir(&dir).unwrap();
            std::fs::set_permissions(&dir, PermissionsExt::from_mode(mode)).unwrap();
            let store = CheckpointStore::open_for(&dir, files.parse().unwrap()).unwrap();
            assert_eq!(dir.metadata().unwrap().mode() & 0o7777, mode);
            store.is_open_to_others().unwrap()
        };
        for (mode, files, words) in [
            (
                0o755,
                "600",
                "755: other users can list the directory, and lock it so that no hub starts; chmod 700 ",
            ),
            (0o775, "600", "775: other users can remove and replace files in the directory"),
            (0o755, "640", "chmod 750 "),
            (0o1777, "600", "a separate directory below it"),
        ] {
            let told = told(mode, files).unwrap();
            assert!(told.contains(words), "{told}");
        }
        assert_eq!([told(0o700, "600"), told(0o711, "600"), told(0o750, "640")], [None, None, None]);
        let made = CheckpointStore::open(parent.path().join("made")).unwrap();
        assert_eq!(made.is_open_to_others().unwrap(), None);
    }

    #[test]
    fn a_closed_directory_is_free_although_a_forked_child_still_has_its_lock_file_open() {
        let dir = tempfile::tempdir().unwrap();
        let store = CheckpointStore::open(dir.path()).unwrap();
        let _of_the_child = store.lock.lock().unwrap().as_fd().try_clone_to_owned().unwrap();
        drop(store);
        CheckpointStore::open(dir.path()).unwrap();
    }

    #[test]
    fn a_job_name_stays_in_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        let store = CheckpointStore::open(dir.path()).unwrap();
        for job in ["a", "a..", "_", "phub-tmp", "a.b-c_d"] {
            let path = store.path(job).unwrap();
            assert_eq!(path.parent(), Some(dir.path()), "{job}");
            assert!(path.to_str().unwrap().ends_with(&format!("/{job}.safetensors")), "{path:?}");
        }
        for job in ["", "a/b", "../a", "a\0", ".", "..", ".hidden", LOCK, ".phub-tmp", "-a"] {
            assert!(matches!(store.path(job), Err(CheckpointError::JobName(_))), "{job:?}");
        }
    }
}
