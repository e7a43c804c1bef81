//! The trace of a run: hubs and workers write theirs, and their parent makes one file of them.

use std::path::{Path, PathBuf};

use anyhow::Result;
use timeline::{TraceFile, merge};

/// The file, and those of the children. These go with it.
pub(super) struct Trace {
    file: TraceFile,
    parts: Vec<PathBuf>,
}

/// Where a child writes its trace. A worker's rank is added before the extension.
pub(super) fn part(path: &Path, pid: u32) -> PathBuf {
    let mut part = path.to_owned().into_os_string();
    part.push(format!(".{pid}.part"));
    part.into()
}

impl Trace {
    /// Before anything is started.
    pub fn create(path: &Path) -> Result<Self> {
        Ok(Trace { file: TraceFile::create(path)?, parts: Vec::new() })
    }

    /// A hub was started.
    pub fn add_hub(&mut self, pid: u32) {
        self.parts.push(part(self.file.path(), pid));
    }

    /// A worker was started.
    pub fn add_worker(&mut self, pid: u32, rank: u32) {
        self.parts.push(part(self.file.path(), pid).with_extension(format!("rank{rank}.part")));
    }

    /// All children have ended well.
    pub fn finish(mut self) -> Result<()> {
        let (processes, _) = merge(&self.parts)?;
        Ok(self.file.write(&processes)?)
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        self.parts.iter().for_each(|part| drop(std::fs::remove_file(part)));
    }
}
