//! The errors of a session, with a variant for each cause.

use std::time::Duration;

use fabric::WindowError;
use membership::{MemberError, Missing};
use pbox_core::InvalidTerms;
use pbox_core::control::{InvalidJobName, Late};
use pbox_core::job::{InvalidNumbers, InvalidRate};

use super::config::InvalidSetting;
use crate::exchange::ExchangeError;
use crate::pull::PullError;

/// An error of a session. After an error of `push` or `wait` the session is over, and the caller should drop the
/// session. Only an error about the order of the caller's calls does not end the session.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The job could not be joined, or a hub has ended the session.
    #[error(transparent)]
    Member(#[from] MemberError),
    /// A key was pushed before the broadcast.
    #[error("the job has no weights yet: broadcast the weights once on every worker, before its first push")]
    NoWeights,
    /// The job's name is not allowed.
    #[error(transparent)]
    JobName(#[from] InvalidJobName),
    /// No job can have these terms.
    #[error("this worker's terms: {0}")]
    Terms(#[from] InvalidTerms),
    /// The settings of pulls in batches are wrong.
    #[error("this worker's settings: {0}")]
    Pull(#[from] PullError),
    /// A setting does not fit the other settings.
    #[error("this worker's {0}")]
    Setting(#[from] InvalidSetting),
    /// The file of the timeline cannot be written.
    #[error("PHUB_TRACE, or this worker's setting \"trace\": {0}")]
    Trace(#[from] timeline::TraceError),
    /// No step can have this learning rate.
    #[error(transparent)]
    LearningRate(#[from] InvalidRate),
    /// The job cannot continue with these hyperparameters of its optimizer.
    #[error("the optimizer's hyperparameters: {0}")]
    Numbers(#[from] InvalidNumbers),
    /// There was no memory for a window.
    #[error("this worker's window: {0}")]
    Window(#[from] WindowError),
    /// Other workers did not join in time.
    #[error(
        "job {job:?}: waited {waited:.0?} for {}; start them, or raise the join limit", missing.spoken(*workers)
    )]
    Missing {
        /// The job.
        job: String,
        /// The time that this worker waited.
        waited: Duration,
        /// The members that are missing.
        missing: Missing,
        /// The number of workers in the job.
        workers: u32,
    },
    /// A worker left before the round that this worker waits for.
    #[error(
        "job {job:?}: worker {rank} left before round {left_at}, so round {round} of key {key:?} cannot complete; all workers must run the same number of rounds"
    )]
    PeerLeft {
        /// The job.
        job: String,
        /// The rank that left.
        rank: u32,
        /// The first round without that worker.
        left_at: u32,
        /// The round that this worker waits for.
        round: u32,
        /// The key that this worker waits for.
        key: String,
    },
    /// All workers are alive, but some worker has not pushed within the wait limit.
    #[error(
        "job {job:?}: waited {waited:.0?} for round {round} of key {key:?}: {missing} of {chunks} \
         chunks have no answer yet; {} (raise the wait limit if the round is only slow)",
        spoken(late)
    )]
    Stalled {
        /// The job.
        job: String,
        /// The time that this worker waited.
        waited: Duration,
        /// The round that this worker waits for.
        round: u32,
        /// The key that this worker waits for.
        key: String,
        /// The number of chunks that are missing.
        missing: u32,
        /// The number of chunks of the key.
        chunks: u32,
        /// The late workers that the hubs have named.
        late: Vec<Late>,
    },
    /// A call out of order, or a hub that broke the protocol.
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    /// A caller's call panicked on the session's thread.
    #[error("a call on the session's thread panicked; stderr has the message, and the session is over")]
    Panicked,
    /// The system gave no thread, descriptor or other resource.
    #[error("this worker: {0}")]
    System(#[from] std::io::Error),
}

/// Describes the late workers.
fn spoken(late: &[Late]) -> String {
    if late.is_empty() {
        return "all processes are alive, so some worker has not pushed this key".to_owned();
    }
    late.iter().map(Late::to_string).collect::<Vec<_>>().join("; ")
}
