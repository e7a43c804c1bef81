//! The registry: all jobs and workers of the hub, and the commands to their cores. It has one lock. No thread needs this
//! lock to carry out a round.
//!
//! | file | what it does |
//! | --- | --- |
//! | this file | the parts of the registry; heartbeats |
//! | `effects` | handles the reports of cores, and carries out the effects of events |
//! | `inner` | the state under the lock: the coordinator, and this hub's part of each job |
//! | `job` | this hub's own part of one job |
//! | `make` | makes a job for its first worker |
//! | `members` | admits workers, handles leaves and losses, and waits for links |
//! | `rounds` | stops rounds, checks their progress, changes the optimizer's hyperparameters |
//! | `refusal` | the reason why a request is refused |
//! | `promises` | the memory of this process |
//! | `describe` | describes the hub and its work |
//! | `recorder` | records the inputs and answers of the coordinator |
//! | `stop` | stops the hub |
//! | `thread` | a thread for work that waits |
//! | `operate` | stops jobs and the hub for its operator |
//! | `saved` | a job's state: brought, taken, saved, sent |
//! | `above` | a job whose sums go up to other hubs |
//! | `hubs` | a job over several hubs: requests to the other hubs, and answers to them |

mod above;
mod describe;
mod effects;
mod hubs;
mod inner;
mod job;
mod make;
mod members;
mod operate;
mod promises;
mod recorder;
mod refusal;
mod rounds;
mod saved;
mod stop;
#[cfg(test)]
mod test_bed;
mod thread;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::num::NonZeroU32;
use std::ops::{Deref, DerefMut};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use authority::{hex, random};
use coordinator::input::{Heard, Ready};
use coordinator::{LateLimits, News, Settings};
use hub_threads::{Command, CoreHandle};
use pbox_core::control::{Latest, TransportAddress};
use pbox_core::kernels::Kernels;
use pbox_core::{Discarded, Round};
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};

use crate::checkpoint::CheckpointStore;
use crate::open_files;
use above::Meetings;
use inner::{Both, Inner};
use job::Job;
use saved::{ForReaders, Loans};

pub(crate) use above::{HubsAbove, Up};
pub(crate) use coordinator::STOPS;
pub(crate) use recorder::Recorder;
pub(crate) use refusal::{Because, Refusal};
pub(crate) use rounds::timeline::Timeline;
pub(crate) use saved::{Instead, Offer, Reader, Sent, Wish};
pub(crate) use thread::{NoThread, on_thread};

/// The guard of the registry's lock. It publishes the news for the members of jobs before it releases the lock.
struct Locked<'a>(MutexGuard<'a, Inner>);

impl Deref for Locked<'_> {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut Inner {
        &mut self.0
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.publish();
    }
}

/// The parts from which a registry is made.
pub(crate) struct Parts {
    /// A name that is new at each start of the hub.
    pub id: String,
    pub cores: Vec<CoreHandle>,
    pub kernels: &'static Kernels,
    pub transports: Vec<TransportAddress>,
    pub heartbeat_limit: Duration,
    /// The settings by which the coordinator decides.
    pub decides: Settings,
    pub recorder: Option<Recorder>,
    pub store: Option<CheckpointStore>,
    pub checkpoint_every: Option<NonZeroU32>,
    pub discard: Sender<Discarded>,
    pub up: Up,
    pub timeline: Option<Timeline>,
    pub runtime: Handle,
    /// The sender whose channel closes when the registry is dropped. It is dropped after everything else.
    pub gone: Sender<Infallible>,
}

/// All jobs of the hub.
#[derive(Debug)]
pub(crate) struct Registry {
    me: Weak<Registry>,
    /// A name that is new at each start of the hub.
    id: String,
    /// The connections of this hub to other hubs.
    up: Up,
    /// The meetings at this hub, in which hubs of meshes learn each other's addresses.
    meetings: Meetings,
    inner: Mutex<Inner>,
    /// The signal that a worker, or the hubs above, have got the reason of the stop.
    stop_notified: Condvar,
    /// The signal that a rank, a name or a snapshot's memory is free, or that a job was made or could not be
    /// made. It wakes all waiting tasks. A task creates its `notified` future before it checks the state. So
    /// the task misses no wake-up between the check and the wait.
    pub freed: Arc<Notify>,
    store: Option<CheckpointStore>,
    checkpoint_every: Option<NonZeroU32>,
    /// The channel to the thread that frees memory.
    discard: Sender<Discarded>,
    /// The resident memory of this process when there were no jobs.
    resident_at_start: u64,
    /// The number of open files of this process when there were no jobs.
    files_at_start: u64,
    /// The memory of copies and deltas.
    for_readers: ForReaders,
    loans: Arc<Loans>,
    /// The time since which there has been no job.
    pub unused_since: watch::Sender<Option<Instant>>,
    /// Whether the hub refuses new jobs.
    pub draining: watch::Sender<bool>,
    /// The reason why the hub stops, once it stops.
    pub stops: watch::Sender<Option<String>>,
    /// The jobs whose checkpoint at the hub's stop is not written yet, or cannot be written.
    pub unsaved: watch::Sender<Vec<String>>,
    /// For each job by name: the file that this hub could not write, if any, and the reason why the job is not saved.
    unsaved_because: Mutex<BTreeMap<String, (Option<String>, String)>>,
    pub(crate) cores: Arc<[CoreHandle]>,
    kernels: &'static Kernels,
    transports: Vec<TransportAddress>,
    heartbeat_limit: Duration,
    /// The limits after which workers are late.
    pub late: LateLimits,
    /// The timeline, if the hub records the work of its cores.
    timeline: Option<Timeline>,
    /// The runtime, which only the control thread uses.
    pub(crate) runtime: Handle,
    /// The sender whose channel closes when the registry is dropped. So the hub knows that nobody uses the
    /// directory of checkpoints. As the last field, it is dropped last.
    _gone: Sender<Infallible>,
}

impl Drop for Registry {
    /// Stops the core threads and waits for them.
    fn drop(&mut self) {
        self.cores.iter().for_each(|core| core.tell(Command::Stop));
        self.cores.iter().for_each(CoreHandle::join);
    }
}

impl Registry {
    pub fn new(parts: Parts) -> Arc<Self> {
        let Parts {
            id,
            cores,
            kernels,
            transports,
            heartbeat_limit,
            decides,
            recorder,
            store,
            checkpoint_every,
            discard,
            up,
            timeline,
            runtime,
            gone,
        } = parts;
        Arc::new_cyclic(|me| Registry {
            me: me.clone(),
            id,
            up,
            meetings: Meetings::default(),
            inner: Mutex::new(Inner::new(decides, recorder)),
            stop_notified: Condvar::new(),
            freed: Arc::default(),
            checkpoint_every: checkpoint_every.filter(|_| store.is_some()),
            store,
            discard,
            resident_at_start: fabric::resident_bytes().unwrap_or(0),
            files_at_start: open_files::open().unwrap_or(0),
            for_readers: ForReaders::default(),
            loans: Arc::default(),
            unused_since: watch::Sender::new(Some(Instant::now())),
            draining: watch::Sender::default(),
            stops: watch::Sender::default(),
            unsaved: watch::Sender::default(),
            unsaved_because: Mutex::default(),
            cores: cores.into(),
            kernels,
            transports,
            heartbeat_limit,
            late: decides.late,
            timeline,
            runtime,
            _gone: gone,
        })
    }

    fn lock(&self) -> Locked<'_> {
        Locked(self.inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }

    /// Notes that all workers of a hub below have joined that hub.
    pub fn ready(self: &Arc<Self>, job: &str, token: &str, reached: Option<Round>) -> Result<(), Refusal> {
        let mut inner = self.lock();
        let (member, _) = inner.member(job, token)?;
        let effects = inner.ask(Ready { member, reached })?;
        self.carry_out(&mut inner, member.job, effects);
        Ok(())
    }

    /// Sends a command to every core of a job.
    fn command(&self, job: &Job, command: impl Fn() -> Command) {
        job.cores.numbers.iter().for_each(|&core| self.cores[core].tell(command()));
    }

    /// Returns the limit on the silence of a worker.
    pub fn heartbeat_limit(&self) -> Duration {
        self.heartbeat_limit
    }

    /// Returns the time for which the hub holds a heartbeat while there is no news. A living worker then sends its next
    /// heartbeat well within the limit.
    pub fn heartbeat_hold(&self) -> Duration {
        self.heartbeat_limit / 3
    }

    /// Handles the heartbeat of a member. A hub below also reports which of its own workers is late. Returns
    /// the channel of the job's news, and the time for which the hub holds the heartbeat while there is no
    /// news.
    pub fn heartbeat(
        &self,
        name: &str,
        token: &str,
        latest: Option<Latest>,
    ) -> Result<(watch::Receiver<News>, Duration), Refusal> {
        let mut inner = self.lock();
        let (member, (state, job)) = inner.member(name, token)?;
        let (news, who) = (job.published.subscribe(), state.spec.spoken(member.rank));
        let hold = inner.ask(Heard { member, latest }).map_err(|why| {
            Refusal::bad(format!("job {name:?}: {who} sent a heartbeat with an impossible `latest`: {why}"))
        })?;
        Ok((news, hold.unwrap_or(Duration::MAX).min(self.heartbeat_hold())))
    }
}

/// Returns 32 random hexadecimal digits.
pub(crate) fn random_name() -> std::io::Result<String> {
    random::<16>().map(|bytes| hex(&bytes))
}
