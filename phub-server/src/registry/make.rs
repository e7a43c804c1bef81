//! Makes a job for its first worker: layout, checkpoint, memory. The work may take long, so it happens outside the
//! registry's lock; meanwhile the name is reserved.
//!
//! ```text
//!   reserve -> memory promised -> layout, checkpoint -> cores are chosen -> window, shards -> begin: the job exists
//!    lock          lock                                    lock                            lock
//! ```

use std::net::IpAddr;
use std::sync::Arc;

use coordinator::input::{Begin, Reserve};
use coordinator::{JobSpec, Promise};
use fabric::{PortId, Ranges, SendWindow, Spans};
use hub_threads::alarm::guarded;
use hub_threads::near::Near;
use hub_threads::{Carried, Command, CoreHandle};
use pbox_core::control::{JoinRequest, RefusalCode, TransportAddress};
use pbox_core::{
    Below, JobCores, JobId, JobTerms, Layout, LevelTerms, MadeShard, Members, Numbers, NumbersByRound,
    Placement, Restored, Round, ShardSpec, Wire,
};

use super::above::{JoinedAbove, LetInAbove, LinksAbove, MadeAbove, name_above};
use super::hubs::Peers;
use super::job::{Cores, Job, Load};
use super::{Because, Inner, Refusal, Registry};
use crate::job_memory::{self, JobMemory};
use crate::lanes::{self, Lane};
use crate::open_files;

fn listed(numbers: impl IntoIterator<Item = impl ToString>) -> String {
    numbers.into_iter().map(|number| number.to_string()).collect::<Vec<_>>().join(",")
}

/// The reservation of a name while its job is being made. If it is dropped, the workers that wait for the
/// name try again.
#[derive(Debug)]
pub(super) struct Making<'a> {
    registry: &'a Registry,
    id: JobId,
    name: Option<&'a str>,
    owner: Option<IpAddr>,
}

impl Making<'_> {
    /// Ends the reservation, whether the job could be made or not. Runs under the lock, so that the job can
    /// begin in the same critical section.
    pub fn end(mut self, inner: &mut Inner) {
        if let Some(name) = self.name.take() {
            inner.release(name);
            self.registry.freed.notify_waiters();
        }
    }
}

impl Drop for Making<'_> {
    fn drop(&mut self) {
        if let Some(name) = self.name {
            self.registry.lock().release(name);
            self.registry.freed.notify_waiters();
        }
    }
}

/// A job with all its memory, and the shard of each core.
#[derive(Debug)]
pub(super) struct Made {
    begin: Begin,
    wire: Wire,
    cores: Arc<Cores>,
    weights: Arc<SendWindow>,
    peers: Arc<Peers>,
    joined: Option<Arc<JoinedAbove>>,
    /// The reason why the job does not continue from its newest checkpoint.
    warning: Option<String>,
    shards: Vec<MadeShard>,
    /// The links to the hubs above, by core, if there are hubs above.
    above: Option<(LevelTerms, LinksAbove)>,
}

/// The windows of a job, and its links to the hubs above.
struct Windows {
    weights: Arc<SendWindow>,
    shards: Vec<ShardSpec>,
    joined: Option<Arc<JoinedAbove>>,
    links_above: Option<(LevelTerms, LinksAbove)>,
}

impl Registry {
    /// Reserves a name, so that no other thread makes a job of this name.
    pub(super) fn reserve<'a>(&'a self, inner: &mut Inner, name: &'a str) -> Making<'a> {
        let id = inner.ask(Reserve { name: name.to_owned() });
        self.making(id, name, None)
    }

    /// Wraps the reservation of a name for this job.
    pub(super) fn making<'a>(&'a self, id: JobId, name: &'a str, owner: Option<IpAddr>) -> Making<'a> {
        Making { registry: self, id, name: Some(name), owner }
    }

    /// Makes a job under its reserved name. Runs without the lock.
    pub(super) fn make(&self, making: &Making, name: &str, request: &JoinRequest) -> Result<Made, Refusal> {
        let terms = &Arc::new(request.terms.clone());
        let relays = self.up.relays(request);
        let of_shards = if relays { Arc::new(terms.beside()) } else { Arc::clone(terms) };
        // The tables of the layout need memory before the size of the whole job is known.
        let tables = job_memory::tables_bytes(terms);
        let promise = |bytes| Promise::new(name, terms, bytes, self.memory());
        self.lock().ask(promise(tables))?;
        let wire =
            Wire::of_terms(&of_shards).map_err(|error| Refusal::bad(format!("job {name:?}: {error}")))?;
        let snapshots = self.checkpoint_every.is_some() && !request.trial;
        let promised = JobMemory::new(&wire, terms, snapshots, relays).promised(terms);
        self.lock().ask(promise(promised))?;
        let let_in = relays
            .then(|| self.up.join(name, request, &self.id, &|| self.lock().hub().end().is_closed()))
            .transpose()?;
        let wire = let_in.as_ref().map(|let_in| let_in.wire(wire.clone())).transpose()?.unwrap_or(wire);
        let (loaded, hubs, peers) = self.restore(name, request, wire.layout())?;
        let (restored, warning) = loaded.map(|loaded| (loaded.restored, loaded.warning)).unzip();
        let layout = wire.layout();
        let restored_round = restored.as_ref().map_or(Round(0), Restored::round);
        let numbers = self.choose_cores(name, layout, terms);
        let below = let_in.as_ref().map(|let_in| let_in.place(numbers.len())).transpose()?;
        let (job_cores, placement) = match &below {
            None => {
                let cores = self.job_cores(name, &numbers, request);
                let placement = Placement::of_share(layout, terms.level.schedule, hubs.share, cores.clone());
                (cores, placement)
            }
            Some(below) => (self.nodes(&numbers), below.placement.clone()),
        };
        let owners = placement.chunks_by_core().iter().filter(|chunks| !chunks.is_empty()).count();
        self.check_open_files(name, terms.workers, numbers.len())?;
        // Each joining worker puts its own port in the place of port 0.
        let links = placement.links(&wire, self.cores.len(), numbers.iter().copied(), &[PortId(0)]);
        tracing::info!(
            job = name, keys = layout.keys().len(), chunks = layout.chunks().len(),
            model_mb = layout.model_bytes() as f64 / 1e6, share = %hubs.share, cores = listed(&numbers),
            optimizer = terms.optimizer.name(), consistency = %terms.level.consistency,
            schedule = %terms.level.schedule, workers = terms.workers, round = restored_round.0,
            continues = restored_round > Round(0), "new job"
        );
        let restored = restored.map(Arc::new);
        let above = let_in.zip(below.as_ref());
        let windows = self.windows(name, terms, (&of_shards, &wire), above, &numbers, &placement)?;
        let Windows { weights, mut shards, joined, links_above } = windows;
        for shard in &mut shards {
            (shard.restored, shard.snapshot_every) =
                (restored.clone(), self.checkpoint_every.filter(|_| !request.trial));
        }
        let shards = self
            .make_shards(&numbers, shards)
            .map_err(|error| RefusalCode::NoMemory.because(format!("job {name:?}: {error}")))?;
        let cores = Arc::new(Cores { numbers, job_cores, placement, links });
        let made = coordinator::Made {
            cores: cores.numbers.len(),
            owners,
            is_below: joined.is_some(),
            promised,
            owner: making.owner,
            trial: request.trial,
            mesh: request.mesh.clone(),
        };
        let at_start = || NumbersByRound::new(Numbers::new(terms.optimizer));
        let from = (restored_round, restored.as_deref().map_or_else(at_start, Restored::numbers));
        let spec = JobSpec { id: making.id, name: name.to_owned(), terms: Arc::clone(terms), made };
        let begin = Begin { spec, hub: hubs, from };
        let warning = warning.flatten();
        Ok(Made { begin, wire, cores, weights, peers, joined, warning, shards, above: links_above })
    }

    /// Checks that this process may open the files that the workers of all jobs need. Otherwise connections of admitted
    /// workers would wait until joins fail. Counts the links as TCP, or as RDMA if this hub has RDMA.
    fn check_open_files(&self, name: &str, workers: u32, cores: usize) -> Result<(), Refusal> {
        let has_rdma = self.transports.iter().any(|each| matches!(each, TransportAddress::Verbs { .. }));
        let links = |cores: usize| if has_rdma { 0 } else { cores as u64 };
        // Each job has a window.
        let needs =
            |workers: u32, cores: usize| 1 + u64::from(workers) * open_files::of_a_worker(links(cores));
        let of_jobs: u64 = {
            let inner = self.lock();
            inner.hub().living().map(|job| needs(job.spec.terms.workers, job.spec.made.cores)).sum()
        };
        let (needed, open) = (needs(workers, cores), self.files_at_start);
        open_files::check(open, of_jobs + needed).map_err(|limit| {
            RefusalCode::NoResource.because(format!(
                "job {name:?}: {workers} workers need {needed} open files, and this hub may have {limit}: it has {open} without jobs, \
                 and other jobs need {of_jobs}; allow more (ulimit -n, LimitNOFILE= of a unit), or use fewer workers"
            ))
        })
    }

    /// Makes the windows of a job, and its links to the hubs above, if there are any.
    fn windows(
        &self,
        name: &str,
        terms: &JobTerms,
        (of_shards, wire): (&Arc<JobTerms>, &Wire),
        above: Option<(LetInAbove, &Below)>,
        numbers: &[usize],
        placement: &Placement,
    ) -> Result<Windows, Refusal> {
        // `huge_pages` must run before other threads touch the pages.
        let huge_pages = |shards: &[ShardSpec]| self.huge_pages(numbers, shards);
        if let Some((let_in, below)) = above {
            let share = let_in.is_mesh().then(|| self.weights_of(&name_above(name))).transpose()?;
            let made = self.up.link(let_in, (of_shards, wire), below, numbers, share, huge_pages)?;
            let MadeAbove { joined, weights, shards, level, links } = made;
            return Ok(Windows {
                weights,
                shards,
                joined: Some(Arc::new(joined)),
                links_above: Some((level, links)),
            });
        }
        // In a mesh, the window of this hub's share has all chunks, and the workers of this machine read it.
        let made = match terms.level.members {
            Members::Mesh if wire.framing().is_none() && !wire.has_own_weights() => {
                placement.shown_window(wire)
            }
            _ => placement.job_window(wire),
        };
        let (weights, claims) =
            made.map_err(|e| RefusalCode::NoMemory.because(format!("job {name:?}: weights: {e}")))?;
        let chunks = placement.chunks_by_core();
        let shards = ShardSpec::of_cores(of_shards, wire, chunks.into_iter().zip(claims));
        huge_pages(&shards);
        Ok(Windows { weights, shards, joined: None, links_above: None })
    }

    /// Returns these cores with their NUMA nodes, as equally fast.
    fn nodes(&self, cores: &[usize]) -> JobCores {
        cores.iter().map(|&core| self.cores[core].lane.node).collect::<Vec<_>>().into()
    }

    /// Returns these cores with their NUMA nodes and speeds, for a new job. A core is slow if other threads used its cpu
    /// during the last second of its work. All cores are equally fast if the worker that makes the job is of a version
    /// without speeds, or returns to a job that may have members of this version.
    fn job_cores(&self, name: &str, cores: &[usize], request: &JoinRequest) -> JobCores {
        let equal = self.nodes(cores);
        if !request.versions().know_speeds() || request.reached.is_some() {
            return equal;
        }
        let parts: Vec<f64> = cores.iter().map(|&core| self.cores[core].contention.part()).collect();
        let job_cores = equal.with_speeds(&parts);
        if !job_cores.are_equally_fast() {
            let speeds = listed(job_cores.speeds());
            let cpus = listed(cores.iter().map(|&core| self.cores[core].lane.cpu));
            tracing::warn!(
                job = name,
                cpus,
                speeds,
                "other threads have used cpus of this hub's cores; each core gets a part of the job by its speed, in eighths of \
                 the fastest core's speed; keep other programs off these cpus"
            );
        }
        job_cores
    }

    /// Makes huge pages in the window into which these cores write weights. Each range of pages is on one NUMA node.
    fn huge_pages(&self, cores: &[usize], specs: &[ShardSpec]) {
        // If each worker gets its own encoded frames, no thread touches this window.
        let is_used = |spec: &&ShardSpec| spec.wire.framing().is_none() || !spec.wire.has_own_weights();
        let Some(first) = specs.first().filter(is_used) else { return };
        let spans = |weights: &Spans| (0..weights.len()).map(|place| weights.span(place)).collect();
        let of_core = |(&core, spec): (&usize, &ShardSpec)| (self.cores[core].lane.cpu, spans(&spec.weights));
        let (owned, window) = (cores.iter().zip(specs).map(of_core), first.weights.window());
        let collapse = |nodes: &[Ranges], go_to: &mut dyn FnMut(usize)| window.collapse_by_node(nodes, go_to);
        // This thread would stay pinned near the cores, so a new thread does the work. If it cannot start,
        // pages stay small.
        let thread = std::thread::Builder::new().name("phub-memory".into());
        std::thread::scope(|scope| {
            thread.spawn_scoped(scope, guarded(|| Near::begin().huge_pages(owned, collapse))).is_ok()
        });
    }

    /// Makes the shards of these cores, each on a thread near its core.
    fn make_shards(&self, cores: &[usize], specs: Vec<ShardSpec>) -> Result<Vec<MadeShard>, String> {
        std::thread::scope(|scope| {
            let make = |(&core, spec): (&usize, _)| {
                let CoreHandle { lane, waker, .. } = &self.cores[core];
                let thread = std::thread::Builder::new().name("phub-memory".into());
                let (cpu, waker) = (lane.cpu, waker.clone());
                let made = guarded(move || {
                    Near::begin().go_to(cpu);
                    MadeShard::new(spec, waker)
                });
                thread.spawn_scoped(scope, made)
            };
            let threads: Vec<_> = cores.iter().zip(specs).map(make).collect();
            let made = threads.into_iter().map(|thread| {
                let thread =
                    thread.map_err(|error| format!("cannot start the thread phub-memory: {error}"))?;
                let made =
                    thread.join().map_err(|_| "the thread phub-memory failed; see the log".to_owned())?;
                made.map_err(|error| error.to_string())
            });
            made.collect()
        })
    }

    fn weights_of(&self, name: &str) -> Result<Arc<SendWindow>, Refusal> {
        let mut inner = self.lock();
        let id = inner.hub().id(name)?;
        let weights = inner.job(id).and_then(|(_, job)| job.weights.clone());
        weights.ok_or_else(|| RefusalCode::JobEnded.because(format!("job {name:?} has failed")))
    }

    /// Adds the job, and sends its cores their shards.
    pub(super) fn begin(&self, inner: &mut Inner, made: Made) {
        let Made { begin, wire, cores, weights, peers, joined, warning, shards, above } = made;
        let (id, workers) = (begin.spec.id, begin.spec.terms.workers);
        inner.ask(begin);
        let state = inner.hub().job(id).expect("the job has begun");
        let mut job = Job::new(state, wire, cores, weights, peers);
        (job.above, job.checkpoints.warning) = (joined, warning);
        for (&core, shard) in job.cores.numbers.iter().zip(shards) {
            self.cores[core].tell(Command::AddShard { job: id, shard: Box::new(shard) });
        }
        if let Some((level, links)) = above {
            self.add_above(&job, level, links);
        }
        if let Some(above) = &job.above {
            self.listen_above(id, above.news.clone());
        }
        self.timeline.iter().for_each(|timeline| timeline.begins(&job, workers));
        inner.add(job);
    }

    pub(super) fn add_above(&self, job: &Job, level: LevelTerms, links: LinksAbove) {
        for (&core, links) in job.cores.numbers.iter().zip(links) {
            self.cores[core].tell(Command::AddAbove { job: job.id, level, links: Carried(links) });
        }
    }

    /// Returns the cores of a job that is being made: all cores, or the number that the job asks for. Cores with the fewest
    /// bytes of other jobs come first. A core whose NIC is lost, or has no link, is left out.
    fn choose_cores(&self, name: &str, layout: &Layout, terms: &JobTerms) -> Vec<usize> {
        let lanes: Vec<&Lane> = self.cores.iter().map(|core| &core.lane).collect();
        let of_use = lanes::of_use(&lanes, self.up.group.rdma());
        for lane in lanes.iter().zip(&of_use).filter(|(_, of_use)| !**of_use).map(|(lane, _)| lane) {
            let device = lane.nic.as_ref().map(|nic| &nic.device);
            tracing::warn!(
                job = name,
                cpu = lane.cpu,
                device,
                "the job does not use a core whose NIC is lost or has no link"
            );
        }
        let mut inner = self.lock();
        let mut load = vec![0; self.cores.len()];
        let of_a_core = |layout: &Layout, hubs: u32, cores: usize| {
            layout.model_bytes() / (u64::from(hubs) * cores as u64)
        };
        for (state, job) in inner.jobs().filter(|(state, _)| !state.life.failed()) {
            let bytes = of_a_core(job.wire.layout(), state.spec.terms.hubs, job.cores.numbers.len());
            job.cores.numbers.iter().for_each(|&core| load[core] += bytes);
        }
        for Load { cores, bytes } in inner.loads.values() {
            cores.iter().for_each(|&core| load[core] += bytes);
        }
        let mut cores: Vec<usize> = (0..self.cores.len()).filter(|&core| of_use[core]).collect();
        cores.sort_by_key(|&core| load[core]);
        cores.truncate(terms.cores.map_or(usize::MAX, |wanted| wanted as usize));
        cores.sort_unstable();
        let bytes = of_a_core(layout, terms.hubs, cores.len());
        inner.loads.insert(name.to_owned(), Load { cores: cores.clone(), bytes });
        cores
    }
}

/// Other jobs do not wait while a job is made. Only the name of the job is reserved.
#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use pbox_core::Optimizer;

    use crate::registry::test_bed::{registry, request, runtime};

    /// Returns the page faults of the calling thread that needed no disk.
    fn faults() -> u64 {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        let behind_the_name = stat.rsplit_once(") ").unwrap().1;
        behind_the_name.split(' ').nth(7).unwrap().parse().unwrap()
    }

    #[test]
    fn a_core_takes_a_job_whose_memory_is_there() {
        let (registry, mut core) = registry();
        let mut request = request();
        request.terms.keys[0].shape = vec![64 << 20]; // 256 MiB, and 256 MiB of momentum
        request.terms.chunk_bytes = 1 << 20;
        request.terms.optimizer =
            Optimizer::Nesterov { learning_rate: 0.1, momentum: 0.9, weight_decay: 0.0 };
        runtime().block_on(registry.join("job".into(), request)).unwrap();
        assert!(fabric::resident_bytes().unwrap() > 500 << 20, "the join has touched it");
        let before = faults();
        core.obey();
        let of_the_core = faults() - before;
        assert!(of_the_core < 64, "{of_the_core} faults; huge pages alone would be 128");
    }

    #[test]
    fn others_of_the_name_wait_until_the_making_is_over_and_other_jobs_do_not() {
        let (registry, _inbox) = registry();
        runtime().block_on(async {
            let making = registry.reserve(&mut registry.lock(), "job");
            registry.join("another".into(), request()).await.unwrap();
            let mut join = pin!(registry.join("job".into(), request()));
            // Meanwhile, joins of another job are answered.
            for _ in 0..3 {
                let look = registry.join("another".into(), request()).await;
                look.expect_err("its rank is taken");
                assert!(matches!(join.as_mut().poll(&mut Context::from_waker(Waker::noop())), Poll::Pending));
            }
            assert_eq!(registry.describe().jobs.len(), 1);
            drop(making); // making has failed: the next worker of this name makes the job
            join.await.unwrap();
            assert_eq!(registry.describe().jobs.len(), 2);
        });
    }
}
