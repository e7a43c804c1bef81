//! The hub's cores: `lanes` chooses their cpus and NICs, `thread` runs one and takes its commands.

pub(crate) mod lanes;
mod thread;

pub(crate) use lanes::Lane;
pub(crate) use thread::{CoreHandle, CoreThread, Report, pin};
