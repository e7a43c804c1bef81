//! The trace of a run. Hubs and workers write their traces, and their parent merges them into one file.

use std::path::{Path, PathBuf};

use anyhow::Result;
use timeline::{TraceFile, merge};

/// The file of the merged trace, and the files of the children. Dropping the value removes the children's files.
pub(super) struct Trace {
    file: TraceFile,
    /// The path that the children get. Each child derives the name of its file from this path.
    base: PathBuf,
    parts: Vec<PathBuf>,
}

/// Returns the path of a child's trace. A worker's rank is added before the extension.
pub(super) fn part(path: &Path, pid: u32) -> PathBuf {
    let mut part = path.to_owned().into_os_string();
    part.push(format!(".{pid}.part"));
    part.into()
}

/// Returns the path of a rank: `run.json` of rank 3 is `run.rank3.json`.
fn of_rank(path: &Path, rank: u32) -> PathBuf {
    match path.extension() {
        Some(extension) => path.with_extension(format!("rank{rank}.{}", extension.display())),
        None => path.with_extension(format!("rank{rank}")),
    }
}

impl Trace {
    /// Creates the file before any child is started. If the hub runs elsewhere, this process is one rank, and the
    /// file's name contains the rank, as a worker's file does. So all ranks may get the same `path`.
    pub fn create(path: &Path, rank: Option<u32>) -> Result<Self> {
        let file = rank.map_or_else(|| path.to_owned(), |rank| of_rank(path, rank));
        Ok(Trace { file: TraceFile::create(file)?, base: path.to_owned(), parts: Vec::new() })
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Adds a hub that was started.
    pub fn add_hub(&mut self, pid: u32) {
        self.parts.push(part(&self.base, pid));
    }

    /// Adds a worker that was started.
    pub fn add_worker(&mut self, pid: u32, rank: u32) {
        self.parts.push(part(&self.base, pid).with_extension(format!("rank{rank}.part")));
    }

    /// Merges the files. All children must have ended without an error.
    pub fn finish(mut self) -> Result<PathBuf> {
        let (processes, _) = merge(&self.parts)?;
        self.file.write(&processes)?;
        Ok(self.path().to_owned())
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        self.parts.iter().for_each(|part| drop(std::fs::remove_file(part)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_ranks_that_are_told_one_file_have_a_file_each() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.json");
        let paths =
            [None, Some(0), Some(1)].map(|rank| Trace::create(&path, rank).unwrap().path().to_owned());
        assert_eq!(paths, ["run.json", "run.rank0.json", "run.rank1.json"].map(|name| dir.path().join(name)));
    }
}
