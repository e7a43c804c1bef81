//! What can go wrong with verbs before a link stands. What goes wrong after it closes the link.

use std::io;

use super::device::DeviceError;
use super::gid::GidError;
use super::handles::context::Context;
use super::handles::library::LibraryError;
use super::handles::queue_pair::ModifyError;
use super::handles::region::RegisterError;

/// A step of setting up RDMA failed; each says what was tried, on what, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VerbsError {
    /// No libibverbs.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// A device is not there, or its port is not fit for use.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// No address among those of a port will do.
    #[error(transparent)]
    Gid(#[from] GidError),
    /// A window could not be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// The NIC could not make something.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// A queue pair would not change its state.
    #[error(transparent)]
    Modify(#[from] ModifyError),
    /// The kernel refused something that is none of the NIC's.
    #[error("{doing}: {error}")]
    System {
        /// What was tried.
        doing: &'static str,
        /// The kernel's answer.
        error: String,
    },
}

impl VerbsError {
    pub(super) fn system(doing: &'static str) -> impl Fn(io::Error) -> Self {
        move |error| VerbsError::System { doing, error: error.to_string() }
    }
}

/// A NIC could not make a queue pair, a completion queue, or the like.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{device} cannot make a {what}{size}: {error}; {advice}")]
pub struct CreateError {
    /// What was to be made.
    pub what: &'static str,
    /// The NIC.
    pub device: String,
    /// How large, with the device's maximum, in words; may be empty.
    pub size: String,
    /// The kernel's answer.
    pub error: String,
    /// What to do.
    pub advice: &'static str,
}

impl CreateError {
    pub(super) fn new(what: &'static str, context: &Context, size: String, error: io::Error) -> Self {
        let advice = match error.raw_os_error() {
            Some(libc::ENOMEM) => {
                "it is out of memory or of such objects: raise the limit on locked memory (ulimit -l unlimited), or have fewer connections to one NIC"
            }
            Some(libc::EINVAL) => {
                "it does not take this size: larger chunks or more cores make smaller queues"
            }
            Some(libc::EMFILE) => "raise the number of open files (ulimit -n)",
            _ => "dmesg may have the driver's words",
        };
        CreateError { what, device: context.device.clone(), size, error: error.to_string(), advice }
    }

    /// It would have to be larger than the device can make it.
    pub(super) fn too_large(what: &'static str, context: &Context, wanted: u32, most: u32) -> Self {
        CreateError {
            what,
            device: context.device.clone(),
            size: format!(" of {wanted} entries"),
            error: format!("the device's maximum is {most}"),
            advice: "larger chunks, more cores, or fewer workers on this NIC need fewer entries",
        }
    }
}
