//! What can go wrong in a session, one variant a cause.

use std::time::Duration;

use fabric::WindowError;
use membership::MemberError;
use pbox_core::InvalidCompression;
use pbox_core::control::InvalidJobName;
use pbox_core::manifest::ManifestError;
use pbox_core::{InvalidOptimizer, LayoutError, NeedsBsp};

use crate::exchange::ExchangeError;
use crate::pull::PullError;

/// A session's error. After one from `push` or `wait` that is not about the caller's own order of
/// calls, the session is over: drop it.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The job could not be joined, or its hubs end the session.
    #[error(transparent)]
    Member(#[from] MemberError),
    /// No job can have this name.
    #[error(transparent)]
    JobName(#[from] InvalidJobName),
    /// The optimizer's settings are out of range.
    #[error("this worker's optimizer: {0}")]
    Optimizer(#[from] InvalidOptimizer),
    /// The optimizer needs BSP.
    #[error("this worker's settings: {0}")]
    Consistency(#[from] NeedsBsp),
    /// The job cannot have this compression.
    #[error("this worker's compression: {0}")]
    Compression(#[from] InvalidCompression),
    /// Weights cannot be pulled so.
    #[error("this worker's settings: {0}")]
    Pull(#[from] PullError),
    /// No learning rate.
    #[error("learning rate {seen}: expected a finite number")]
    LearningRate {
        /// What was asked for.
        seen: f32,
    },
    /// The keys are no manifest.
    #[error("this worker's manifest: {0}")]
    Manifest(#[from] ManifestError),
    /// The keys cannot be laid out.
    #[error("this worker's manifest: {0}")]
    Layout(#[from] LayoutError),
    /// Memory for a window.
    #[error("this worker's window: {0}")]
    Window(#[from] WindowError),
    /// Others did not come.
    #[error(
        "job {job:?}: waited {waited:?} for worker(s) {missing:?} of {workers} to join; start them, or raise the join limit"
    )]
    Missing {
        /// The job.
        job: String,
        /// How long.
        waited: Duration,
        /// Whose ranks.
        missing: Vec<u32>,
        /// How many there should be.
        workers: u32,
    },
    /// A worker left before the round that this one waits for.
    #[error(
        "job {job:?}: worker {rank} left before round {left_at}, so round {round} of key {key:?} cannot complete; all workers must run the same number of rounds"
    )]
    PeerLeft {
        /// The job.
        job: String,
        /// Who left.
        rank: u32,
        /// The first round without it.
        left_at: u32,
        /// The round waited for.
        round: u32,
        /// The key waited for.
        key: String,
    },
    /// Somebody lives but does not push.
    #[error(
        "job {job:?}: waited {waited:?} for round {round} of key {key:?}: {missing} of {chunks} chunks have not come back; all processes are alive, so some worker has not pushed this key (raise the wait limit if it is only slow)"
    )]
    Stalled {
        /// The job.
        job: String,
        /// How long.
        waited: Duration,
        /// The round waited for.
        round: u32,
        /// The key waited for.
        key: String,
        /// Chunks that are missing.
        missing: u32,
        /// Chunks of the key.
        chunks: u32,
    },
    /// A call out of order, or a peer that broke the protocol.
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    /// A call that was made on the session's own thread panicked.
    #[error("a call on the session's thread panicked, as said on stderr; the session is over")]
    Panicked,
    /// A thread or a descriptor could not be had.
    #[error("this worker: {0}")]
    System(#[from] std::io::Error),
}
