//! The hub's cores. `lanes` chooses their cpus and NICs. `thread` runs one, and `handle` is the hub's end of it.
//! `command` and `report` are the messages of the two ends, and `obey` carries out commands. `timeline` notes a
//! core's work, if somebody wants to see it. `near` is for threads that work for a core.

mod command;
mod handle;
pub mod lanes;
pub(crate) mod near;
mod obey;
mod report;
mod thread;
mod timeline;

pub(crate) use command::{Carried, Command, LastEvents, Measured, Reply, WaysOfCore};
pub(crate) use handle::{CoreHandle, free};
pub(crate) use lanes::Lane;
pub(crate) use report::Report;
pub(crate) use thread::CoreThread;
pub(crate) use timeline::Event;
