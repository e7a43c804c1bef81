//! The parts of a snapshot that have arrived, and a job's checkpoint state. Each job owns one [`Checkpoints`]; nothing
//! here uses `Registry`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use coordinator::{AskedId, JobEnded, NoState, WantId};
use hub_threads::{Command, CoreHandle};
use pbox_core::control::{CheckpointReply, WrittenReply};
use pbox_core::{JobId, Occasion, Round, Snapshot, SnapshotPart};

use super::copies::Copies;
use super::reads::Reads;
use crate::log_limiter::LogLimiter;
use crate::registry::rounds::waits::Waiting;

/// The time that a request waits for the round in flight while workers compute.
pub(crate) const ROUND_LIMIT: Duration = Duration::from_secs(30);

/// This hub's own data of one job's checkpoints. The coordinator has all other data of the checkpoints.
#[derive(Debug, Default)]
pub(crate) struct Checkpoints {
    /// The snapshots that wait for parts.
    pub(super) collecting: HashMap<Occasion, Collected>,
    /// The requests that want the state.
    pub(crate) wanted: Waiting<WantId, Result<Met, NoState>>,
    /// The clients that wait for a copy of the state.
    pub(super) copies: Copies,
    /// The counts of the clients.
    pub(crate) reads: Arc<Reads>,
    /// The questions of hub 0 about this hub's part of a checkpoint.
    pub(crate) asked: Waiting<AskedId, WrittenReply>,
    /// The lock that a thread holds while it writes a file. The last state of a failed job waits for this lock, so it
    /// is written last.
    pub(super) writing: Arc<Mutex<()>>,
    /// The count of failures. The log mentions only some failures.
    pub(super) failures: LogLimiter,
    /// The reason why the job did not continue from its newest checkpoint.
    pub warning: Option<String>,
}

/// The result of a request for the state.
#[derive(Debug)]
pub(crate) enum Met {
    /// A file is written.
    Written(CheckpointReply),
    /// The parts of a snapshot are here.
    State(Collected),
}

impl Checkpoints {
    /// Ends all waits, because the job has failed.
    pub(crate) fn end(&mut self) {
        (self.wanted, self.asked) = (Waiting::default(), Waiting::default());
        self.copies = Copies::default();
    }
}

/// The parts of a snapshot, each with its core. If this value is dropped, the snapshot is not written, and the cores
/// get the memory of their parts back.
#[derive(Debug)]
pub(crate) struct Collected {
    pub(super) cores_of_hub: Weak<[CoreHandle]>,
    pub job: JobId,
    /// The reason for the snapshot.
    pub occasion: Occasion,
    pub before: Round,
    pub(super) cores: Vec<usize>,
    pub(super) parts: Vec<SnapshotPart>,
}

impl Collected {
    /// Takes a core's part.
    pub(super) fn take(&mut self, core: usize, part: SnapshotPart) {
        self.cores.push(core);
        self.parts.push(part);
    }

    /// Gives back a snapshot that was made of the parts, and is no longer needed.
    pub(crate) fn give_back(mut self, mut snapshot: Snapshot) {
        self.parts = snapshot.take_parts();
    }

    /// Lets the cores take the next snapshot in other memory. Returns the cores, in the order of their parts.
    pub(super) fn go_on(mut self) -> Vec<usize> {
        self.end(Vec::new());
        std::mem::take(&mut self.cores)
    }

    /// Tells the cores that they may take the next snapshot, in the memory of these parts.
    fn end(&self, parts: Vec<SnapshotPart>) {
        let Some(all) = self.cores_of_hub.upgrade() else { return };
        let mut parts = parts.into_iter();
        for &core in &self.cores {
            let values = parts.next().map(|part| part.values);
            all[core].tell(Command::GiveBack { job: self.job, values });
        }
    }
}

impl Drop for Collected {
    fn drop(&mut self) {
        let parts = std::mem::take(&mut self.parts);
        self.end(parts);
    }
}

/// Returns the error that the job of a wanted state has ended.
pub(super) fn ended(ended: JobEnded) -> NoState {
    NoState::Other(ended.into())
}
