//! Reports: events that a core thread reports without being asked, as data that can be printed.

use pbox_core::{AnswersAbove, JobId, Taken};

/// A report of a core thread. Each worker and each job causes only a few reports, so the length of the
/// channel has a bound.
#[derive(Debug)]
#[allow(missing_docs)] // each variant says what its fields are for
pub enum Report {
    /// This core has the worker's link.
    Attached { job: JobId, rank: u32 },
    /// This core has dropped the worker, and reports nothing more about it.
    Removed { job: JobId, rank: u32 },
    /// This core has dropped the links that a worker has lost, and reports nothing more about these links.
    Unlinked { job: JobId, rank: u32 },
    /// The worker's link ended by itself, or could not be made, or the worker broke the protocol.
    WorkerGone { job: JobId, rank: u32, reason: String, by_itself: bool },
    /// This core has dropped the links to hubs above, over which these answers had arrived. It reports nothing more about these
    /// links.
    UnlinkedAbove { job: JobId, answers: AnswersAbove },
    /// A link to a hub above ended.
    AboveGone { job: JobId, reason: String },
    /// This core has taken its part of a snapshot, or cannot take the part.
    Snapshot { job: JobId, core: usize, taken: Box<Taken> },
    /// The memory of this core's part of a snapshot is free again.
    Freed { job: JobId, core: usize },
    /// This number of the core's chunks skipped rounds for which no worker was left.
    Skipped { job: JobId, chunks: u64 },
    /// The core cannot add the job, or cannot continue it.
    JobFailed { job: JobId, reason: String },
    /// The thread has panicked, which is a bug of the hub.
    CorePanicked { cpu: u32 },
}
