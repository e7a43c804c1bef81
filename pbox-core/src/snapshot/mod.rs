//! A job's state between two rounds: captured chunk by chunk, put together, and restored.

mod capture;
mod part;
mod restored;

pub(crate) use capture::Capture;
pub use capture::{Occasion, Taken};
pub use part::{Snapshot, SnapshotError, SnapshotPart, ValueRange};
pub use restored::{Restored, RestoredKey};
