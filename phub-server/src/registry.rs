//! The registry: all jobs and workers of the hub, and the commands to cores that follow from what
//! happens to them. One lock, never taken on the round path.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use fabric::{RecvWindow, SendWindow, Span, shm};
use pbox_core::control::{
    CoreReply, HeartbeatReply, HubReply, JobState, JoinReply, JoinRequest, MAX_WORKERS, PROTOCOL,
    TransportAddress, check_job_name,
};
use pbox_core::kernels::Kernels;
use pbox_core::{ChunkId, JobId, Layout, Placement, Round, ShardSpec, manifest};
use tokio::sync::{oneshot, watch};

use crate::core_thread::{Command, CoreHandle, Report};
use crate::job::Job;

/// How long a failed job is kept for workers that have not heard of it.
const KEEP_FAILED: Duration = Duration::from_secs(60);

/// Why a request is not granted; the text is for the person who made it.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The request itself is wrong.
    Bad(String),
    /// It does not fit what is there.
    Conflict(String),
    /// Nobody of that name or token is here.
    Gone(String),
    /// The hub is out of something.
    Exhausted(String),
}

/// What a data-path connection needs once its token is known.
#[derive(Debug)]
pub(crate) struct Admission {
    pub job: JobId,
    pub rank: u32,
    pub weights: Arc<SendWindow>,
    pub window_bytes: usize,
    pub capacities: Vec<u32>,
}

type Token = [u8; 16];

#[derive(Debug)]
struct Inner {
    jobs: HashMap<JobId, Job>,
    /// Jobs that have not failed, by name.
    names: HashMap<String, JobId>,
    tokens: HashMap<Token, (JobId, u32)>,
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
    cores: Vec<CoreHandle<shm::Endpoint>>,
    kernels: &'static Kernels,
    address: String,
    heartbeat_limit: Duration,
}

impl Registry {
    pub fn new(
        cores: Vec<CoreHandle<shm::Endpoint>>,
        kernels: &'static Kernels,
        address: String,
        heartbeat_limit: Duration,
    ) -> Self {
        let inner = Inner {
            jobs: HashMap::new(),
            names: HashMap::new(),
            tokens: HashMap::new(),
            failed_at: HashMap::new(),
            next_job: 0,
            stopping: false,
            untold: HashSet::new(),
        };
        Registry { inner: Mutex::new(inner), told: Condvar::new(), cores, kernels, address, heartbeat_limit }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// How long the hub holds a heartbeat that has no news: so short that a living worker's next
    /// one comes well within the limit.
    pub fn heartbeat_hold(&self) -> Duration {
        self.heartbeat_limit / 3
    }

    /// Admits a worker; the first of a name makes the job.
    pub fn join(&self, name: &str, request: JoinRequest) -> Result<JoinReply, Refusal> {
        check_request(name, &request)?;
        let mut inner = self.lock();
        if inner.stopping {
            return Err(Refusal::Gone("the hub is stopping".into()));
        }
        let rank = request.rank;
        let id = match inner.names.get(name) {
            Some(&id) => {
                inner.jobs[&id].admits(&request).map_err(Refusal::Conflict)?;
                id
            }
            None => self.create(&mut inner, name, request)?,
        };
        let token = new_token()?;
        inner.tokens.insert(token, (id, rank));
        let job = inner.jobs.get_mut(&id).expect("named jobs exist");
        job.add_member(rank);
        tracing::info!(job = name, rank, workers = job.terms.workers, "worker joined");
        Ok(JoinReply {
            token: format!("{:032x}", u128::from_be_bytes(token)),
            cores: self.cores.len() as u32,
            transport: TransportAddress::Shm { address: self.address.clone() },
            heartbeat_limit_ms: self.heartbeat_limit.as_millis() as u64,
        })
    }

    fn create(&self, inner: &mut Inner, name: &str, terms: JoinRequest) -> Result<JobId, Refusal> {
        let bad = |error: String| Refusal::Bad(format!("job {name:?}: {error}"));
        let layout = Layout::new(terms.keys.clone(), terms.chunk_bytes).map_err(|e| bad(e.to_string()))?;
        check_memory(&layout, &terms)
            .map_err(|error| Refusal::Exhausted(format!("job {name:?}: {error}")))?;
        let layout = Arc::new(layout);
        let window = SendWindow::new(layout.window_bytes())
            .map_err(|e| Refusal::Exhausted(format!("job {name:?}: weights: {e}")))?;

        let placement = Placement::new(&layout, self.cores.len());
        let chunks = placement.chunks_by_core();
        let spans = |ids: &Vec<ChunkId>| ids.iter().map(|&id| layout.chunk(id).span).collect::<Vec<Span>>();
        let (weights, claims) =
            window.split(chunks.iter().map(spans).collect()).expect("the layout's chunks are disjoint");
        let capacities = placement.capacities();

        let id = JobId(inner.next_job);
        inner.next_job += 1;
        tracing::info!(
            job = name, keys = layout.keys().len(), chunks = layout.chunks().len(),
            model_mb = layout.model_bytes() as f64 / 1e6, cores = self.cores.len(),
            optimizer = ?terms.optimizer, workers = terms.workers, "new job"
        );
        for ((core, chunks), weights) in self.cores.iter().zip(chunks).zip(claims) {
            let spec = Box::new(ShardSpec {
                layout: Arc::clone(&layout),
                chunks,
                weights,
                workers: terms.workers,
                optimizer: terms.optimizer,
                ablate: terms.ablate,
            });
            core.send(Command::AddJob { job: id, spec });
        }
        inner.jobs.insert(id, Job::new(id, name.to_owned(), terms, layout, capacities, weights));
        inner.names.insert(name.to_owned(), id);
        Ok(id)
    }

    /// What the bearer of a token may connect to. The first bearer: a token is good for one
    /// connection.
    pub fn admission(&self, token: Token) -> Result<Admission, String> {
        let mut inner = self.lock();
        let &(id, rank) = inner.tokens.get(&token).ok_or("the token is not one of this hub's; join first")?;
        let job = inner.jobs.get_mut(&id).expect("tokens name jobs that exist");
        let weights = job.weights.clone().ok_or_else(|| format!("job {:?} has failed", job.name))?;
        job.connect(rank)?;
        Ok(Admission {
            job: id,
            rank,
            weights,
            window_bytes: job.layout.window_bytes(),
            capacities: job.capacities.clone(),
        })
    }

    /// Gives a connected worker's links to the cores.
    pub fn attach(&self, admission: &Admission, gradients: RecvWindow, endpoints: Vec<shm::Endpoint>) {
        let gradients = Arc::new(gradients);
        for (core, endpoint) in self.cores.iter().zip(endpoints) {
            core.send(Command::AddWorker {
                job: admission.job,
                rank: admission.rank,
                gradients: Arc::clone(&gradients),
                endpoint: Box::new(endpoint),
            });
        }
    }

    /// A core thread has something to say.
    pub fn report(&self, report: Report) {
        let mut inner = self.lock();
        match report {
            Report::Attached { job, rank } => {
                if let Some(job) = inner.jobs.get_mut(&job)
                    && job.attached(rank)
                {
                    tracing::info!(job = job.name, "all {} workers are here", job.terms.workers);
                }
            }
            Report::WorkerGone { job, rank, reason } => {
                // One that left is expected to hang up.
                if inner.jobs.get(&job).is_some_and(|job| job.has(rank)) {
                    self.fail(&mut inner, job, &format!("worker {rank} is gone: {reason}"));
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

    fn fail(&self, inner: &mut Inner, id: JobId, reason: &str) {
        let Some(job) = inner.jobs.get_mut(&id).filter(|job| !job.failed()) else { return };
        tracing::warn!(job = job.name, reason, "job failed");
        job.fail(reason);
        inner.names.remove(&job.name);
        inner.failed_at.insert(id, Instant::now());
        self.cores.iter().for_each(|core| core.send(Command::RemoveJob { job: id }));
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

    /// A worker leaves. When others still gather, the job cannot begin without it.
    pub fn leave(&self, job: &str, token: &str, round: Round) -> Result<(), Refusal> {
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
        inner.tokens.retain(|_, &mut member| member != (id, rank));
        if last {
            let job = inner.jobs.remove(&id).expect("found above");
            tracing::info!(job = job.name, "job ended: all workers left");
            inner.names.remove(&job.name);
            self.cores.iter().for_each(|core| core.send(Command::RemoveJob { job: id }));
        } else {
            self.cores.iter().for_each(|core| core.send(Command::RemoveWorker { job: id, rank }));
        }
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
        let inner = self.lock();
        let (id, rank) = inner.find(job, token)?;
        tracing::info!(job, rank, rate, from_round = from.0, "learning rate changes");
        let tell = |core: &CoreHandle<shm::Endpoint>| {
            let (done, answer) = oneshot::channel();
            core.send(Command::SetLearningRate { job: id, from, rate, done });
            answer
        };
        Ok(self.cores.iter().map(tell).collect())
    }

    /// Fails the jobs of workers that were silent too long, and forgets old failures.
    pub fn sweep(&self) {
        let mut inner = self.lock();
        let now = Instant::now();
        let limit = self.heartbeat_limit;
        let mut silent = Vec::new();
        for job in inner.jobs.values().filter(|job| !job.failed()) {
            for (member, rank) in job.members.iter().zip(0u32..) {
                let Some(member) = member.as_ref().filter(|_| job.has(rank)) else { continue };
                let silence = now - member.heard;
                if silence > limit {
                    silent.push((job.id, format!(
                        "worker {rank} was silent for {:.1} s, the limit is {:.1} s: it hangs, was stopped, or was cut off",
                        silence.as_secs_f64(), limit.as_secs_f64()
                    )));
                }
            }
        }
        for (id, reason) in silent {
            self.fail(&mut inner, id, &reason);
        }
        let Inner { jobs, tokens, failed_at, .. } = &mut *inner;
        failed_at.retain(|id, &mut at| {
            let keep = now - at < KEEP_FAILED;
            if !keep {
                jobs.remove(id);
                tokens.retain(|_, (job, _)| job != id);
            }
            keep
        });
    }

    /// Fails every job and admits no more.
    pub fn stop(&self, reason: &str) {
        let mut inner = self.lock();
        inner.stopping = true;
        let jobs = inner.jobs.values().filter(|job| !job.failed());
        let members = |job: &Job| (0..job.terms.workers).filter(|&rank| job.has(rank)).collect::<Vec<_>>();
        let running: Vec<(JobId, Vec<u32>)> = jobs.map(|job| (job.id, members(job))).collect();
        for (id, ranks) in running {
            self.fail(&mut inner, id, reason);
            inner.untold.extend(ranks.into_iter().map(|rank| (id, rank)));
        }
    }

    /// A worker is being told that its job failed.
    pub fn told(&self, job: &str, token: &str) {
        let mut inner = self.lock();
        if let Ok(member) = inner.find(job, token) {
            inner.untold.remove(&member);
            self.told.notify_all();
        }
    }

    /// Waits until every worker has been told that the hub stops; those that are dead never ask.
    pub fn wait_until_all_told(&self, limit: Duration) {
        let untold = |inner: &mut Inner| !inner.untold.is_empty();
        drop(self.told.wait_timeout_while(self.lock(), limit, untold));
    }

    /// Stops the core threads and waits for them.
    pub fn stop_cores(mut self) {
        self.cores.iter().for_each(|core| core.send(Command::Stop));
        self.cores.iter_mut().for_each(CoreHandle::join);
    }

    /// Who this is and how it does.
    pub fn describe(&self) -> HubReply {
        use std::sync::atomic::Ordering::Relaxed;
        let core = |core: &CoreHandle<shm::Endpoint>| CoreReply {
            cpu: core.cpu,
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
            cores: self.cores.iter().map(core).collect(),
            jobs: self.lock().jobs.values().map(Job::describe).collect(),
        }
    }
}

impl Inner {
    fn find(&self, job: &str, token: &str) -> Result<(JobId, u32), Refusal> {
        let token = u128::from_str_radix(token, 16).unwrap_or(0).to_be_bytes();
        match self.tokens.get(&token) {
            Some(&(id, rank)) if self.jobs[&id].name == job => Ok((id, rank)),
            _ => Err(Refusal::Gone(format!(
                "no worker of job {job:?} has this token: it left, or its job ended more than {} s ago; join again",
                KEEP_FAILED.as_secs()
            ))),
        }
    }
}

fn check_request(name: &str, request: &JoinRequest) -> Result<(), Refusal> {
    let JoinRequest { rank, workers, .. } = *request;
    check_job_name(name).map_err(|error| Refusal::Bad(error.to_string()))?;
    if workers == 0 || workers > MAX_WORKERS {
        return Err(Refusal::Bad(format!("{workers} workers: expected 1 to {MAX_WORKERS}")));
    }
    if rank >= workers {
        return Err(Refusal::Bad(format!(
            "rank {rank} of {workers} workers: ranks go from 0 to {}",
            workers - 1
        )));
    }
    request.optimizer.check().map_err(|error| Refusal::Bad(error.to_string()))?;
    manifest::check(&request.keys).map_err(|error| Refusal::Bad(error.to_string()))
}

/// Refuses a job that the kernel would kill the hub for: weights, state, and every worker's window,
/// which are all of this machine's memory.
fn check_memory(layout: &Layout, terms: &JoinRequest) -> Result<(), String> {
    let windows = u64::from(terms.workers) + 1 + terms.optimizer.state_per_element() as u64;
    let needed = windows.saturating_mul(layout.window_bytes() as u64);
    let available = fabric::available_bytes().unwrap_or(u64::MAX);
    if needed <= available {
        return Ok(());
    }
    let gb = |bytes: u64| bytes as f64 / 1e9;
    Err(format!(
        "{} workers of a {:.2} GB model with {} need {:.2} GB of memory, this machine has {:.2} GB available; use fewer workers or a smaller model, or end other jobs",
        terms.workers,
        gb(layout.model_bytes()),
        terms.optimizer.name(),
        gb(needed),
        gb(available)
    ))
}

fn new_token() -> Result<Token, Refusal> {
    let mut token = [0; 16];
    match rustix::rand::getrandom(&mut token, rustix::rand::GetRandomFlags::empty()) {
        Ok(16) => Ok(token),
        seen => Err(Refusal::Exhausted(format!("no random bytes for a token: {seen:?}"))),
    }
}
