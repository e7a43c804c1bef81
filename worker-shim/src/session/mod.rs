//! The membership of a worker in a job, from join to leave.

mod codec_rate;
mod compare;
mod config;
mod contents;
mod credit;
mod drive;
mod error;
mod hold;
mod hubs;
mod join;
mod numbers;
mod priorities;
mod relink;
mod session;
mod state;
mod timeline;
mod times;

pub use config::{InvalidSetting, SessionConfig};
pub use contents::Pushed;
pub(crate) use contents::gradients_only;
pub use credit::{LAPS, TRIALS, Trial};
pub use error::SessionError;
pub use hold::Returns;
pub use session::Session;
pub use state::State;
pub(crate) use timeline::{Timeline, Who};
pub(crate) use times::Stopwatch;
pub use times::Times;
