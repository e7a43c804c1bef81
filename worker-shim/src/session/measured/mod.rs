//! Measurements of a session: its times, its codec's rate, and the credit with the shortest rounds.

pub(super) mod codec_rate;
mod credit;
mod timeline;
mod times;

pub(super) use credit::Tuner;
pub use credit::{LAPS, TRIALS, Trial};
pub(crate) use timeline::{Timeline, Who};
pub(crate) use times::Stopwatch;
pub use times::Times;
