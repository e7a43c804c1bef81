//! libphub: a worker's session and a reader's subscription for C. The header `worker-shim/include/phub.h` is generated from this crate.
//!
//! Arguments from C are checked for null and UTF-8 at their entry. A panic ends as [`PhubStatus::Internal`],
//! and never reaches the caller's frames. Of sessions, this crate must depend only on what
//! [`worker_shim::Background`] shows.

#![deny(unsafe_code)] // exceptions: docs/unsafe.md

#[allow(unsafe_code)]
mod config;
#[allow(unsafe_code)]
mod entry;
#[allow(unsafe_code)]
mod plan;
#[allow(unsafe_code)]
mod session;
mod status;
#[allow(unsafe_code)]
mod subscription;
#[cfg(test)]
#[allow(unsafe_code)]
mod tests;

pub use config::{PhubConfig, PhubDtype};
pub use plan::PhubPullPlan;
pub use session::{PhubInterrupted, PhubSession};
pub use status::PhubStatus;
pub use subscription::{PhubSubscription, PhubTensor, PhubVersion, PhubVersionAbout};
