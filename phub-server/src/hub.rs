//! The hub: its threads, from start to a clean stop.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use authority::Credential;
use axum::Router;
use coordinator::{LateLimits, Settings};
use fabric::any::{self, ConnectError, Listener, Transport};
use fabric::tcp::{self, Frames};
use fabric::{shm, verbs};
use hub_threads::alarm::{Alarm, Rung, guarded, guards_threads};
use hub_threads::{CoreHandle, Report, free};
use pbox_core::control::TransportAddress;
use pbox_core::kernels::Kernels;
use timeline::TraceFile;
use tokio::runtime::Runtime;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, timeout_at};
use topology::Host;

use crate::checkpoint::CheckpointStore;
use crate::control::{self, ControlLimits, Encryption, Guard};
use crate::error::HubError;
use crate::lanes::{self, Lanes};
use crate::needs;
use crate::pauses::Pauses;
use crate::registry::{HubsAbove, Parts, Recorder, Registry, Timeline, Up, random_name};
use crate::rendezvous;
use crate::settings::{HubSettings, interface};

/// The interval at which the hub looks for silent workers. It is a small part of the shortest heartbeat limit.
const SWEEP: Duration = Duration::from_millis(200);
/// The time that a stop waits until each worker has got the reason, in the answer to its heartbeat. The limit is
/// needed, because a dead worker sends no heartbeat.
const TELL_LIMIT: Duration = Duration::from_secs(1);
/// The time that a stop waits for threads that are in a handshake or work on files.
const GONE_LIMIT: Duration = Duration::from_secs(5);
/// The number of joins that are read and checked at the same time; other joins wait. Each join may have a
/// manifest of a quarter of a million keys, and the control thread needs a core, too.
const JOINS_AT_ONCE: usize = 2;
/// The time for which an idle thread for joins stays alive: the workers of a job join at about the
/// same time.
const JOIN_THREAD_IDLE: Duration = Duration::from_secs(1);
/// A running hub. Dropping this value stops the hub.
#[derive(Debug)]
pub struct Hub {
    address: SocketAddr,
    guard: Arc<Guard>,
    encryption: Arc<Encryption>,
    registry: Option<Arc<Registry>>,
    /// The channel that closes when the registry is dropped. The mutex only makes the receiver shareable
    /// between threads.
    all_gone: Mutex<Receiver<Infallible>>,
    listeners: Vec<Arc<Listener>>,
    rendezvous: Vec<JoinHandle<()>>,
    control: Option<JoinHandle<()>>,
    /// The thread that frees memory. It ends after the cores.
    freeing: Option<JoinHandle<()>>,
    /// The file to which the cores' timeline is written when the hub stops.
    trace: Option<TraceFile>,
    stop_control: Option<watch::Sender<bool>>,
    /// The alarm, which receives panics of all other threads.
    alarm: Alarm,
    listens: Option<JoinHandle<()>>,
    /// The panic that ended the hub.
    broken: watch::Receiver<Option<String>>,
}

impl Hub {
    /// Starts all threads. When this function returns, workers can join.
    pub fn start(settings: &HubSettings) -> Result<Self, HubError> {
        Self::start_with(settings, ControlLimits::default())
    }

    /// Works like [`start`](Self::start), with other limits for the clients of the control port.
    pub fn start_with(settings: &HubSettings, limits: ControlLimits) -> Result<Self, HubError> {
        let (alarm, rung) = Alarm::new();
        let _entered = alarm.enter();
        membership::warn_of_environment();
        tracing::info!("settings: {settings}");
        needs::needs(settings).try_for_each(|(_, found)| found.map(drop))?;
        let guard = Arc::new(Guard::new(settings)?);
        let encryption = Arc::new(Encryption::new(settings)?);
        let open = |dir| CheckpointStore::open_for(dir, settings.checkpoint_mode);
        let store = settings.checkpoints.as_ref().map(open).transpose()?;
        let store =
            store.map(|store| store.keeping(settings.checkpoint_keep).keeping_jobs(settings.checkpoint_jobs));
        let trace = settings.trace.as_ref().map(TraceFile::create).transpose()?;
        let host = Host::live()?;
        let Lanes { lanes, rdma, picture } = lanes::choose(&host, settings)?;
        needs::threads(lanes.len())?;
        let kernels = Kernels::detect();
        let (idle, idle_reason) = settings.idle.policy(lanes.len(), host.cpus.len());
        tracing::info!(kernels = kernels.name(), idle = idle_reason, "core threads");

        let listen = settings.listen;
        let socket =
            std::net::TcpListener::bind(listen).map_err(|error| HubError::Listen { listen, error })?;
        socket.set_nonblocking(true)?;
        let address = socket.local_addr()?;

        let has_rdma = rdma.is_some();
        let (group, ports) = any::group(lanes.len(), rdma)?;
        let tcp = tcp::Options {
            frames: Frames::summed_if(settings.checksum),
            congestion: settings.tcp_congestion.clone(),
        };
        let group = group.with_tcp(tcp);
        if settings.checksum {
            tracing::info!(
                "frames over TCP have checksums; with RDMA the NICs make checksums, and shared memory moves no bytes"
            );
        }
        let (listeners, transports) =
            open_data_paths(settings, address, lanes.len(), has_rdma, group.unshared())?;
        let (reports, inbox) = unbounded_channel();
        let (discard, freeing) = free()?;
        let cores = lanes.into_iter().zip(ports).enumerate().map(|(number, (lane, port))| {
            let (reports, discard) = (reports.clone(), discard.clone());
            CoreHandle::start(number, lane, port, kernels, idle, reports, discard, trace.is_some())
        });
        let cores = cores.collect::<std::io::Result<Vec<_>>>()?;
        let control = control_runtime()?;
        let runtime = control.handle().clone();
        let (gone, all_gone) = channel();
        let decides = Settings {
            jobs_limit: settings.jobs_limit as usize,
            quotas: settings.quotas(),
            late: LateLimits {
                warning: Duration::from_secs(settings.late_warning_s),
                limit: settings.late_limit_s.map(Duration::from_secs),
            },
        };
        let record = |file: &PathBuf| {
            let recorder = Recorder::start(file, u64::from(settings.record_mb) * 1_000_000, decides);
            recorder.map_err(|error| HubError::Record { file: file.clone(), error })
        };
        let registry = Registry::new(Parts {
            id: random_name()?,
            cores,
            kernels,
            transports,
            heartbeat_limit: Duration::from_secs(settings.heartbeat_limit_s),
            decides,
            recorder: settings.record.as_ref().map(record).transpose()?,
            store,
            checkpoint_every: settings.checkpoint_every,
            discard,
            up: up(settings, &group, has_rdma, address, guard.credential())?,
            timeline: trace.as_ref().map(|_| Timeline::new()),
            runtime: runtime.clone(),
            gone,
        });
        let rendezvous = |listener: &Arc<Listener>| {
            let registry = Arc::downgrade(&registry);
            rendezvous::start(Arc::clone(listener), group.clone(), registry, runtime.clone())
        };
        let rendezvous = listeners.iter().map(rendezvous).collect::<std::io::Result<_>>()?;
        let (stop_control, stopped) = watch::channel(false);
        let control = {
            let router = control::router(Arc::clone(&registry), Arc::clone(&guard), limits, picture);
            let (registry, encryption) = (Arc::clone(&registry), Arc::clone(&encryption));
            std::thread::Builder::new().name("phub-control".into()).spawn(guarded(move || {
                run_control(control, socket, registry, (router, limits), encryption, inbox, stopped)
            }))?
        };
        let (broke, broken) = watch::channel(None);
        let listens = {
            let registry = Arc::downgrade(&registry);
            std::thread::Builder::new().name("phub-alarm".into()).spawn(move || {
                let Ok(Rung::Panicked(what)) = rung.recv() else { return };
                tracing::error!("{what}; the hub ends");
                if let Some(registry) = registry.upgrade() {
                    registry.end_all(&what);
                }
                broke.send_replace(Some(what));
            })?
        };
        if !fabric::shared_huge_pages() {
            tracing::info!(
                "windows have small pages; as root, `echo advise > {}` allows huge pages, which are some percent faster",
                fabric::SHARED_HUGE_PAGES
            );
        }
        tracing::info!(control = %address, "hub is up");
        Ok(Hub {
            address,
            guard,
            encryption,
            registry: Some(registry),
            all_gone: Mutex::new(all_gone),
            listeners,
            rendezvous,
            control: Some(control),
            freeing: Some(freeing),
            trace,
            stop_control: Some(stop_control),
            alarm,
            listens: Some(listens),
            broken,
        })
    }

    /// Returns the control port's address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns a function that reads the secret again, if the hub has its secret in a file. Workers that have
    /// joined remain. The function returns an error if there is no usable secret; the hub then keeps its
    /// current secret.
    pub fn reload_secret(&self) -> impl Fn() -> Result<(), HubError> + use<> {
        let guard = Arc::clone(&self.guard);
        move || Ok(guard.reload()?)
    }

    /// Returns a function that reads the certificate of the control port again, if the hub has one. Open connections
    /// remain. The function returns an error if certificate and key cannot be used; the hub then keeps its current
    /// certificate and key.
    pub fn reload_certificate(&self) -> Option<impl Fn() -> Result<(), HubError> + use<>> {
        let encryption = Arc::clone(&self.encryption);
        encryption.is_on().then_some(move || Ok(encryption.reload()?))
    }

    /// Returns the control port's scheme: `https` if it speaks TLS.
    pub fn scheme(&self) -> &'static str {
        if self.encryption.is_on() { "https" } else { "http" }
    }

    /// Returns the names of the jobs whose checkpoints a stop has still to write, once the stop has begun.
    pub fn unsaved(&self) -> watch::Receiver<Vec<String>> {
        self.registry.as_ref().expect("no caller holds a hub that stops").unsaved.subscribe()
    }

    /// Makes the hub refuse new jobs from now on. `by` names the cause for the log.
    pub fn drain(&self, by: &str) {
        self.registry.as_ref().expect("no caller holds a hub that stops").drain(by);
    }

    /// Waits until the hub takes no more jobs and its last job has ended. Holds no reference to the hub.
    pub fn drained(&self) -> impl Future<Output = ()> + use<> {
        let registry = self.registry.as_ref().expect("no caller holds a hub that stops");
        let (mut draining, all_freed) = (registry.draining.subscribe(), Arc::clone(&registry.freed));
        let registry = Arc::downgrade(registry);
        async move {
            if draining.wait_for(|is_draining| *is_draining).await.is_err() {
                return; // the hub stops
            }
            loop {
                let freed = all_freed.notified(); // before the check, so that no end of a job is missed
                if registry.upgrade().is_none_or(|registry| registry.is_drained()) {
                    return;
                }
                freed.await;
            }
        }
    }

    /// Waits until a thread of the hub has panicked, and the hub's jobs have ended because of the panic. By
    /// then their checkpoints are written, and their workers are notified. Returns the thread and the reason.
    /// Holds no reference to the hub.
    pub fn broken(&self) -> impl Future<Output = String> + use<> {
        let mut broken = self.broken.clone();
        async move {
            let what = match broken.wait_for(Option::is_some).await {
                Ok(what) => what.clone(),
                Err(_) => None, // the hub stops
            };
            match what {
                Some(what) => what,
                None => std::future::pending().await,
            }
        }
    }

    /// Waits until there has been no job for this time. Holds no reference to the hub.
    pub fn unused_for(&self, limit: Duration) -> impl Future<Output = ()> + use<> {
        let registry = self.registry.as_ref().expect("no caller holds a hub that stops");
        let mut since = registry.unused_since.subscribe();
        async move {
            loop {
                let unused = *since.borrow_and_update();
                let changed = match unused {
                    None => since.changed().await,
                    Some(unused) => match timeout_at((unused + limit).into(), since.changed()).await {
                        Err(_) => return,
                        Ok(changed) => changed,
                    },
                };
                if changed.is_err() {
                    return; // the hub stops
                }
            }
        }
    }

    /// Writes the checkpoints that can be written, notifies all workers that the hub stops, with the reason, and
    /// ends all threads. Returns an error for each job whose last checkpoint was not written.
    pub fn stop(mut self, reason: &str) -> Vec<String> {
        self.shut_down(reason)
    }

    fn shut_down(&mut self, reason: &str) -> Vec<String> {
        let Some(registry) = self.registry.take() else { return Vec::new() };
        tracing::info!(reason, "hub stops");
        // If a thread has panicked, the alarm thread may be ending the jobs now.
        self.alarm.end();
        self.listens.take().map(JoinHandle::join);
        registry.end_all(reason);
        let lost = registry.lost_states();
        self.listeners.iter().for_each(|listener| listener.stop());
        registry.wait_until_all_notified(TELL_LIMIT);
        if let Some(stop) = self.stop_control.take() {
            let _ = stop.send(true);
        }
        for thread in self.rendezvous.drain(..).chain(self.control.take()) {
            let _ = thread.join();
        }
        self.write_trace(&registry);
        // Threads that write or remove files may hold references to the registry, too.
        drop(registry);
        let all_gone = self.all_gone.get_mut().unwrap_or_else(PoisonError::into_inner);
        match all_gone.recv_timeout(GONE_LIMIT) {
            Err(RecvTimeoutError::Timeout) => {
                tracing::warn!(
                    "a handshake or work on a file has not ended within {GONE_LIMIT:?}; its thread ends with the process"
                );
            }
            _ => drop(self.freeing.take().map(JoinHandle::join)),
        }
        tracing::info!("hub stopped");
        lost
    }
}

impl Hub {
    /// Writes the last events of the cores to the trace file, if they are recorded.
    fn write_trace(&mut self, registry: &Registry) {
        let Some(file) = &mut self.trace else { return };
        let process = registry.timeline(&format!("hub {}", self.address), |_| true);
        match file.write(process.as_slice()) {
            Ok(()) => tracing::info!("the timeline of the last rounds is in {}", file.path().display()),
            Err(error) => tracing::error!("{error}"),
        }
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.shut_down("the hub was dropped");
    }
}

/// Returns how this hub reaches other hubs.
fn up(
    settings: &HubSettings,
    group: &any::Group,
    has_rdma: bool,
    control: SocketAddr,
    credential: Option<Credential>,
) -> Result<Up, HubError> {
    let above = match (&settings.above, settings.machine) {
        (None, Some(_)) => return Err(HubError::Alone),
        (Some(hubs), Some(machine)) => {
            let hubs: Vec<String> = membership::hub_addresses(hubs)?.into_iter().map(str::to_owned).collect();
            tracing::info!(hubs = hubs.join(","), %machine, "this hub's sums go up to other hubs");
            Some(HubsAbove { hubs, machine, own: None })
        }
        (_, None) => None,
    };
    Ok(Up {
        above,
        control,
        for_outside: credential.clone().filter(|_| !settings.insecure),
        credential,
        peers: settings.peers.clone().unwrap_or_default(),
        interface: interface::address(settings.interface.as_ref())?,
        limit: Duration::from_secs(settings.heartbeat_limit_s),
        start_limit: Duration::from_secs(settings.above_limit_s),
        group: group.clone(),
        rdma: if has_rdma { Ok(()) } else { Err("this hub has no RDMA".to_owned()) },
    })
}

/// Returns a listener for each transport, and the address that workers get.
fn open_data_paths(
    settings: &HubSettings,
    control: SocketAddr,
    ports: usize,
    has_rdma: bool,
    unshared: Option<String>,
) -> Result<(Vec<Arc<Listener>>, Vec<TransportAddress>), HubError> {
    let (mut listeners, mut addresses) = (Vec::new(), Vec::new());
    // Workers try the transports in the order of this list, the best first. The order of the setting does not
    // matter.
    for transport in Transport::ALL.into_iter().filter(|&each| settings.offers(each)) {
        let (listener, address) = match transport {
            Transport::Shm if unshared.is_some() => {
                let why = unshared.as_deref().unwrap_or_default();
                tracing::warn!(
                    why,
                    "this hub has no shared memory; workers of this machine use another transport"
                );
                continue;
            }
            Transport::Shm => {
                // The address is random, so no other process can have it, even in other network namespaces.
                // The address ends with this process.
                let address = shm::Listener::new_address().map_err(ConnectError::from)?;
                let listener = shm::Listener::bind(&address).map_err(ConnectError::from)?;
                (Listener::Shm(listener), TransportAddress::Shm { machine: any::machine(), address })
            }
            Transport::Verbs if !has_rdma => continue,
            Transport::Verbs => {
                let listener = verbs::Listener::bind(settings.handshake(control.ip()));
                let listener = listener.map_err(ConnectError::from)?;
                let address = listener.address();
                (Listener::Verbs(listener), TransportAddress::Verbs { address })
            }
            Transport::Tcp => {
                let listener = tcp::Listener::bind(settings.data_path(control.ip()));
                let listener =
                    listener.and_then(|listener| listener.with_congestion(settings.tcp_congestion.clone()));
                let (listener, controlled) = listener.map_err(ConnectError::from)?;
                tracing::info!("TCP: {controlled}");
                let addresses = vec![listener.address(); ports];
                (Listener::Tcp(listener), TransportAddress::Tcp { addresses })
            }
        };
        tracing::info!(%transport, address = spoken(&address), "data path");
        listeners.push(Arc::new(listener));
        addresses.push(address);
    }
    if listeners.is_empty() {
        return Err(match unshared {
            Some(why) => ConnectError::from(shm::ConnectError::Unshared(why)).into(),
            None => HubError::NoTransport,
        });
    }
    Ok((listeners, addresses))
}

fn spoken(address: &TransportAddress) -> String {
    match address {
        TransportAddress::Shm { address, .. } => address.clone(),
        TransportAddress::Verbs { address } => address.to_string(),
        TransportAddress::Tcp { addresses } => addresses.first().map(ToString::to_string).unwrap_or_default(),
    }
}

fn control_runtime() -> std::io::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(JOINS_AT_ONCE)
        .thread_name("phub-join")
        .thread_keep_alive(JOIN_THREAD_IDLE)
        .on_thread_start(guards_threads())
        .build()
}

/// Runs a part of a task, and catches a panic of that part, so that the task continues. After a panic the
/// [alarm](Alarm) stops the hub cleanly, and a clean stop needs the tasks.
fn survive(work: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(work));
}

fn run_control(
    runtime: Runtime,
    socket: std::net::TcpListener,
    registry: Arc<Registry>,
    (router, limits): (Router, ControlLimits),
    encryption: Arc<Encryption>,
    mut reports: UnboundedReceiver<Report>,
    stopped: watch::Receiver<bool>,
) {
    runtime.block_on(async {
        let socket = tokio::net::TcpListener::from_std(socket).expect("the socket is non-blocking");
        let (sweeping, looking) = (Arc::clone(&registry), Arc::clone(&registry));
        tokio::spawn(async move {
            while let Some(report) = reports.recv().await {
                survive(|| registry.report(report));
            }
        });
        tokio::spawn(async move {
            let mut ticks = tokio::time::interval(SWEEP);
            // After a suspension of this process, there is one tick, and not one for each missed tick.
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let (mut last, mut pauses) = (Instant::now(), Pauses::new(sweeping.heartbeat_limit()));
            loop {
                ticks.tick().await;
                let late = last.elapsed().saturating_sub(SWEEP);
                if pauses.restart(late, Instant::now()) {
                    survive(|| sweeping.stood_still(late));
                }
                last = Instant::now();
                survive(|| sweeping.sweep());
            }
        });
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(looking.late.pause()).await;
                let looking = Arc::clone(&looking);
                let _ = tokio::spawn(async move { looking.look_at_rounds().await }).await;
            }
        });
        let mut ends = stopped.clone();
        if tokio::spawn(control::serve(socket, router, limits, encryption, stopped)).await.is_err() {
            let _ = ends.wait_for(|stops| *stops).await;
        }
    });
    // Ends the tasks, which hold references to the registry.
    runtime.shutdown_timeout(Duration::ZERO);
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::Pin;
    use std::task::{Context, Wake, Waker};

    use hub_threads::{Command, Reply};
    use pbox_core::JobId;

    use super::*;
    use crate::registry::on_thread;
    use crate::settings::{CoreSelection, IdleChoice};

    fn settings() -> HubSettings {
        HubSettings {
            listen: ([127, 0, 0, 1], 0).into(),
            cores: Some(CoreSelection::Count(1)),
            idle: IdleChoice::Sleep,
            ..HubSettings::default()
        }
    }

    /// Starts a hub, breaks it by `breaks`, and returns the reason with which it ends.
    fn broken_by(breaks: impl FnOnce(&Registry)) -> String {
        let hub = Hub::start(&settings()).unwrap();
        let registry = hub.registry.as_ref().unwrap();
        registry.check_open().unwrap();
        breaks(registry);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let what = runtime.block_on(hub.broken());
        registry.check_open().expect_err("it admits nobody");
        hub.stop("a test");
        what
    }

    /// A waker that panics on the thread that sends an answer.
    struct Panics;

    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("as it should")
        }
    }

    #[test]
    fn a_panic_anywhere_is_named_and_ends_the_hub_in_order() {
        let says = |what: String, thread: &str| {
            assert!(
                what.contains(thread) && what.contains("hub.rs") && what.contains("as it should"),
                "{what}"
            );
        };
        // The receiver lives until the core has sent the answer: only then does the core wake anybody.
        let (reply, mut answer) = Reply::new();
        let waker = Waker::from(Arc::new(Panics));
        assert!(Pin::new(&mut answer).poll(&mut Context::from_waker(&waker)).is_pending());
        let core = |registry: &Registry| registry.cores[0].tell(Command::Look { job: JobId(0), reply });
        says(broken_by(core), "thread phub-core-");
        let task = async { panic!("as it should") };
        says(broken_by(|registry| drop(registry.runtime.spawn(task))), "thread phub-control");
        let file = on_thread("phub-checkpoint", || panic!("as it should"));
        let file = async { file.await.unwrap() };
        says(broken_by(|registry| drop(registry.runtime.spawn(file))), "thread phub-checkpoint");
        let join = |registry: &Registry| drop(registry.runtime.spawn_blocking(|| panic!("as it should")));
        says(broken_by(join), "thread phub-join");
    }

    #[test]
    fn a_stop_waits_for_a_thread_that_works_on_files() {
        let dir = tempfile::tempdir().unwrap();
        let settings = HubSettings { checkpoints: Some(dir.path().to_owned()), ..settings() };
        let hub = Hub::start(&settings).unwrap();
        let registry = Arc::clone(hub.registry.as_ref().unwrap());
        let (next_hub, started) = channel::<Infallible>();
        let works = std::thread::spawn(move || {
            let _ = started.recv_timeout(Duration::from_millis(200));
            drop(registry);
        });
        hub.stop("a test");
        let next = Hub::start(&settings);
        drop(next_hub);
        next.expect("the directory is free");
        works.join().unwrap();
    }
}
