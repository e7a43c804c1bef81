//! The hub's cores. `lanes` chooses their cpus and NICs. `thread` runs one core, and `handle` is the hub's
//! handle of it. `command` and `report` are the messages between the two, and `obey` carries out commands.
//! `timeline` records a core's work, if the hub has a timeline. `near` is for threads that work for a core.

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
