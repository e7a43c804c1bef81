//! The processing of a chunk: keys and their layout, arrivals, sum, optimizer step, and the loop of a core (PHub,
//! section 2). A pass of this loop is called a turn.
//!
//! This crate must never depend on files, time, the environment, thread creation, or the transport on which it
//! runs.

#![deny(unsafe_code)] // exceptions: docs/unsafe.md

pub mod codec;
pub mod control;
pub mod job;
#[allow(unsafe_code)]
pub mod kernels;
mod layout;
pub mod models;
mod place;
pub mod slim;
mod snapshot;
mod strict_json;
mod turn;
mod weights;
mod whole;
mod wire;

pub use job::{
    Compression, Consistency, Credit, InvalidCompression, InvalidTerms, JobTerms, LevelTerms, MAX_HUBS,
    MAX_WORKERS, Members, NotACompression, NotAConsistency, NotACredit, NotASchedule, OnLoss, SPLIT_ABOVE,
    Schedule,
};
pub use kernels::{
    Ablate, Element, Groups, InvalidOptimizer, Magnitude, Multipliers, Numbers, NumbersByRound, Optimizer,
    Selection, Tensor, Tensors, oracle,
};
pub use layout::{
    Chunk, ChunkId, Content, DEFAULT_CHUNK_BYTES, Dtype, Immediate, Key, KeyId, Layout, LayoutError,
    MAX_CHUNKS, Round, default_chunk_bytes, manifest,
};
pub use place::{Above, Below, JobCores, Piece, Placement, Share, Slice, Slices};
pub use snapshot::{
    Occasion, Restored, RestoredKey, Snapshot, SnapshotError, SnapshotPart, Taken, ValueRange,
};
pub use turn::{
    AnswersAbove, Core, Front, JobId, Look, MadeShard, Nobody, Notice, Onlooker, SendQueue, ShardSpec, Tally,
    Violation, Waits, Watched, WindowsBelow, later_lines,
};
pub use weights::{Discarded, Gauged, GaugedRound};
pub use whole::{ExactSum, NormMean, NormSum, Part, Parts, Skips};
pub use wire::{Answer, Codecs, Expected, Frames, Framing, Wire, frame, merge};
