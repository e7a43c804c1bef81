//! The parts that tests of restarted hubs share: hubs to kill and start again, workers that wait for hubs,
//! and the schedule of stops.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::processes::hub::begin_hub;
use hub_tests::program::{Program, until};
use hub_tests::values::{Reference, bits, fill_gradient, fill_weights};
use hub_tests::{FIRST, config_at, free_address, small_model};
use pbox_core::Optimizer;
use rustix::process::Signal;
use worker_shim::{Session, SessionConfig, SessionError};

pub(super) const NESTEROV: Optimizer =
    Optimizer::Nesterov { learning_rate: 0.1, weight_decay: 1e-4, momentum: 0.9 };
pub(super) const WORKERS: u32 = 2;
pub(super) const SEED: u64 = 7;

/// Returns a worker that waits if its hub is lost.
pub(super) fn waiting(address: SocketAddr, rank: u32) -> SessionConfig {
    let mut config = config_at(&address.to_string(), "job", rank, WORKERS);
    config.terms.optimizer = NESTEROV;
    config.hub_wait = Duration::from_secs(60);
    config.terms.compare_every = 1; // weights are equal after each return
    config
}

/// Returns a hub at this address that can be killed. It writes a checkpoint every `every` rounds.
pub(super) fn start_process(address: SocketAddr, directory: &Path, every: u32) -> Program {
    let directory = directory.to_str().unwrap();
    begin_hub(&[
        ("PHUB_LISTEN", &address.to_string()),
        ("PHUB_CHECKPOINTS", directory),
        ("PHUB_CHECKPOINT_EVERY", &every.to_string()),
    ])
}

pub(super) fn write(session: &mut Session, rank: u32, step: u32) {
    for key in session.keys() {
        fill_gradient(SEED, rank, step, key, session.gradient_mut(key).unwrap());
    }
}

/// Makes one step of a script. The gradients depend on the number of the step, and not on the hub's round.
pub(super) fn step(session: &mut Session, rank: u32, step: u32) -> Result<(), SessionError> {
    write(session, rank, step);
    session.keys().try_for_each(|key| session.push(key))?;
    session.wait_all()
}

pub(super) fn begun(config: SessionConfig) -> Session {
    let mut session = Session::join(config).unwrap();
    session.broadcast_weights(|key, weights| fill_weights(SEED, key, weights)).unwrap();
    session
}

/// Waits for the last answers of all workers. If a worker ended earlier, or were missing when a hub returns,
/// the other workers would end with an error.
pub(super) fn end_together(session: &mut Session, ended: &AtomicU32, workers: u32) {
    session.wait_all().unwrap();
    ended.fetch_add(1, Ordering::Relaxed);
    until("all workers have their last answers", || {
        session.is_ready(FIRST).unwrap();
        ended.load(Ordering::Relaxed) >= workers
    });
    // No worker may end while another worker still checks its session.
    ended.fetch_add(1, Ordering::Relaxed);
    until("no worker looks any more", || ended.load(Ordering::Relaxed) >= 2 * workers);
}

/// The schedule of stops: a hub stops once every `span` steps of the workers.
#[derive(Default)]
pub(super) struct Stops {
    workers: u32,
    span: u32,
    made: AtomicU32,
    over: AtomicU32,
    /// The sum of all workers' returns. Each stop adds 1 for each worker.
    back: AtomicU32,
}

impl Stops {
    pub fn every(workers: u32, span: u32) -> Self {
        Stops { workers, span, ..Stops::default() }
    }

    /// Stops a hub and starts it again, `stops` times.
    pub fn make(&self, stops: u32, mut stop: impl FnMut(u32)) {
        for number in 1..=stops {
            // A worker that is not back yet would see two stops as one.
            until("all workers are back", || {
                self.back.load(Ordering::Relaxed) >= (number - 1) * self.workers
            });
            until("some more rounds", || self.made.load(Ordering::Relaxed) >= number * self.span);
            stop(number);
            self.over.store(number, Ordering::Relaxed);
        }
    }

    /// Kills hubs one after another, at any moment of a round. Every second kill is followed by another kill
    /// while the job begins anew.
    pub fn kill(&self, kills: u32, mut kill: impl FnMut(usize)) {
        let mut number = 0;
        self.make(kills, |stop| {
            for _ in 0..1 + stop % 2 {
                std::thread::sleep(Duration::from_millis(u64::from(53 * stop + 31 * number) % 120));
                kill(number as usize);
                number += 1;
            }
        });
    }

    /// Waits before a worker's step until the stop that is due before this step is over, and the worker is
    /// back.
    pub fn before(&self, session: &mut Session, step: u32) {
        self.made.fetch_max(step, Ordering::Relaxed);
        let due = ((step + 1) / self.span).saturating_sub(1);
        until("the stop is over", || {
            session.is_ready(FIRST).unwrap();
            self.over.load(Ordering::Relaxed) >= due && session.returns().times >= due
        });
        if due > 0 && (step + 1).is_multiple_of(self.span) {
            self.back.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Whether the hubs with these directories have a checkpoint. Several hubs must have parts of the same round.
pub(super) fn has_a_checkpoint(dirs: &[tempfile::TempDir]) -> bool {
    let files = |dir: &Path| {
        let names = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string());
        names.map(Result::unwrap).filter(|name| name.ends_with(".safetensors")).collect::<Vec<_>>()
    };
    let [first, others @ ..] = dirs else { return false };
    let round = |name: &str| name.split_once(".hub").map_or(name.to_owned(), |(round, _)| round.to_owned());
    let has =
        |dir: &tempfile::TempDir, of: &str| files(dir.path()).iter().any(|name| round(name) == round(of));
    files(first.path()).iter().any(|name| others.iter().all(|dir| has(dir, name)))
}

pub(super) fn weights(session: &Session) -> Vec<Vec<u32>> {
    session.keys().map(|key| bits(session.weights::<f32>(key).unwrap())).collect()
}

/// Returns the addresses of all arrays of a session.
pub(super) fn places(session: &mut Session) -> Vec<(usize, usize)> {
    let keys: Vec<_> = session.keys().collect();
    let place = |key| {
        let (weights, gradient) = session.tensors::<f32>(key).unwrap();
        (weights.as_ptr() as usize, gradient.as_mut_ptr() as usize)
    };
    keys.into_iter().map(place).collect()
}

/// Returns the weights after `steps` steps without a loss.
pub(super) fn after(steps: u32) -> Vec<Vec<u32>> {
    let reference = Reference::new(SEED, WORKERS, NESTEROV, &small_model()).after(steps);
    reference.weights.iter().map(|weights| bits(weights)).collect()
}

/// The hubs of a job as processes, each with its own address and directory.
pub(super) struct Hubs {
    pub programs: Vec<Program>,
    pub addresses: Vec<SocketAddr>,
    pub dirs: Vec<tempfile::TempDir>,
    every: u32,
}

impl Hubs {
    pub fn start(count: usize, every: u32) -> Self {
        let addresses: Vec<_> = (0..count).map(|_| free_address()).collect();
        let dirs: Vec<_> = (0..count).map(|_| tempfile::tempdir().unwrap()).collect();
        let begin = |(address, dir): (&SocketAddr, &tempfile::TempDir)| {
            let mut program = start_process(*address, dir.path(), every);
            program.read_reply();
            program
        };
        let programs = addresses.iter().zip(&dirs).map(begin).collect();
        Hubs { programs, addresses, dirs, every }
    }

    pub fn list(&self) -> String {
        self.addresses.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(",")
    }

    pub fn kill(&mut self, hub: usize) {
        self.programs[hub].signal(Signal::KILL);
        self.programs[hub].end();
    }

    pub fn again(&mut self, hub: usize) {
        self.programs[hub] = start_process(self.addresses[hub], self.dirs[hub].path(), self.every);
        self.programs[hub].read_reply();
    }
}
