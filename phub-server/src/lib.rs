//! The parameter hub: pinned core threads that each own a part of every job's chunks, and the
//! control port over which workers join, live and leave.
//!
//! ```text
//!   control thread (HTTP)     rendezvous thread        core threads, pinned, one port each
//!     join, heartbeat,          accepts data-path        turn, turn, turn ...
//!     leave, learning rate      connections                 ^         |
//!          |                        |                       |         v
//!          +------> Registry <------+---- commands ---------+      reports ---> Registry
//! ```
//!
//! This crate must never know a worker's schedule.

#![forbid(unsafe_code)]

mod certificate_command;
pub mod checkpoint;
mod checkpoint_command;
mod client;
pub mod command;
mod control;
mod cores;
pub mod doctor;
mod error;
mod hub;
mod job_memory;
pub mod model_source;
mod open_files;
mod pieces;
mod registry;
mod rendezvous;
mod seldom;
mod settings;
pub mod shapes;
mod token_command;
mod top_command;
pub mod topology_command;
mod trace_command;
mod waiting_room;

pub use command::exit_code;
pub use control::ControlLimits;
pub use error::HubError;
pub use hub::Hub;
pub use open_files::raise_open_files;
pub use pbox_core::control::Machine;
pub use settings::{CoreSelection, HubSettings, IdleChoice};
