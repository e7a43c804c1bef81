//! Files and directories that exist completely or not at all.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::error::VersionError;
use crate::index::VersionId;

/// The prefix of files that are being written or removed. Readers ignore such files.
const HIDDEN: &str = ".phub-tmp-";

/// The prefix of a version's directory.
const VERSION: &str = "weight_v";

/// Returns the path of a version's directory.
pub(crate) fn of_version(dir: &Path, id: VersionId) -> PathBuf {
    dir.join(format!("{VERSION}{id}"))
}

/// Returns the versions in a directory, in order.
pub(crate) fn versions(dir: &Path) -> Result<Vec<VersionId>, VersionError> {
    let mut ids = Vec::new();
    for entry in fs::read_dir(dir).map_err(VersionError::disk(dir, "listing versions"))? {
        let name = entry.map_err(VersionError::disk(dir, "listing versions"))?.file_name();
        let id =
            name.to_str().and_then(|name| name.strip_prefix(VERSION)).and_then(|digits| digits.parse().ok());
        // An id has six digits, so a name such as weight_v7 belongs to another program and is left out.
        ids.extend(id.filter(|&id| of_version(dir, id).file_name() == Some(&name)));
    }
    ids.sort_unstable();
    Ok(ids)
}

/// The directory of a version that is being written. Dropping the draft removes it, unless [`show`](Self::show) has
/// published it.
#[derive(Debug)]
pub(crate) struct Draft {
    path: PathBuf,
    shown: bool,
}

impl Draft {
    /// Creates an empty draft.
    pub fn make(dir: &Path, id: VersionId) -> Result<Self, VersionError> {
        let path = dir.join(format!("{HIDDEN}{id}"));
        // An earlier draft of this version may have left files.
        drop(fs::remove_dir_all(&path));
        fs::create_dir(&path).map_err(VersionError::disk(&path, "making the directory of a version"))?;
        Ok(Draft { path, shown: false })
    }

    /// Writes a file, and syncs it to disk.
    pub fn add(
        &self,
        name: &str,
        write: impl FnOnce(&mut io::BufWriter<&File>) -> io::Result<()>,
    ) -> Result<(), VersionError> {
        let path = self.path.join(name);
        create(&path, write).map_err(VersionError::disk(&path, "writing a file of a version"))
    }

    /// Renames the directory to its final name. From then on readers see it. If the name was not synced to disk, returns
    /// `Ok` with an error.
    pub fn show(mut self, dir: &Path, id: VersionId) -> Result<Option<VersionError>, VersionError> {
        let to = of_version(dir, id);
        let shown = sync(&self.path).and_then(|()| fs::rename(&self.path, &to));
        shown.map_err(VersionError::disk(&to, "showing a version"))?;
        self.shown = true;
        Ok(sync(dir).map_err(VersionError::disk(&to, "syncing the name of a version to disk")).err())
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.shown {
            // If files are left, they are removed when the directory is next opened.
            drop(fs::remove_dir_all(&self.path));
        }
    }
}

/// Creates a file, and syncs it to disk.
fn create(path: &Path, write: impl FnOnce(&mut io::BufWriter<&File>) -> io::Result<()>) -> io::Result<()> {
    let file = File::create_new(path)?;
    let mut out = io::BufWriter::with_capacity(1 << 20, &file);
    write(&mut out)?;
    out.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.sync_all()
}

/// Creates a file that exists completely or not at all. Fails if the file exists.
pub(crate) fn write_new(
    path: &Path,
    write: impl FnOnce(&mut io::BufWriter<&File>) -> io::Result<()>,
) -> Result<(), VersionError> {
    put(path, write, |hidden| fs::hard_link(hidden, path))
        .map_err(VersionError::disk(path, "writing weights to a new file"))
}

/// Writes a file that exists completely or not at all. The caller must hold the lock of the directory. The file is renamed
/// into place, because some file systems that engines share have no hard links.
pub(crate) fn write_locked(path: &Path, bytes: &[u8], doing: &'static str) -> Result<(), VersionError> {
    put(path, |out| out.write_all(bytes), |hidden| fs::rename(hidden, path))
        .map_err(VersionError::disk(path, doing))
}

/// Writes a hidden file next to `path`. Then calls `name` to give the file this path.
fn put(
    path: &Path,
    write: impl FnOnce(&mut io::BufWriter<&File>) -> io::Result<()>,
    name: impl FnOnce(&Path) -> io::Result<()>,
) -> io::Result<()> {
    let dir = path.parent().filter(|dir| *dir != Path::new("")).unwrap_or(Path::new("."));
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    let hidden = dir.join(format!("{HIDDEN}{}-{file}", std::process::id()));
    let written = create(&hidden, write).and_then(|()| name(&hidden));
    // The hidden name is removed in each case: also after a failure, and after a hard link, which does not remove it.
    drop(fs::remove_file(&hidden));
    written.and_then(|()| sync(dir))
}

/// Removes a version. First hides it from new readers, and then removes its files.
pub(crate) fn remove(dir: &Path, id: VersionId) -> Result<(), VersionError> {
    let (path, hidden) = (of_version(dir, id), dir.join(format!("{HIDDEN}removed-{id}")));
    let removed = fs::rename(&path, &hidden).and_then(|()| fs::remove_dir_all(&hidden));
    removed.map_err(VersionError::disk(&path, "removing a version"))
}

/// Removes the files of publishers that were killed.
pub(crate) fn sweep(dir: &Path) -> Result<(), VersionError> {
    let failed = |path: &Path| VersionError::disk(path, "removing files that a killed publisher left");
    for entry in fs::read_dir(dir).map_err(failed(dir))? {
        let entry = entry.map_err(failed(dir))?;
        if entry.file_name().to_str().is_some_and(|name| name.starts_with(HIDDEN)) {
            let path = entry.path();
            let is_dir = entry.file_type().map_err(failed(&path))?.is_dir();
            let removed = if is_dir { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            removed.map_err(failed(&path))?;
        }
    }
    Ok(())
}

/// Syncs the names in a directory to disk.
fn sync(dir: &Path) -> io::Result<()> {
    match File::open(dir).and_then(|dir| dir.sync_all()) {
        // Some network file systems cannot sync a directory. The server of such a file system keeps the names.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
        other => other,
    }
}
