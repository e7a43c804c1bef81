//! The registry: all jobs and workers of the hub, and the commands to cores that follow from what
//! happens to them. One lock, never taken on the round path.
//!
//! Here: what is heard of workers, and what follows. `join`: how they come in. `make`: how a job is made for
//! the first of them. `loss`: how workers are lost and jobs fail. `cut`: how a running
//! job is stopped between two rounds for them. `checkpoint`: how its state comes to its file. `state`: how a state is
//! brought, and given to those who ask.

#[cfg(test)]
mod bed;
mod checkpoint;
mod cut;
mod job;
mod join;
mod loss;
mod make;
mod state;

use std::collections::{HashMap, HashSet};
use std::num::NonZeroU32;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use fabric::any;
use pbox_core::control::{CoreReply, HeartbeatReply, HubReply, JobState, PROTOCOL, TransportAddress};
use pbox_core::kernels::Kernels;
use pbox_core::{JobId, Round};
use tokio::sync::{Notify, oneshot, watch};

use crate::checkpoint::CheckpointStore;
use crate::cores::{Command, CoreHandle, Report};
use job::{Arrival, Job};

pub use checkpoint::Unsaved;
pub(crate) use join::Admission;
pub(crate) use state::Sent;

/// How long a failed job, and the reason why a worker is not wanted any more, are kept for those who
/// have not heard of it.
const KEEP_FAILED: Duration = Duration::from_secs(60);

/// Why a request is not granted; the text is for the person who made it.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The request itself is wrong.
    Bad(String),
    /// It does not fit what is there.
    Conflict(String),
    /// It does not fit yet: ask again.
    Busy(String),
    /// Nobody of that name or token is here.
    Gone(String),
    /// The hub is out of something.
    Exhausted(String),
}

/// How long a job's end waits for the round in flight: all have left, so there is none, unless one left
/// in mid-round.
const CHECKPOINT_AT_END: Duration = Duration::from_secs(2);

type Token = [u8; 16];

#[derive(Debug)]
struct Inner {
    jobs: HashMap<JobId, Job>,
    /// Jobs that have not failed, by name.
    names: HashMap<String, JobId>,
    /// Names of jobs that are being made, outside the lock.
    making: HashMap<String, make::Load>,
    tokens: HashMap<Token, (JobId, u32)>,
    /// Workers that jobs went on without, until when that is remembered, and why.
    lost: HashMap<Token, (Instant, String)>,
    failed_at: HashMap<JobId, Instant>,
    next_job: u64,
    stopping: bool,
    /// Workers that have not heard yet that the hub stops.
    untold: HashSet<(JobId, u32)>,
}

/// All jobs of the hub.
#[derive(Debug)]
pub(crate) struct Registry {
    inner: Mutex<Inner>,
    /// Somebody left `untold`.
    told: Condvar,
    /// A rank of some job is free again, or the memory of a snapshot; or a job is made, or cannot be.
    freed: Notify,
    store: Option<CheckpointStore>,
    checkpoint_every: Option<NonZeroU32>,
    unsaved: Unsaved,
    cores: Vec<CoreHandle<any::Endpoint>>,
    kernels: &'static Kernels,
    transports: Vec<TransportAddress>,
    heartbeat_limit: Duration,
}

impl Registry {
    pub fn new(
        cores: Vec<CoreHandle<any::Endpoint>>,
        kernels: &'static Kernels,
        transports: Vec<TransportAddress>,
        heartbeat_limit: Duration,
        store: Option<CheckpointStore>,
        checkpoint_every: Option<NonZeroU32>,
    ) -> Self {
        let inner = Inner {
            jobs: HashMap::new(),
            names: HashMap::new(),
            making: HashMap::new(),
            tokens: HashMap::new(),
            lost: HashMap::new(),
            failed_at: HashMap::new(),
            next_job: 0,
            stopping: false,
            untold: HashSet::new(),
        };
        Registry {
            inner: Mutex::new(inner),
            told: Condvar::new(),
            freed: Notify::new(),
            checkpoint_every: checkpoint_every.filter(|_| store.is_some()),
            store,
            unsaved: Unsaved::default(),
            cores,
            kernels,
            transports,
            heartbeat_limit,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// What a stop has still to write, for those who wait for it.
    pub fn unsaved(&self) -> Unsaved {
        self.unsaved.clone()
    }

    /// How long the hub holds a heartbeat that has no news: so short that a living worker's next
    /// one comes well within the limit.
    pub fn heartbeat_hold(&self) -> Duration {
        self.heartbeat_limit / 3
    }

    /// A core thread has something to say.
    pub fn report(self: &Arc<Self>, report: Report) {
        let mut inner = self.lock();
        match report {
            Report::Attached { job, rank } => {
                let arrival = inner.jobs.get_mut(&job).map(|job| job.attached(rank));
                match arrival.unwrap_or(Arrival::Waiting) {
                    Arrival::Waiting => {}
                    Arrival::Complete(ranks) => self.admit(job, ranks),
                    Arrival::Newcomer(rank) => self.admit(job, Arc::new([rank])),
                }
            }
            Report::Removed { job, rank } => {
                if let Some(job) = inner.jobs.get_mut(&job) {
                    job.removed(rank);
                    self.freed.notify_waiters();
                }
            }
            Report::WorkerGone { job, rank, reason } => {
                self.lose(&mut inner, job, rank, &format!("worker {rank} is gone: {reason}"));
            }
            Report::Snapshot { job, core, taken } => {
                if let Some(job) = inner.jobs.get_mut(&job) {
                    self.taken(job, core, taken);
                }
            }
            Report::SaveAll { done } => {
                let registry = Arc::clone(self);
                tokio::spawn(async move {
                    registry.checkpoint_all().await;
                    let _ = done.send(());
                });
            }
            Report::Skipped { job, chunks } => {
                if let Some(job) = inner.jobs.get(&job) {
                    let why = "all workers of some rounds are gone";
                    tracing::warn!(job = job.name, chunks, why, "chunks keep their weights for these rounds");
                }
            }
            Report::JobFailed { job, reason } => self.fail(&mut inner, job, &reason),
            Report::CorePanicked { cpu } => {
                drop(inner);
                // Its chunks have no owner any more, and no new job could have all of its own.
                let reason = format!(
                    "the hub's core thread on cpu {cpu} panicked (its log says why); restart the hub"
                );
                tracing::error!(reason);
                self.stop(&reason);
            }
        }
    }

    /// Tells every core of a job something.
    fn command(&self, job: &Job, command: impl Fn(JobId) -> Command<any::Endpoint>) {
        job.cores.numbers.iter().for_each(|&core| self.cores[core].send(command(job.id)));
    }

    /// A worker's heartbeat: its job's news from now on.
    pub fn heartbeat(&self, job: &str, token: &str) -> Result<watch::Receiver<HeartbeatReply>, Refusal> {
        let mut inner = self.lock();
        let (id, rank) = inner.find(job, token)?;
        let job = inner.jobs.get_mut(&id).expect("tokens name jobs that exist");
        if let Some(member) = &mut job.members[rank as usize] {
            member.heard = Instant::now();
        }
        Ok(job.subscribe())
    }

    /// A worker leaves; before the last one's leave is through, the job's state is in its checkpoint.
    pub async fn leave(self: &Arc<Self>, job: &str, token: &str, round: Round) -> Result<(), Refusal> {
        let (id, rank) = self.lock().find(job, token)?;
        let last = |job: &Job| job.state() == JobState::Running && !job.has_others(rank);
        let saved = self.store.is_some() && self.lock().jobs.get(&id).is_some_and(last);
        if saved && let Err(why) = self.checkpoint_job(id, CHECKPOINT_AT_END).await {
            tracing::warn!(job, why, "no checkpoint at the job's end");
        }
        self.leave_now(job, token, round)
    }

    /// When others still gather, the job cannot begin without it.
    fn leave_now(&self, job: &str, token: &str, round: Round) -> Result<(), Refusal> {
        let mut inner = self.lock();
        let (id, rank) = inner.find(job, token)?;
        let job = inner.jobs.get_mut(&id).expect("tokens name jobs that exist");
        if let JobState::Gathering { missing } = job.state() {
            let reason = format!("worker {rank} gave up waiting for worker(s) {missing:?}");
            self.fail(&mut inner, id, &reason);
            return Ok(());
        }
        if job.failed() {
            // Nothing to leave. Its name may be another job's by now.
            return Ok(());
        }
        tracing::info!(job = job.name, rank, round = round.0, "worker left");
        let last = job.left(rank, round);
        if last {
            tracing::info!(job = job.name, "job ended: all workers left");
            self.command(job, |job| Command::RemoveJob { job });
            let job = inner.jobs.remove(&id).expect("found above");
            inner.names.remove(&job.name);
        } else {
            self.command(job, |job| Command::RemoveWorker { job, rank });
        }
        inner.forget(id, rank, None);
        Ok(())
    }

    /// Changes a job's learning rate; each receiver answers when its core has it.
    pub fn set_learning_rate(
        &self,
        job: &str,
        token: &str,
        from: Round,
        rate: f32,
    ) -> Result<Vec<oneshot::Receiver<()>>, Refusal> {
        if !rate.is_finite() {
            return Err(Refusal::Bad(format!("learning rate {rate}: expected a finite number")));
        }
        let mut inner = self.lock();
        let (id, rank) = inner.find(job, token)?;
        inner.jobs.get_mut(&id).expect("tokens name jobs that exist").learning_rates.change(from, rate);
        tracing::info!(job, rank, rate, from_round = from.0, "learning rate changes");
        let tell = |&core: &usize| {
            let (done, answer) = oneshot::channel();
            self.cores[core].send(Command::SetLearningRate { job: id, from, rate, done });
            answer
        };
        Ok(inner.jobs[&id].cores.numbers.iter().map(tell).collect())
    }

    /// Stops the core threads and waits for them.
    pub fn stop_cores(mut self) {
        self.cores.iter().for_each(|core| core.send(Command::Stop));
        self.cores.iter_mut().for_each(CoreHandle::join);
    }

    /// Who this is and how it does.
    pub fn describe(&self) -> HubReply {
        use std::sync::atomic::Ordering::Relaxed;
        let core = |core: &CoreHandle<any::Endpoint>| CoreReply {
            cpu: core.lane.cpu,
            nic: core.lane.nic.as_ref().map(|nic| nic.device.clone()),
            chunks: core.meters.chunks.load(Relaxed),
            chunk_bytes: core.meters.chunk_bytes.load(Relaxed),
            busy_ns: core.meters.busy_ns.load(Relaxed),
            waiting_ns: core.meters.waiting_ns.load(Relaxed),
        };
        HubReply {
            protocol: PROTOCOL,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            kernels: self.kernels.name().to_owned(),
            rss_bytes: fabric::resident_bytes().unwrap_or(0),
            transports: self.transports.clone(),
            cores: self.cores.iter().map(core).collect(),
            jobs: self.lock().jobs.values().map(Job::describe).collect(),
        }
    }
}

impl Inner {
    fn find(&self, job: &str, token: &str) -> Result<(JobId, u32), Refusal> {
        let token = u128::from_str_radix(token, 16).unwrap_or(0).to_be_bytes();
        if let Some((_, why)) = self.lost.get(&token) {
            return Err(Refusal::Gone(why.clone()));
        }
        match self.tokens.get(&token) {
            Some(&(id, rank)) if self.jobs[&id].name == job => Ok((id, rank)),
            _ => Err(Refusal::Gone(format!(
                "no worker of job {job:?} has this token: it left, or its job ended more than {} s ago; join again",
                KEEP_FAILED.as_secs()
            ))),
        }
    }

    /// A worker's token is good for nothing any more; `told` is what its bearer hears.
    fn forget(&mut self, id: JobId, rank: u32, told: Option<String>) {
        let Some((&token, _)) = self.tokens.iter().find(|&(_, &member)| member == (id, rank)) else { return };
        self.tokens.remove(&token);
        if let Some(told) = told {
            self.lost.insert(token, (Instant::now() + KEEP_FAILED, told));
        }
    }
}
