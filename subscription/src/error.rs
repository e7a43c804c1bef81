//! The reasons why there are no weights, or no next version.

use std::io;
use std::ops::Range;

use membership::MemberError;
use pbox_core::control::{InvalidJobName, Only};
use versions::{NotWeights, VersionError};

/// The reason why there are no weights.
#[derive(Debug, thiserror::Error)]
pub enum NoWeights {
    /// The hub cannot be reached, or was restarted, and its jobs may return. The text is the reason.
    #[error("{0}")]
    Away(String),
    /// Weights may come later. The text is the reason why there are none now.
    #[error("{0}")]
    NotYet(String),
    /// The hub has no such job.
    #[error("{0}")]
    NoJob(String),
    /// The hub, or its job, was away for too long. The text says for how long, and gives the last reason.
    #[error("{0}")]
    Lost(String),
    /// No weights will come.
    #[error(transparent)]
    Never(#[from] SourceError),
}

/// A job whose weights cannot be read, now or later.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // each variant is its message; the message prints the fields
pub enum SourceError {
    #[error(transparent)]
    JobName(#[from] InvalidJobName),

    #[error(transparent)]
    Hub(#[from] MemberError),

    #[error("there are more than {most} levels of hubs above job {job:?}")]
    Levels { job: String, most: usize },

    #[error(
        "the number of hubs given for job {job:?} is {given}; expected all {hubs} hubs of the job: HOST:PORT,HOST:PORT"
    )]
    HubCount { job: String, given: usize, hubs: u32 },

    #[error(
        "{first} and {second} are both hub {number} of job {job:?}; give each of the job's {hubs} hubs once"
    )]
    SameHub { job: String, first: String, second: String, number: u32, hubs: u32 },

    #[error(
        "the hubs at {first} and {second} have different jobs with the name {job:?}; give the hubs of one job"
    )]
    OtherJobs { job: String, first: String, second: String },

    #[error("there is no part of job {job:?} at {hubs}; name all hubs of the job")]
    NoPart { job: String, hubs: String },

    #[error("the state of job {job:?} has no weights, so nothing can be read")]
    NoTensor { job: String },

    #[error("job {job:?} has {keys} keys, and its hubs gave {given}; name all hubs of the job")]
    Keys { job: String, keys: usize, given: usize },

    #[error("a hub does not say the shape of key {key:?}; install the same version at both ends")]
    NoShape { key: String },

    #[error(
        "the hubs differ in the shape of key {key:?}: {first:?} and {second:?}; give the hubs of one job"
    )]
    Shape { key: String, first: Vec<usize>, second: Vec<usize> },

    #[error(
        "key {key:?} of job {job:?}: expected its elements from {from} on, and a hub gave {values} values for elements {elements:?}; give \
         each hub of the job once"
    )]
    Elements { job: String, key: String, from: usize, values: usize, elements: Range<usize> },

    #[error("the hub at {hub} does not say how long the state is; install the same version at both ends")]
    NoLength { hub: String },

    #[error(
        "the hub at {hub} says that the {only} of job {job:?} have {bytes} bytes, and the job's model has room for {most}; install the \
         same version at both ends"
    )]
    Length { hub: String, job: String, only: Only, bytes: u64, most: u64 },

    #[error(
        "the hub at {hub} gave the state of job {job:?} before round {seen}, and was asked for round {expected}; install the same \
         version at both ends"
    )]
    Round { hub: String, job: String, seen: u32, expected: u32 },

    #[error(
        "job {job:?} would have two tensors with the name {name:?}, of key {first:?} and of key {second:?}; give each of them another \
         name in the mapping of names"
    )]
    OneName { job: String, first: String, second: String, name: String },

    #[error("job {job:?} has no key {key:?}, which the mapping of names calls {name:?}")]
    NoKey { job: String, key: String, name: String },

    #[error(
        "key {key:?} of job {job:?} is in two entries of the mapping of names, for tensors {first:?} and {second:?}; expected one"
    )]
    TwoEntries { job: String, key: String, first: String, second: String },

    #[error(transparent)]
    Misfit(Box<Misfit>),

    #[error("key {key:?} of job {job:?}: {error}")]
    Tensor { job: String, key: String, error: NotWeights },
}

/// An error: a part does not fit. The part is a tensor of a key, or a key of a tensor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("key {key:?} {of_key:?} of job {job:?} and tensor {name:?} {shape:?}: {why}")]
#[allow(missing_docs)] // the message prints the fields
pub struct Misfit {
    pub job: String,
    pub key: String,
    pub of_key: Vec<usize>,
    pub name: String,
    pub shape: Vec<usize>,
    pub why: Unfit,
}

/// The reason why a part does not fit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // each variant is its message
pub enum Unfit {
    #[error("expected a part of shape [{expected}]; only the first dimension can be cut or joined")]
    Dimensions { expected: String },

    #[error(
        "the part has {rows} rows, and the previous parts leave room for {room}; correct the shapes or their order"
    )]
    Room { rows: usize, room: usize },

    #[error(
        "the parts end here, and {rows} rows are in no part; add the missing parts, or correct the shapes"
    )]
    Missing { rows: usize },
}

/// The reason why a subscription has no next version.
#[derive(Debug, thiserror::Error)]
pub enum SubscriptionError {
    /// The job cannot be read. The next call tries again.
    #[error(transparent)]
    Source(SourceError),
    /// The hub, or the job that it had, was away for longer than the limit.
    #[error("{0}")]
    Lost(String),
    /// A version in the directory is damaged. The next call waits for a newer version.
    #[error(transparent)]
    Directory(#[from] VersionError),
    /// There was no version within the timeout.
    #[error("no version within the timeout: {why}")]
    Timeout {
        /// The reason why there was none.
        why: String,
    },
    /// The caller has interrupted the wait.
    #[error("the wait for the next version was interrupted")]
    Interrupted,
    /// Another thread waits for the next version of this subscription.
    #[error("another thread waits for the next version; make a subscription for each thread")]
    Busy,
    /// The subscription was made before a fork, and this is the child.
    #[error("the subscription belongs to the process that forked this one; subscribe in this process")]
    OtherProcess,
    /// The system gave no thread.
    #[error("cannot start the thread that reads the weights: {0}")]
    Thread(io::Error),
    /// The thread that read the weights has ended.
    #[error("the thread that read the weights is gone; subscribe anew")]
    Gone,
}
