//! The machine as sysfs shows it. This reader is used if there is no hwloc, and for facts that hwloc does not know.
//!
//! Every path is below a root, so that tests can use a made-up tree. A broken file about cpus or nodes is an error,
//! because no good plan can follow from it. If a file about a NIC is broken, its fact is unknown, and a note says so.
//! This module must not depend on `/proc`: the caller says which cpus are allowed.

mod attribute;
mod cpus;
mod nics;
mod nodes;
mod rdma;

pub(crate) use cpus::slow_cpus;

#[cfg(feature = "hwloc")]
use crate::host::Nic;
use crate::host::Source;
use crate::read::survey::Survey;
use std::path::{Path, PathBuf};

/// The reason why sysfs does not give the topology.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SysfsError {
    /// A file or directory cannot be read.
    #[error("sysfs {path}: cannot be read: {source}; is sysfs mounted there?")]
    Unreadable {
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A file does not hold the expected text.
    #[error("sysfs {path}: expected {expected}, found \"{seen}\"")]
    Garbage {
        /// The file.
        path: PathBuf,
        /// The expected content.
        expected: &'static str,
        /// The start of its text.
        seen: String,
    },
    /// No cpu is online.
    #[error("sysfs {path}: no cpu is listed; is sysfs mounted there?")]
    NoCpus {
        /// The file that should list them.
        path: PathBuf,
    },
}

/// Reads the machine below `root`. If `allowed` is given, only those cpus count as allowed.
pub(crate) fn read(root: &Path, allowed: Option<&[u32]>) -> Result<Survey, SysfsError> {
    let mut survey = Survey::new(Source::LiveSysfs(root.to_owned()));
    let node_of_cpu = nodes::read(root, &mut survey)?;
    cpus::read(root, allowed, &node_of_cpu, &mut survey)?;
    survey.slow = slow_cpus(root);
    match nics::read(root, &mut survey.notes) {
        Ok(nics) => survey.nics = nics,
        // A machine may have no network, but it must have cpus.
        Err(error) => survey.notes.push(format!("No NICs: {error}")),
    }
    Ok(survey)
}

/// Reads the NICs below `root`. Adds a note about the devices that are left out, with the reasons.
#[cfg(feature = "hwloc")]
pub(crate) fn read_nics(root: &Path, notes: &mut Vec<String>) -> Result<Vec<Nic>, SysfsError> {
    nics::read(root, notes)
}
