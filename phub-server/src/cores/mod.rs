//! The hub's cores: `lanes` chooses their cpus and NICs, `thread` runs one and takes its commands, `timeline` notes what it
//! does if somebody wants to see it, `near` is for threads that work for a core.

pub mod lanes;
pub(crate) mod near;
mod thread;
mod timeline;

pub(crate) use lanes::Lane;
pub(crate) use thread::{CoreHandle, CoreThread, Report, free};
pub(crate) use timeline::Event;
