//! A worker's data path: gradients out, weights in, for one worker and any transport.

mod coder;
mod error;
#[allow(unsafe_code)]
mod exchange;
mod notices;
mod outbox;
#[allow(unsafe_code)]
mod windows;

pub use error::ExchangeError;
pub use exchange::{Exchange, Traffic};
pub use windows::{WeightsMode, Windows};
