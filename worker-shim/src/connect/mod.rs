//! From a hub's address to links that lead there: its control port, the heartbeat, the data path.

mod control;
mod data_path;
mod heartbeat;
mod hub;

pub use data_path::Way;
pub(crate) use data_path::{DataPath, open};
pub(crate) use hub::{Hub, LetIn};
