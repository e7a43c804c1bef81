//! The threads of a hub. A core thread is pinned to a cpu, owns the core's part of each job, and makes turns. Commands and
//! reports are the messages between a core thread and the rest of the hub. Each file has one part:
//!
//! - `thread` runs a core, `handle` is the hub's handle of the thread, and `lane` is its cpu and NIC
//! - `command` and `report` are the messages, and `obey` carries commands out
//! - `contention` measures how much of its cpu's time a core gets
//! - `near` is for threads that work for a core, on its NUMA node
//! - `timeline` records a core's work, if the hub has a timeline
//! - `alarm` tells the hub about a panic in any of its threads
//!
//! This crate must not depend on how workers join, on HTTP, or on files.

#![forbid(unsafe_code)]

pub mod alarm;
mod command;
mod contention;
mod handle;
mod lane;
pub mod near;
mod obey;
mod report;
mod thread;
mod timeline;

pub use command::{Carried, Command, CoreLinksAbove, LastEvents, Measured, Reply};
pub use contention::Contention;
pub use handle::{CoreHandle, Meters, free};
pub use lane::Lane;
pub use report::Report;
pub use thread::CoreThread;
pub use timeline::Event;
