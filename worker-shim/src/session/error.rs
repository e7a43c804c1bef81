//! What can go wrong in a session, one variant a cause.

use std::time::Duration;

use fabric::WindowError;
use fabric::any::ConnectError;
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
    /// The list of hubs is none.
    #[error(
        "hubs {seen:?}: {why}; expected host:port, or 2 to {} different ones with commas between them",
        pbox_core::MAX_HUBS
    )]
    Hubs {
        /// What was given.
        seen: String,
        /// What is wrong with it.
        why: String,
    },
    /// The hub and this worker place chunks differently.
    #[error(
        "the hub at {hub} places its share of the chunks differently from this worker (digest {theirs}, expected {ours}): are hub and worker of the same version?"
    )]
    Placement {
        /// Its address.
        hub: String,
        /// The hub's digest.
        theirs: String,
        /// This worker's.
        ours: String,
    },
    /// The control port could not be reached.
    #[error(
        "cannot reach the hub's control port at {hub}: {cause}; is phub-server running there, and is the address right?"
    )]
    Unreachable {
        /// Its address.
        hub: String,
        /// Why not.
        cause: String,
    },
    /// The hub said no to a request.
    #[error("the hub at {hub} refused to {what}: {why}")]
    Refused {
        /// Its address.
        hub: String,
        /// What was asked.
        what: &'static str,
        /// The hub's words.
        why: String,
    },
    /// The hub's answer makes no sense.
    #[error(
        "the hub at {hub} answered to {what} with {saw}; expected protocol {}: is it a phub-server of this version?",
        pbox_core::control::PROTOCOL
    )]
    Nonsense {
        /// Its address.
        hub: String,
        /// What was asked.
        what: &'static str,
        /// What came.
        saw: String,
    },
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
    /// The data path could not be made.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// No transport that this worker may use leads to the hub.
    #[error("no way to the data path of the hub at {hub}:{}", list(.tried))]
    NoTransport {
        /// The hub's address.
        hub: String,
        /// Each transport, and why not by it.
        tried: Vec<String>,
    },
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
    /// The job failed: a worker died, or broke the protocol.
    #[error("job {job:?} failed: {reason}")]
    JobFailed {
        /// The job.
        job: String,
        /// The hub's words.
        reason: String,
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
    /// The hub died or was cut off.
    #[error("job {job:?}: lost the hub at {hub}: {cause}")]
    HubLost {
        /// The job.
        job: String,
        /// Its address.
        hub: String,
        /// What was seen.
        cause: String,
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
    /// The state that this worker brings is none.
    #[error(
        "job {job:?}: the state that this worker brings {why}; expected {bytes} bytes: f32 of all keys' weights, then of what the optimizer keeps"
    )]
    State {
        /// The job.
        job: String,
        /// What is wrong with it.
        why: String,
        /// How long it must be.
        bytes: u64,
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

fn list(lines: &[String]) -> String {
    lines.iter().map(|line| format!("\n    {line}")).collect()
}
