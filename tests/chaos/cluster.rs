//! The hubs of the run, each as a process behind a relay, and the workers that are alive.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, ensure};
use hub_tests::free_address;
use hub_tests::relay::Relay;
use rustix::process::{Pid, Signal, kill_process};

/// The hubs by number.
pub const STEADY: usize = 0;
pub const KILLED: usize = 1;
pub const SECOND: usize = 2;
pub const BELOW: [usize; 2] = [3, 4];
pub const HUBS: usize = 5;

/// The number of rounds between two checkpoints.
pub const EVERY: u32 = 20;
pub const HEARTBEAT_LIMIT_S: u64 = 4;

/// The process, and its standard input. The hub ends when this input is closed, at the end of the run.
type Running = (Child, ChildStdin);

/// A hub, which may be killed and started again on its ports.
pub struct HubProcess {
    pub name: String,
    pub address: SocketAddr,
    pub data: SocketAddr,
    pub relay: Relay,
    /// The directory of the hub's checkpoints, if the hub writes any.
    pub checkpoints: Option<PathBuf>,
    above: Option<(String, String)>,
    log: PathBuf,
    child: Mutex<Option<Running>>,
    restarting: Mutex<()>,
    lives: AtomicU32,
}

impl HubProcess {
    fn new(number: usize, dir: &Path, above: Option<(String, String)>) -> Result<Self> {
        let name = format!("hub{number}");
        let (address, data) = (free_address(), free_address());
        let checkpoints = above.is_none().then(|| dir.join(&name));
        checkpoints.as_ref().map_or(Ok(()), std::fs::create_dir)?;
        let log = dir.join(format!("{name}.log"));
        let (relay, child, restarting) = (Relay::start(address, data), Mutex::default(), Mutex::default());
        let lives = AtomicU32::new(0);
        Ok(HubProcess { name, address, data, relay, checkpoints, above, log, child, restarting, lives })
    }

    fn lock(&self) -> MutexGuard<'_, Option<Running>> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the hub between its end and its next start, so that no other thread starts it. A hub that is
    /// asked to stop takes up to ten seconds to end its rounds. Until then the hub holds its ports and its
    /// directory.
    pub fn restarts(&self) -> MutexGuard<'_, ()> {
        self.restarting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts its process.
    pub fn start(&self) -> Result<()> {
        let mut place = self.lock();
        if place.is_some() {
            return Ok(());
        }
        let limit = HEARTBEAT_LIMIT_S.to_string();
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["hub", "serve", "--cores", "1", "--idle", "sleep", "--transports", "shm,tcp"]);
        command.args(["--listen", &self.address.to_string(), "--data-listen", &self.data.to_string()]);
        command.args(["--heartbeat-limit-s", &limit, "--above-limit-s", "10"]);
        if let Some(dir) = &self.checkpoints {
            command.arg("--checkpoints").arg(dir).args(["--checkpoint-every", &EVERY.to_string()]);
        }
        if let Some((above, machine)) = &self.above {
            command.args(["--above", above, "--machine", machine]);
        }
        let log = File::options().create(true).append(true).open(&self.log)?;
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log).spawn()?;
        let mut first = String::new();
        BufReader::new(child.stdout.take().context("a pipe")?).read_line(&mut first)?;
        ensure!(
            first.contains("control port"),
            "{} does not start: {first:?}; see {}",
            self.name,
            self.log.display()
        );
        self.lives.fetch_add(1, Ordering::Relaxed);
        let stdin = child.stdin.take().context("a pipe")?;
        *place = Some((child, stdin));
        Ok(())
    }

    /// Ends the hub's process with a signal, and waits for the end.
    pub fn end(&self, signal: Signal) -> Result<()> {
        let Some((mut child, _stdin)) = self.lock().take() else { return Ok(()) };
        let status = {
            kill_process(Pid::from_child(&child), signal)?;
            child.wait()?
        };
        let clean = signal == Signal::KILL || status.success() || self.has_named_a_full_disk();
        ensure!(clean, "{} was told to stop and ended with {status}; see {}", self.name, self.log.display());
        Ok(())
    }

    /// Whether the hub has named, at its last stop, a job that it could not save on a full disk.
    fn has_named_a_full_disk(&self) -> bool {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let stop = log.rsplit("hub stops").next().unwrap_or_default();
        let unsaved = |line: &str| {
            line.contains("its last checkpoint was not written") && line.contains("No space left")
        };
        stop.lines().any(unsaved)
    }

    pub fn signal(&self, signal: Signal) {
        if let Some((child, _)) = &*self.lock() {
            // No thread has waited for the process, so the number still belongs to it.
            let _ = kill_process(Pid::from_child(child), signal);
        }
    }

    /// Returns the id of the hub's process, or an error if the process has ended.
    pub fn pid(&self) -> Result<u32> {
        let mut place = self.lock();
        let (child, _) = place.as_mut().with_context(|| format!("{} does not run", self.name))?;
        let ended = child.try_wait()?;
        ensure!(ended.is_none(), "{} ended by itself: {ended:?}; see {}", self.name, self.log.display());
        Ok(child.id())
    }

    /// Returns the number of times that the hub was started.
    pub fn lives(&self) -> u32 {
        self.lives.load(Ordering::Relaxed)
    }

    /// Returns the messages about panics in the logs of the hub and of its workers.
    pub fn panics(&self) -> Result<Vec<String>> {
        let mut text = String::new();
        File::open(&self.log)?.read_to_string(&mut text)?;
        Ok(text.lines().filter(|line| line.contains("panicked")).map(str::to_owned).collect())
    }
}

/// A worker process that is alive.
pub struct Living {
    pub pid: u32,
    /// Whether the run has killed it.
    pub killed: bool,
}

/// The hubs and the workers of the run.
pub struct Cluster {
    pub hubs: Vec<HubProcess>,
    /// The workers, by job and number.
    workers: Mutex<HashMap<(usize, u32), Living>>,
    /// Whether a hub has its own small disk, which not every machine permits.
    pub small_disk: bool,
}

impl Cluster {
    /// Starts all hubs, with files in `dir`.
    pub fn start(dir: &Path) -> Result<Self> {
        let mut hubs = Vec::new();
        for number in 0..HUBS {
            let above = BELOW.iter().position(|&below| below == number).map(|machine| {
                let top: &HubProcess = &hubs[KILLED];
                (top.relay.address(), format!("{machine}/{}", BELOW.len()))
            });
            hubs.push(HubProcess::new(number, dir, above)?);
        }
        let disk = hubs[KILLED].checkpoints.as_ref().context("it writes checkpoints")?;
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=48m", "tmpfs"]).arg(disk).stderr(Stdio::null());
        let small_disk = mount.status().is_ok_and(|status| status.success());
        hubs.iter().try_for_each(HubProcess::start)?;
        Ok(Cluster { hubs, workers: Mutex::default(), small_disk })
    }

    /// Returns the workers that are alive.
    pub fn workers(&self) -> MutexGuard<'_, HashMap<(usize, u32), Living>> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn signal_worker(&self, job: usize, number: u32, signal: Signal) {
        if let Some(living) = self.workers().get_mut(&(job, number)) {
            living.killed |= signal == Signal::KILL;
            if let Some(pid) = Pid::from_raw(living.pid as i32) {
                // The map of workers is locked, and a worker is removed from the map before its process is
                // waited for. So the number still belongs to the process.
                let _ = kill_process(pid, signal);
            }
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for living in self.workers().values() {
            if let Some(pid) = Pid::from_raw(living.pid as i32) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        for hub in &self.hubs {
            let _ = hub.end(Signal::KILL);
        }
        // The small disk is unmounted, so that the run's directory can be removed.
        if let Some(disk) = self.hubs[KILLED].checkpoints.as_ref().filter(|_| self.small_disk) {
            let _ = Command::new("umount").arg("--lazy").arg(disk).status();
        }
    }
}
