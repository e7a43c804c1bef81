//! The ways to read a [`Host`]: from this machine, from a file, or from a description.
//!
//! ```text
//!   live ──> hwloc, sysfs, affinity ─┐
//!   xml ───> hwloc                   ├──> Survey ──> Host
//!   synthetic                        ┘
//! ```
//!
//! This module must not depend on what the host is used for.

mod affinity;
#[cfg(feature = "hwloc")]
mod hwloc;
mod live;
mod survey;
mod synthetic;
mod sysfs;
pub(crate) mod xml;

use crate::host::Host;
use std::path::Path;
pub use synthetic::SyntheticError;
pub use sysfs::SysfsError;
pub use xml::XmlError;

/// The reason why there is no [`Host`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// The live machine could not be read from sysfs.
    #[error(transparent)]
    Sysfs(#[from] SysfsError),
    /// The XML file could not be read.
    #[error(transparent)]
    Xml(#[from] XmlError),
    /// The synthetic description is not valid.
    #[error(transparent)]
    Synthetic(#[from] SyntheticError),
}

impl Host {
    /// Returns the machine this process runs on.
    ///
    /// With the `hwloc` feature, the tree comes from hwloc, and the NICs come from sysfs, because hwloc
    /// cannot place soft-RoCE. Each source fills the gaps of the other. If hwloc fails, only sysfs is read,
    /// with a note. Without the feature, only sysfs is read. Cpus outside the process's cpuset or affinity
    /// mask are listed with `allowed` false.
    pub fn live() -> Result<Self, HostError> {
        crate::read::live::read()
    }

    /// Returns a machine, read only from sysfs below `root` (normally `/sys`). All its online cpus count as
    /// allowed.
    pub fn from_sysfs(root: impl AsRef<Path>) -> Result<Self, HostError> {
        Ok(crate::read::sysfs::read(root.as_ref(), None)?.into_host())
    }

    /// Returns a machine from a file that `lstopo --of xml` wrote. Without the `hwloc` feature this is an error.
    ///
    /// The file's form is checked first, and then a C library parses the file. Read only files that you trust
    /// like a configuration file.
    pub fn from_xml(path: impl AsRef<Path>) -> Result<Self, HostError> {
        Ok(crate::read::xml::read(path.as_ref())?)
    }

    /// Returns a machine from a short description, for tests and for plans for machines that are not
    /// available.
    ///
    /// The description has words of the form `key:value` with blanks between them, in any order, each key at
    /// most once:
    ///
    /// | key | meaning | default |
    /// | --- | --- | --- |
    /// | `sockets` | sockets | 1 |
    /// | `nodes` | NUMA nodes in each socket | 1 |
    /// | `cores` | physical cores on each node | 1 |
    /// | `threads` | hardware threads of each core | 1 |
    /// | `memory_gib` | memory on each node, GiB | unknown |
    /// | `nics` | NICs on each node | 0 |
    /// | `nic_gbps` | speed of each NIC, Gb/s | unknown |
    /// | `nic_kind` | `ethernet`, `infiniband`, `roce` or `rxe` | `ethernet` |
    /// | `loose_nics` | NICs whose node is unknown | 0 |
    ///
    /// `cores`, `memory_gib`, `nics` and `nic_gbps` may be a list with one value per node, such as `nics:5,0`.
    /// Cpus are numbered as Linux usually numbers them: the first threads of all cores, in socket order, then
    /// the second threads. NICs are `nic0`, `nic1`, ... in node order. PBox is `sockets:2 cores:10 threads:2
    /// nics:5 nic_gbps:56 nic_kind:infiniband`.
    pub fn from_synthetic(description: &str) -> Result<Self, HostError> {
        Ok(crate::read::synthetic::read(description)?.into_host())
    }
}
