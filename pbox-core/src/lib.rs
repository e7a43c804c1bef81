//! What happens to a chunk: keys and their layout, arrival, sum, optimizer step, and the turn of
//! the core that owns it (PHub, section 2).
//!
//! This crate must never know files, time, the environment, thread creation, or which transport
//! it runs on.

#![deny(unsafe_code)] // exceptions: docs/unsafe.md

mod answers;
mod arrival;
mod chunk;
mod clocks;
pub mod codec;
mod compression;
mod consistency;
pub mod control;
mod element;
pub mod frame;
mod framed;
mod hub_weights;
#[allow(unsafe_code)]
pub mod kernels;
mod key;
mod layout;
pub mod manifest;
mod merge;
pub mod models;
mod optimizer;
pub mod oracle;
mod pace;
mod parts;
mod placement;
mod restored;
mod roster;
mod schedule;
mod settings;
#[allow(unsafe_code)]
mod shard;
mod share;
mod slices;
pub mod slim;
#[allow(unsafe_code)]
mod slots;
mod snapshot;
mod taking;
mod turn;
mod values;
mod violation;
mod wire;

pub use chunk::{ChunkId, Immediate, MAX_CHUNKS, Round};
pub use compression::{Compression, InvalidCompression, NotACompression};
pub use consistency::{Consistency, NeedsBsp, NotAConsistency};
pub use element::Element;
pub use key::{Dtype, Key, KeyId};
pub use layout::{Chunk, DEFAULT_CHUNK_BYTES, Layout, LayoutError};
pub use merge::{Answer, merge};
pub use optimizer::{Ablate, InvalidOptimizer, LearningRates, Optimizer};
pub use pace::Front;
pub use placement::{Placement, runs};
pub use restored::{Restored, RestoredKey};
pub use schedule::{NotASchedule, Schedule, SendQueue};
pub use shard::{Shard, ShardSpec};
pub use share::{InvalidShare, MAX_HUBS, SPLIT_ABOVE, Share};
pub use slices::{Slice, Slices};
pub use snapshot::{Snapshot, SnapshotError, SnapshotPart, Tensor, state_names};
pub use taking::{Occasion, Taken};
pub use turn::{Core, JobId, Notice, Tally};
pub use violation::Violation;
pub use wire::{Codecs, Frames, Framing, FramingTerms, Wire};
