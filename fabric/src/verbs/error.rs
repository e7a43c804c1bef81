//! The errors of verbs before a link exists. A failure after that closes the link.

use std::io;

use super::gid::GidError;
use super::handles::error::{CreateError, DeviceError, ModifyError};
use super::handles::library::LibraryError;
use super::handles::region::RegisterError;
use super::path_settings::SettingError;

/// A step of setting up RDMA failed. Each variant names the call, the object and the advice.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VerbsError {
    /// libibverbs is missing.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// A device does not exist, or its port cannot be used.
    #[error(transparent)]
    Device(DeviceError),
    /// No address of a port is usable.
    #[error(transparent)]
    Gid(#[from] GidError),
    /// A flag or the environment has a value that no queue pair accepts.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// A window could not be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// The NIC could not make an object, such as a queue pair.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// A queue pair did not change its state.
    #[error(transparent)]
    Modify(#[from] ModifyError),
    /// The kernel refused a call that does not concern the NIC.
    #[error("{doing}: {error}")]
    System {
        /// The action that was tried.
        doing: &'static str,
        /// The kernel's answer.
        error: String,
    },
}

impl From<DeviceError> for VerbsError {
    /// Converts the error. A missing library has its own variant, even if an access to a device found the
    /// library missing.
    fn from(error: DeviceError) -> Self {
        match error {
            DeviceError::Library(error) => VerbsError::Library(error),
            error => VerbsError::Device(error),
        }
    }
}

impl VerbsError {
    pub(super) fn system(doing: &'static str) -> impl Fn(io::Error) -> Self {
        move |error| VerbsError::System { doing, error: error.to_string() }
    }
}
