//! The parameter hub. Pinned core threads each own a part of every job's chunks. Workers join, live and leave over the
//! control port.
//!
//! ```text
//!   control thread (HTTP)     rendezvous thread        core threads, pinned, one port each
//!     join, heartbeat,          accepts data-path        turn, turn, turn ...
//!     leave, learning rate      connections                 ^         |
//!          |                        |                       |         v
//!          +------> Registry <------+---- commands ---------+      reports ---> Registry
//! ```
//!
//! This crate must never depend on a worker's schedule.

#![forbid(unsafe_code)]

pub mod checkpoint;
pub mod client;
mod control;
mod error;
mod hub;
pub mod job_memory;
pub mod lanes;
mod log_limiter;
pub mod needs;
pub mod open_files;
mod pauses;
mod pieces;
pub mod program;
mod refusals;
mod registry;
mod rendezvous;
mod settings;
pub mod shapes;
mod waiting_room;

pub use control::ControlLimits;
pub use error::HubError;
pub use hub::Hub;
pub use open_files::raise_open_files;
pub use pbox_core::control::Machine;
pub use settings::{CoreSelection, HubSettings, IdleChoice, PathArgs};
