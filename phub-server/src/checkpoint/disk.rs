//! Changes of files and directories: every write, rename and removal of the checkpoints goes through this file.
//!
//! In tests each change is noted in the [`journal`](super::crash::journal), which may make the change fail.
//! After a simulated loss of power, all further changes are ignored. The shipped program contains no part of
//! the journal.
//!
//! Called from any thread that may wait for a disk. Must not depend on what is in a file.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::{Errno, retry_on_intr};

#[cfg(test)]
use super::crash::journal::{Change, note};

/// A file that this process has made, open for writing.
#[derive(Debug)]
pub(super) struct NewFile(File);

impl NewFile {
    /// Makes a file that only this user can use. Fails if the name exists.
    pub fn make(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        #[cfg(test)]
        note(Change::Make(path, &file))?;
        Ok(NewFile(file))
    }

    /// Sets the mode, whatever the umask of the process is.
    pub fn set_mode(&self, mode: u32) -> io::Result<()> {
        self.0.set_permissions(PermissionsExt::from_mode(mode))
    }

    /// Reserves space for this many bytes, which are zeros until they are written.
    pub fn reserve(&self, bytes: u64) -> io::Result<()> {
        #[cfg(test)]
        note(Change::Reserve(&self.0, bytes))?;
        match retry_on_intr(|| fallocate(&self.0, FallocateFlags::empty(), 0, bytes)) {
            // Some file systems cannot reserve space. There, a full disk gives an error only while the
            // file is written.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            result => Ok(result?),
        }
    }

    /// Writes bytes at an offset of the file.
    pub fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        #[cfg(test)]
        note(Change::WriteAt(&self.0, bytes, at))?;
        self.0.write_all_at(bytes, at)
    }

    /// Writes the contents to the disk.
    pub fn sync(&self) -> io::Result<()> {
        #[cfg(test)]
        note(Change::Sync(&self.0))?;
        self.0.sync_all()
    }
}

impl Write for &NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        #[cfg(test)]
        note(Change::Append(&self.0, bytes))?;
        (&self.0).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Makes a directory that only this user can use.
pub(super) fn make_dir(path: &Path) -> io::Result<()> {
    #[cfg(test)]
    note(Change::MakeDir(path))?;
    DirBuilder::new().mode(0o700).create(path)
}

/// Renames a file. It replaces a file that had the new name.
pub(super) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    #[cfg(test)]
    note(Change::Rename(from, to))?;
    std::fs::rename(from, to)
}

/// Gives a file a second name.
pub(super) fn link(file: &Path, name: &Path) -> io::Result<()> {
    #[cfg(test)]
    note(Change::Link(file, name))?;
    std::fs::hard_link(file, name)
}

/// Removes a name.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    #[cfg(test)]
    note(Change::Remove(path))?;
    std::fs::remove_file(path)
}

/// Writes the names in a directory to the disk. Called after files in the directory were made, renamed or
/// removed.
pub(super) fn sync_dir(dir: &Path) -> io::Result<()> {
    #[cfg(test)]
    note(Change::SyncDir(dir))?;
    match File::open(dir).and_then(|dir| dir.sync_all()) {
        // Some network file systems cannot sync a directory. Their server keeps the name.
        Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => Ok(()),
        result => result,
    }
}
