//! The hub's cores: `lanes` chooses their cpus and NICs, `thread` runs one, `handle` is the hub's end of it, `timeline` notes what it
//! does if somebody wants to see it, `near` is for threads that work for a core.

mod handle;
pub mod lanes;
pub(crate) mod near;
mod thread;
mod timeline;

pub(crate) use handle::{CoreHandle, Report, free};
pub(crate) use lanes::Lane;
pub(crate) use thread::CoreThread;
pub(crate) use timeline::Event;
