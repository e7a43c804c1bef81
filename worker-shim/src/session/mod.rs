//! The membership of a worker in a job, from join to leave.

mod compare;
mod config;
mod contents;
mod drive;
mod error;
mod hubs;
mod join;
mod measured;
mod numbers;
mod priorities;
mod recovery;
mod session;
mod state;

pub use config::{InvalidSetting, SessionConfig};
pub use contents::Pushed;
pub(crate) use contents::gradients_only;
pub use error::SessionError;
pub use measured::{LAPS, TRIALS, Times, Trial};
pub(crate) use measured::{Stopwatch, Timeline, Who};
pub use recovery::Returns;
pub use session::Session;
pub use state::State;
