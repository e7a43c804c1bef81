//! The machine by sysfs alone: what works without hwloc, and what hwloc cannot see.
//!
//! Every path is below a root, so that tests read a made-up tree. Broken files about cpus and nodes are
//! errors, for nothing good can be planned on them; broken files about one NIC leave that fact unknown, with a
//! note. Must not know `/proc`, nor which cpus are allowed beyond what it is told.

mod attribute;
mod cpus;
mod nics;
mod nodes;
mod rdma;

#[cfg(feature = "hwloc")]
use crate::host::Nic;
use crate::host::Source;
use crate::read::survey::Survey;
use std::path::{Path, PathBuf};

/// What is wrong below the sysfs root.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SysfsError {
    /// A file or directory cannot be read.
    #[error("sysfs {path}: cannot be read: {source}; is sysfs mounted there?")]
    Unreadable {
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file holds something else than it should.
    #[error("sysfs {path}: expected {expected}, found \"{seen}\"")]
    Garbage {
        /// The file.
        path: PathBuf,
        /// What it should hold.
        expected: &'static str,
        /// The start of what it holds.
        seen: String,
    },
    /// No cpu is online.
    #[error("sysfs {path}: no cpu is listed; is sysfs mounted there?")]
    NoCpus {
        /// The file that should list them.
        path: PathBuf,
    },
}

/// All that is found below `root`. With `allowed`, only those cpus count as allowed.
pub(crate) fn read(root: &Path, allowed: Option<&[u32]>) -> Result<Survey, SysfsError> {
    let mut survey = Survey::new(Source::LiveSysfs(root.to_owned()));
    let node_of_cpu = nodes::read(root, &mut survey)?;
    cpus::read(root, allowed, &node_of_cpu, &mut survey)?;
    match nics::read(root, &mut survey.notes) {
        Ok(nics) => survey.nics = nics,
        // A machine without network is a machine; only the cpus are indispensable.
        Err(error) => survey.notes.push(format!("No NICs: {error}")),
    }
    Ok(survey)
}

/// The NICs below `root`; what was left out and why goes to `notes`.
#[cfg(feature = "hwloc")]
pub(crate) fn read_nics(root: &Path, notes: &mut Vec<String>) -> Result<Vec<Nic>, SysfsError> {
    nics::read(root, notes)
}
