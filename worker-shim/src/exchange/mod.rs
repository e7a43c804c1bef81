//! A worker's data path: gradients out, weights in, for one worker and any transport.

mod ahead;
mod coder;
mod error;
#[allow(unsafe_code)]
mod exchange;
mod groups;
#[allow(unsafe_code)]
mod keys;
mod notices;
mod outbox;
#[allow(unsafe_code)]
mod windows;

pub use error::ExchangeError;
pub use exchange::Exchange;
pub use keys::Traffic;
pub use windows::{WeightsMode, Windows};
