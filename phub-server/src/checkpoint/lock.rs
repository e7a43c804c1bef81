//! The lock on a directory of checkpoints, which one hub at a time holds.
//!
//! ```text
//!   the directory itself   flock on its own descriptor: stops a second hub of this machine, even if files in it are removed
//!   .phub-lock             flock on this file, too: a network file system shows this lock to hubs of other machines
//! ```
//!
//! The lock file is empty, and only the hub's user can open it. A symbolic link with its name is an error. The kernel
//! names the process that has a lock. A process id written into the file would be wrong after its process has ended.
//!
//! Owned by the thread that opens the directory, and by the threads that save. Must not depend on
//! checkpoints.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{FlockOperation, Mode, OFlags, fchmod, flock, major, minor};
use rustix::io::Errno;
use rustix::process::geteuid;

/// The name of the lock file in the directory.
pub(super) const LOCK: &str = ".phub-lock";

/// The lock on a directory that no other hub uses. If the hub is killed, the kernel releases the lock.
#[derive(Debug)]
pub(super) struct Lock {
    directory: File,
    file: File,
}

/// The reason why the directory could not be locked.
#[derive(Debug)]
pub(super) enum NotLocked {
    /// Another process has the lock; the number is this process's id, if the kernel reports it.
    InUse(Option<u32>),
    /// An action failed with this error.
    Failed(&'static str, io::Error),
}

impl Lock {
    /// Locks the directory, if no other process has the lock.
    pub fn take(dir: &Path) -> Result<Self, NotLocked> {
        let failed = |doing| move |error: io::Error| NotLocked::Failed(doing, error);
        let flags = OFlags::DIRECTORY.bits() as i32;
        let directory = OpenOptions::new().read(true).custom_flags(flags).open(dir);
        let directory = directory.map_err(failed("opening it"))?;
        match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            // Some file systems cannot lock a directory. There the lock on the file is enough.
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL | Errno::BADF) => {}
            Err(Errno::WOULDBLOCK) => return Err(NotLocked::InUse(holder(&directory))),
            Err(errno) => return Err(failed("locking it")(errno.into())),
        }
        let file = own_file(dir).map_err(failed("opening its lock file .phub-lock"))?;
        let lock = Lock { directory, file };
        match flock(&lock.file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(lock),
            Err(Errno::WOULDBLOCK) => Err(NotLocked::InUse(holder(&lock.file))),
            Err(errno) => Err(failed("locking its lock file .phub-lock")(errno.into())),
        }
    }

    /// Whether the directory that has this name now is still the locked directory.
    pub fn is_of(&self, dir: &Path) -> io::Result<bool> {
        let (locked, named) = (self.directory.metadata()?, dir.metadata()?);
        Ok((locked.dev(), locked.ino()) == (named.dev(), named.ino()))
    }
}

impl Drop for Lock {
    /// Unlocks both files before closing them. A child process that another thread has just forked still has
    /// the files open, so closing alone would not unlock them.
    fn drop(&mut self) {
        let _ = flock(&self.file, FlockOperation::Unlock);
        let _ = flock(&self.directory, FlockOperation::Unlock);
    }
}

/// The directory's descriptor.
impl AsFd for Lock {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }
}

/// Opens or makes the lock file, which other users cannot open.
fn own_file(dir: &Path) -> io::Result<File> {
    // Without `NONBLOCK`, opening a FIFO with this name would block.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
    let open = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(flags)
        .open(dir.join(LOCK));
    let file = open?;
    let about = file.metadata()?;
    if !about.is_file() {
        return Err(io::Error::other(format!("{LOCK} is not a regular file; remove it")));
    }
    // Older hubs made lock files that every user could open and lock.
    if about.uid() == geteuid().as_raw() && about.mode() & 0o077 != 0 {
        fchmod(&file, Mode::RUSR | Mode::WUSR)?;
    }
    Ok(file)
}

/// Returns the process that has locked a file. Returns `None` if the process is on another machine, or in a
/// container whose processes are not visible here.
fn holder(file: &File) -> Option<u32> {
    let about = file.metadata().ok()?;
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    holder_in(&locks, &format!("{:02x}:{:02x}:{}", major(about.dev()), minor(about.dev()), about.ino()))
}

/// Finds the process with the lock on a file in the text of `/proc/locks`.
fn holder_in(locks: &str, file: &str) -> Option<u32> {
    let held = locks.lines().find_map(|line| match *line.split_ascii_whitespace().collect::<Vec<_>>() {
        [_, "FLOCK", _, _, process, of, ..] if of == file => Some(process),
        _ => None,
    });
    held?.parse().ok().filter(|&process| process > 0)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn words(taken: Result<Lock, NotLocked>) -> String {
        format!("{:?}", taken.expect_err("it must not be taken"))
    }

    #[test]
    fn a_lock_file_that_is_removed_frees_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let first = Lock::take(dir.path()).unwrap();
        std::fs::remove_file(dir.path().join(LOCK)).unwrap();
        let process = format!("InUse(Some({}))", std::process::id());
        assert_eq!(words(Lock::take(dir.path())), process);
        drop(first);
        Lock::take(dir.path()).unwrap();
    }

    #[test]
    fn a_link_in_the_lock_files_place_is_an_error_and_its_target_is_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("target");
        std::fs::write(&target, "all that somebody has").unwrap();
        std::os::unix::fs::symlink(&target, dir.path().join(LOCK)).unwrap();
        let said = words(Lock::take(dir.path()));
        assert!(said.contains("symbolic links"), "{said}");
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "all that somebody has");
        std::fs::remove_file(dir.path().join(LOCK)).unwrap();
        std::fs::create_dir(dir.path().join(LOCK)).unwrap();
        assert!(words(Lock::take(dir.path())).contains("Is a directory"));
    }

    #[test]
    fn others_cannot_open_the_lock_file_and_nothing_is_written_to_it() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(LOCK);
        // A file that an older hub left.
        std::fs::write(&file, "4711\n").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
        let lock = Lock::take(dir.path()).unwrap();
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "4711\n");
        drop(lock);
        // The kernel names the process with the lock. The number that an older hub wrote into the file is
        // ignored.
        let other = File::open(&file).unwrap();
        flock(&other, FlockOperation::LockExclusive).unwrap();
        assert_eq!(words(Lock::take(dir.path())), format!("InUse(Some({}))", std::process::id()));
    }

    #[test]
    fn a_directory_of_the_same_name_is_another_one() {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("checkpoints");
        std::fs::create_dir(&dir).unwrap();
        let lock = Lock::take(&dir).unwrap();
        assert!(lock.is_of(&dir).unwrap());
        std::fs::rename(&dir, parent.path().join("old")).unwrap();
        assert!(lock.is_of(&dir).is_err());
        std::fs::create_dir(&dir).unwrap();
        assert!(!lock.is_of(&dir).unwrap());
    }

    #[test]
    fn who_waits_for_a_lock_does_not_hold_it() {
        let locks = "1: POSIX  ADVISORY  WRITE 11 08:01:7 0 EOF\n2: FLOCK  ADVISORY  WRITE 12 08:01:7 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 13 08:01:7 0 EOF\n3: FLOCK  ADVISORY  WRITE 0 08:01:8 0 EOF\n";
        assert_eq!(holder_in(locks, "08:01:7"), Some(12));
        assert_eq!(holder_in(locks, "08:01:8"), None, "of a container that is not seen here");
        assert_eq!(holder_in(locks, "08:01:9"), None);
    }
}
