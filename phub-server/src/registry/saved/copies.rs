//! Copies of a job's state, each for all clients that waited for it. A job has at most two copies.
//!
//! ```text
//!   client a --> want --> its turn --> cut --> copy 1 --> b waits: copy 1 is the older one ---> a has it --.
//!   client b, c, while a reads --> one want ---> its turn --> cut --> copy 2: the newest                   |
//!   client d, while all read --> want ------------------------------------------------------ its turn <----'--> cut --> ...
//! ```
//!
//! A copy is the memory in which the cores took their snapshot. They take the next snapshot in other memory. The memory of a copy
//! goes back to the cores if clients follow the job.
//!
//! So one slow client delays no other client. While a client waits for room for a copy, the clients of the older copy must
//! read faster.
//!
//! This module does not depend on the registry: `clients` makes the copies.
//!
//! A client never gets a state that is older than its request. A want is a request for the state. Its cut is the pause of the job
//! in which the cores take the state. So no client joins a want after its cut, unless both requests name the same round.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, Weak};

use coordinator::{CutAt, WantId};
use pbox_core::{Dtype, Round, Selection, Share, SnapshotPart};
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use super::deltas::Rows;
use super::for_readers::ForReaders;
use crate::checkpoint::Image;
use crate::registry::Refusal;

/// The state that clients want.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct What {
    pub selection: Selection,
    /// The element type of the file.
    pub dtype: Dtype,
    pub at: CutAt,
    /// The hub's share.
    pub share: Share,
    /// A name that differs between jobs with the same job name, for clients that put parts together. `None` if the
    /// share is the whole job.
    pub run: Option<String>,
}

/// A checkpoint file in memory. When it is dropped, the next clients have their turn. A thread that holds the
/// registry's lock must not drop this value.
pub(super) struct StateFile {
    pub image: Image,
    /// The round before which the job had the state.
    pub before: Round,
    /// The time at which the snapshot was taken.
    pub taken: Instant,
    /// The memory of the values.
    pub memory: ForReaders,
    /// Whether other clients wait until this file is dropped.
    pub is_in_the_way: watch::Sender<bool>,
    /// The call that takes back the file's memory when the file is dropped.
    gone: Option<Gone>,
    /// The turn to get a copy. The newest file has the turn, so that other clients wait.
    pub turn: Mutex<Option<AtEnd>>,
}

/// A call that takes back the memory of a file that no client still needs.
type Gone = Box<dyn FnOnce(Vec<SnapshotPart>) + Send + Sync>;

impl StateFile {
    /// Creates a file. `turn` keeps other clients waiting while the file is the newest. `gone` is called when the file is
    /// dropped.
    pub fn new(
        (image, memory): (Image, ForReaders),
        (before, taken): (Round, Instant),
        turn: AtEnd,
        gone: Gone,
    ) -> Self {
        let (is_in_the_way, turn) = (watch::Sender::new(false), Mutex::new(Some(turn)));
        StateFile { image, before, taken, memory, is_in_the_way, gone: Some(gone), turn }
    }
}

impl Drop for StateFile {
    fn drop(&mut self) {
        let parts = self.image.take_parts();
        if let Some(gone) = self.gone.take() {
            gone(parts);
        }
    }
}

impl fmt::Debug for StateFile {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("StateFile").field("before", &self.before).finish_non_exhaustive()
    }
}

/// The answer to the clients that wait for one copy.
pub(super) type Copied = Result<Arc<StateFile>, Refusal>;

/// The copies of a job's state.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    /// The waiting clients, by the request for the state (want) that they share.
    pub(super) waiting: HashMap<WantId, (What, Vec<oneshot::Sender<Copied>>)>,
    /// The newest copy. It has the turn, so the next request for the state waits.
    pub(super) newest: Weak<StateFile>,
    /// The copy before the newest copy.
    pub(super) older: Weak<StateFile>,
    /// The bytes of memory that the cores keep for the next copy.
    pub(super) kept: u64,
    /// The count of the kept memory, unless the memory that is promised to the job includes it.
    pub(super) kept_memory: ForReaders,
    /// The differences between the states that clients got.
    pub(super) rows: Rows,
}

/// A call that is made when this value is dropped. The call takes the registry's lock, so a thread that
/// holds the lock must not drop the value.
pub(super) struct AtEnd(Option<Box<dyn FnOnce() + Send + Sync>>);

impl AtEnd {
    /// Creates a value that makes this call.
    pub fn new(call: impl FnOnce() + Send + Sync + 'static) -> Self {
        AtEnd(Some(Box::new(call)))
    }
}

impl Drop for AtEnd {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(|call| call());
    }
}

impl fmt::Debug for AtEnd {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("AtEnd")
    }
}
