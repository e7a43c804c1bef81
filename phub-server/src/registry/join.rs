//! How workers come in: the checks, the making of a job, tokens, and the data path's door.

use std::sync::Arc;

use fabric::{RecvWindow, SendWindow, Spans, shm};
use pbox_core::control::{JoinReply, JoinRequest, MAX_WORKERS, TransportAddress, check_job_name};
use pbox_core::{JobId, Layout, Placement, Restored, ShardSpec, manifest};

use super::{Inner, Refusal, Registry, Token};
use crate::core_thread::Command;
use crate::job::{Cores, Job};

/// What a data-path connection needs once its token is known.
#[derive(Debug)]
pub(crate) struct Admission {
    token: Token,
    pub job: JobId,
    pub rank: u32,
    pub weights: Arc<SendWindow>,
    /// Each core's part of them, where they are the worker's own.
    own: Vec<Option<Spans>>,
    pub window_bytes: usize,
    pub capacities: Vec<u32>,
}

impl Registry {
    /// Admits a worker; the first of a name makes the job. A worker that comes back may be here before
    /// its former self is missed: where the job goes on without that one, it waits until then.
    pub async fn join(self: &Arc<Self>, name: String, request: JoinRequest) -> Result<JoinReply, Refusal> {
        check_request(&name, &request)?;
        let asked = Arc::new((name, request));
        let limit = tokio::time::Instant::now() + self.heartbeat_limit;
        loop {
            let freed = self.freed.notified();
            tokio::pin!(freed);
            freed.as_mut().enable(); // before the look, so that none is missed
            // On a thread of its own: to make a job is to read its checkpoint, and to lay out its memory.
            let (registry, asked) = (Arc::clone(self), Arc::clone(&asked));
            let joining = tokio::task::spawn_blocking(move || registry.try_join(&asked.0, &asked.1));
            let answer =
                joining.await.unwrap_or_else(|_| Err(Refusal::Gone("the hub could not do it".into())));
            match answer {
                Err(Refusal::Busy(_)) if tokio::time::timeout_at(limit, freed).await.is_ok() => {}
                answer => return answer,
            }
        }
    }

    fn try_join(&self, name: &str, request: &JoinRequest) -> Result<JoinReply, Refusal> {
        let mut inner = self.lock();
        if inner.stopping {
            return Err(Refusal::Gone("the hub is stopping".into()));
        }
        let rank = request.rank;
        let id = match inner.names.get(name) {
            Some(&id) => {
                let job = &inner.jobs[&id];
                if job.may_become_free(rank) {
                    return Err(Refusal::Busy(format!(
                        "rank {rank} of job {name:?} is not free yet: try again"
                    )));
                }
                job.admits(request).map_err(Refusal::Conflict)?;
                id
            }
            None => self.create(&mut inner, name, request.clone())?,
        };
        let token = new_token()?;
        inner.tokens.insert(token, (id, rank));
        let job = inner.jobs.get_mut(&id).expect("named jobs exist");
        job.add_member(rank);
        tracing::info!(job = name, rank, workers = job.terms.workers, "worker joined");
        Ok(JoinReply {
            token: format!("{:032x}", u128::from_be_bytes(token)),
            cores: job.cores.numbers.iter().map(|&core| core as u32).collect(),
            ports: self.cores.len() as u32,
            transport: TransportAddress::Shm { address: self.address.clone() },
            heartbeat_limit_ms: self.heartbeat_limit.as_millis() as u64,
        })
    }

    fn create(&self, inner: &mut Inner, name: &str, terms: JoinRequest) -> Result<JobId, Refusal> {
        let bad = |error: String| Refusal::Bad(format!("job {name:?}: {error}"));
        let layout = Layout::new(terms.keys.clone(), terms.chunk_bytes).map_err(|e| bad(e.to_string()))?;
        check_memory(&layout, &terms, self.checkpoint_every.is_some())
            .map_err(|error| Refusal::Exhausted(format!("job {name:?}: {error}")))?;
        let restored = self.restore(name, &terms)?;
        let layout = Arc::new(layout);
        let numbers = self.choose_cores(inner, terms.cores);
        let placement = Placement::new(&layout, numbers.len());
        let chunks = placement.chunks_by_core();
        let owners = chunks.iter().filter(|chunks| !chunks.is_empty()).count();
        let (weights, claims) = placement
            .weights_window(&layout)
            .map_err(|e| Refusal::Exhausted(format!("job {name:?}: weights: {e}")))?;
        let mut capacities = vec![0; self.cores.len()];
        for (&core, capacity) in numbers.iter().zip(placement.capacities()) {
            capacities[core] = capacity.max(1);
        }

        let id = JobId(inner.next_job);
        inner.next_job += 1;
        tracing::info!(
            job = name, keys = layout.keys().len(), chunks = layout.chunks().len(),
            model_mb = layout.model_bytes() as f64 / 1e6, cores = ?numbers,
            optimizer = ?terms.optimizer, consistency = %terms.consistency, workers = terms.workers, "new job"
        );
        for ((&core, chunks), weights) in numbers.iter().zip(chunks).zip(claims) {
            let spec = Box::new(ShardSpec {
                layout: Arc::clone(&layout),
                chunks,
                weights,
                workers: terms.workers,
                consistency: terms.consistency,
                restored: restored.clone(),
                snapshot_every: self.checkpoint_every.filter(|_| terms.optimizer.keeps_weights()),
                optimizer: terms.optimizer,
                ablate: terms.ablate,
            });
            self.cores[core].send(Command::AddJob { job: id, spec, on_loss: terms.on_loss });
        }
        let cores = Cores { numbers, capacities, owners };
        let job = Job::new(id, name.to_owned(), terms, layout, cores, weights, restored.as_deref());
        inner.jobs.insert(id, job);
        inner.names.insert(name.to_owned(), id);
        Ok(id)
    }

    /// The checkpoint that a new job goes on from, where the hub has one.
    fn restore(&self, name: &str, terms: &JoinRequest) -> Result<Option<Arc<Restored>>, Refusal> {
        let Some(store) = self.store.as_ref().filter(|_| terms.optimizer.keeps_weights()) else {
            return Ok(None);
        };
        let loaded = store.load(name, &terms.keys, &terms.optimizer);
        let restored = loaded.map_err(|error| Refusal::Conflict(format!("job {name:?}: {error}")))?;
        if let Some(restored) = &restored {
            let round = restored.round().0;
            tracing::info!(
                job = name,
                round,
                "goes on from its checkpoint; to start anew, remove the file or use another job name"
            );
        }
        Ok(restored.map(Arc::new))
    }

    /// The cores of a new job: all, or the `wanted` ones that have the fewest bytes of others.
    fn choose_cores(&self, inner: &Inner, wanted: Option<u32>) -> Vec<usize> {
        let mut load = vec![0; self.cores.len()];
        for job in inner.jobs.values().filter(|job| !job.failed()) {
            let share = job.layout.model_bytes() / job.cores.numbers.len() as u64;
            job.cores.numbers.iter().for_each(|&core| load[core] += share);
        }
        let mut cores: Vec<usize> = (0..self.cores.len()).collect();
        cores.sort_by_key(|&core| load[core]);
        cores.truncate(wanted.map_or(usize::MAX, |wanted| wanted as usize));
        cores.sort_unstable();
        cores
    }

    /// What the bearer of a token may connect to. The first bearer: a token is good for one
    /// connection.
    pub fn admission(&self, token: Token) -> Result<Admission, String> {
        let (mut admission, layout) = self.shared_admission(token)?;
        if let Some(layout) = layout {
            // Not under the lock: the window is as large as the model.
            let placement = Placement::new(&layout, admission.own.len());
            let (weights, own) = placement.weights_window(&layout).map_err(|error| {
                let reason = format!("worker {} has no weights window: {error}", admission.rank);
                // Its token was good for this one connection.
                self.lose(&mut self.lock(), admission.job, admission.rank, &reason);
                reason
            })?;
            (admission.weights, admission.own) = (weights, own.into_iter().map(Some).collect());
        }
        Ok(admission)
    }

    /// An admission to the job's weights; the layout of a window for this worker alone, where it needs one.
    fn shared_admission(&self, token: Token) -> Result<(Admission, Option<Arc<Layout>>), String> {
        let mut inner = self.lock();
        let &(id, rank) = inner.tokens.get(&token).ok_or("the token is not one of this hub's; join first")?;
        let job = inner.jobs.get_mut(&id).expect("tokens name jobs that exist");
        let weights = job.weights.clone().ok_or_else(|| format!("job {:?} has failed", job.name))?;
        job.connect(rank)?;
        let admission = Admission {
            token,
            job: id,
            rank,
            weights,
            own: job.cores.numbers.iter().map(|_| None).collect(),
            window_bytes: job.layout.window_bytes(),
            capacities: job.cores.capacities.clone(),
        };
        Ok((admission, job.terms.consistency.steps_alone().then(|| Arc::clone(&job.layout))))
    }

    /// Gives a connected worker's links to the cores, unless its job went on without it meanwhile.
    pub fn attach(&self, admission: Admission, gradients: RecvWindow, endpoints: Vec<shm::Endpoint>) {
        let gradients = Arc::new(gradients);
        // Under the lock, so that what is told of the worker's loss comes after its links.
        let inner = self.lock();
        let Some(job) = inner.tokens.get(&admission.token).map(|(id, _)| &inner.jobs[id]) else { return };
        for ((&core, endpoint), weights) in job.cores.numbers.iter().zip(endpoints).zip(admission.own) {
            self.cores[core].send(Command::AddWorker {
                job: admission.job,
                rank: admission.rank,
                gradients: Arc::clone(&gradients),
                weights,
                endpoint: Box::new(endpoint),
            });
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
    if request.cores == Some(0) {
        return Err(Refusal::Bad("0 cores: a job has at least one; leave it out for all".into()));
    }
    request.optimizer.check().map_err(|error| Refusal::Bad(error.to_string()))?;
    request.consistency.check(&request.optimizer).map_err(|error| Refusal::Bad(error.to_string()))?;
    manifest::check(&request.keys).map_err(|error| Refusal::Bad(error.to_string()))
}

/// Refuses a job that the kernel would kill the hub for: weights, master weights and state, room for
/// snapshots of them where these are taken all the time, and every worker's window, or windows, where the
/// weights are its own; they are all of this machine's memory.
fn check_memory(layout: &Layout, terms: &JoinRequest, snapshots: bool) -> Result<(), String> {
    let of_a_worker = 1 + u64::from(terms.consistency.steps_alone());
    let windows = u64::from(terms.workers) * of_a_worker + 1;
    let windows = windows.saturating_mul(layout.window_bytes() as u64);
    let of_a_snapshot = 4 * layout.parameters() * (1 + terms.optimizer.state_per_element() as u64);
    let needed = windows.saturating_add(layout.kept_bytes(&terms.optimizer)).saturating_add(if snapshots {
        of_a_snapshot
    } else {
        0
    });
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
