//! Why a machine could not be read.
//!
//! Must not know how to read one: each reader has its own error, gathered here.

use crate::synthetic::SyntheticError;
use crate::sysfs::SysfsError;
use crate::xml::XmlError;

/// Why there is no [`Host`](crate::Host).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// The live machine could not be read from sysfs.
    #[error(transparent)]
    Sysfs(#[from] SysfsError),
    /// The XML file could not be read.
    #[error(transparent)]
    Xml(#[from] XmlError),
    /// The synthetic description makes no sense.
    #[error(transparent)]
    Synthetic(#[from] SyntheticError),
}
