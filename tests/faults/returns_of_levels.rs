//! A hub of a job on several machines ends and is started again. It is a hub above other hubs, a hub below,
//! or a hub of a mesh. The job ends at all hubs, and the sessions of all machines wait.

use std::net::SocketAddr;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use super::returning::{
    NESTEROV, SEED, Stops, WORKERS, begun, end_together, has_a_checkpoint, waiting, weights,
};
use crate::processes::hub::begin_hub;
use fabric::conformance::Watchdog;
use hub_tests::program::{Program, until};
use hub_tests::values::{Reference, bits, fill_gradient};
use hub_tests::{free_address, on_threads, ready_all, says, small_model};
use pbox_core::control::{Machine, Mesh};
use rustix::process::Signal;
use worker_shim::{Returns, Session, SessionConfig};

/// The number of machines, with two workers each.
pub(super) const MACHINES: u32 = 2;

/// The hubs of all machines and the hub above them, as processes.
pub(super) struct Cluster {
    /// The hub of machine 0, of machine 1, and the hub above if this is not a mesh.
    pub programs: Vec<Program>,
    addresses: Vec<SocketAddr>,
    variables: Vec<Vec<(&'static str, String)>>,
    /// The directories of the hubs that keep the weights.
    pub dirs: Vec<tempfile::TempDir>,
    is_mesh: bool,
}

impl Cluster {
    /// Starts the machines. Checkpoints are written every `every` rounds.
    pub fn start(is_mesh: bool, every: u32, above_limit_s: u32) -> Self {
        Self::start_with(is_mesh, every, above_limit_s, |_, _| ())
    }

    /// Starts the machines with other settings for each hub. `change` gets the addresses and the settings of
    /// the hubs.
    pub fn start_with(
        is_mesh: bool,
        every: u32,
        above_limit_s: u32,
        change: impl FnOnce(&[SocketAddr], &mut [Vec<(&'static str, String)>]),
    ) -> Self {
        let count = if is_mesh { MACHINES } else { MACHINES + 1 };
        let addresses: Vec<SocketAddr> = (0..count).map(|_| free_address()).collect();
        let dirs: Vec<_> =
            (0..if is_mesh { MACHINES } else { 1 }).map(|_| tempfile::tempdir().unwrap()).collect();
        let variables = (0..count).map(|hub| {
            let mut all = vec![("PHUB_LISTEN", addresses[hub as usize].to_string())];
            // A hub may be killed after its join at the hub above, but before its links are made. The hub
            // above notices that only after this time.
            all.push(("PHUB_HEARTBEAT_LIMIT_S", "8".to_owned()));
            if is_mesh || hub == MACHINES {
                let dir = if is_mesh { &dirs[hub as usize] } else { &dirs[0] };
                all.push(("PHUB_CHECKPOINTS", dir.path().to_str().unwrap().to_owned()));
                all.push(("PHUB_CHECKPOINT_EVERY", every.to_string()));
            } else {
                all.push(("PHUB_ABOVE", addresses[MACHINES as usize].to_string()));
                all.push(("PHUB_MACHINE", format!("{hub}/{MACHINES}")));
                all.push(("PHUB_ABOVE_LIMIT_S", above_limit_s.to_string()));
            }
            all
        });
        let mut variables: Vec<_> = variables.collect();
        change(&addresses, &mut variables);
        let programs = variables.iter().map(|variables| begin(variables)).collect();
        Cluster { programs, addresses, variables, dirs, is_mesh }
    }

    pub fn config(&self, machine: u32, rank: u32) -> SessionConfig {
        let mesh =
            Mesh { machine: Machine { number: machine, of: MACHINES }, meet: self.addresses[0].to_string() };
        let mesh = self.is_mesh.then_some(mesh);
        SessionConfig { mesh, ..waiting(self.addresses[machine as usize], rank) }
    }

    pub fn kill(&mut self, hub: usize) {
        self.programs[hub].signal(Signal::KILL);
        self.programs[hub].end();
    }

    pub fn again(&mut self, hub: usize) {
        self.programs[hub] = begin(&self.variables[hub]);
    }
}

fn begin(variables: &[(&str, String)]) -> Program {
    let variables: Vec<(&str, &str)> = variables.iter().map(|(name, value)| (*name, &**value)).collect();
    let mut program = begin_hub(&variables);
    program.read_reply();
    program
}

/// Runs all workers. Returns their results, by the number among the workers of all machines.
pub(super) fn on_machines<T: Send>(worker: impl Fn(u32) -> T + Sync) -> Vec<T> {
    on_threads(MACHINES * WORKERS, worker)
}

fn step(session: &mut Session, worker: u32, number: u32) {
    for key in session.keys() {
        session.wait(key).unwrap();
        fill_gradient(SEED, worker, number, key, session.gradient_mut(key).unwrap());
        session.push(key).unwrap();
    }
}

/// Kills these hubs one after another, at any moment. All workers make all their steps, and have the same
/// weights at the end.
fn killed(is_mesh: bool, turn: &[usize]) {
    const STEPS: u32 = 200;
    const KILLS: u32 = 4;
    let _watchdog = Watchdog::start();
    let mut cluster = Cluster::start(is_mesh, 10, 30);
    let configs: Vec<_> =
        (0..MACHINES * WORKERS).map(|number| cluster.config(number / WORKERS, number % WORKERS)).collect();
    let (stops, ended) = (Stops::every(MACHINES * WORKERS, STEPS / (KILLS + 1)), AtomicU32::new(0));
    let seen = std::thread::scope(|scope| {
        scope.spawn(|| {
            until("a checkpoint is there", || has_a_checkpoint(&cluster.dirs));
            stops.kill(KILLS, |number| {
                cluster.kill(turn[number % turn.len()]);
                cluster.again(turn[number % turn.len()]);
            });
        });
        on_machines(|worker| {
            let mut session = begun(configs[worker as usize].clone());
            for number in 0..STEPS {
                stops.before(&mut session, number);
                step(&mut session, worker, number);
                std::thread::sleep(Duration::from_millis(u64::from(worker + number) % 3));
            }
            end_together(&mut session, &ended, MACHINES * WORKERS);
            (weights(&session), session.returns().lost_rounds, session.next_round())
        })
    });
    assert!(seen.iter().all(|of| *of == seen[0]), "the workers differ");
    let (_, lost, round) = seen[0]; // a worker may see two ends of a hub as one
    assert_eq!(u64::from(round.0) + lost, u64::from(STEPS) + 1, "{lost} are lost");
}

#[test]
fn a_hub_above_others_may_be_killed_at_any_moment() {
    killed(false, &[MACHINES as usize]);
}

#[test]
fn a_hub_below_others_may_be_killed_at_any_moment() {
    killed(false, &[1, 0]);
}

#[test]
fn a_hub_of_a_mesh_may_be_killed_at_any_moment() {
    killed(true, &[0, 1]);
}

/// Trains while hubs that keep weights stop. The workers push the gradients of a round one after another.
fn stopped(is_mesh: bool, turn: &[usize]) {
    const STEPS: u32 = 60;
    let _watchdog = Watchdog::start();
    let mut cluster = Cluster::start(is_mesh, 1000, 30);
    let configs: Vec<_> =
        (0..MACHINES * WORKERS).map(|number| cluster.config(number / WORKERS, number % WORKERS)).collect();
    let count = turn.len() as u32;
    let (stops, ended) = (Stops::every(MACHINES * WORKERS, STEPS / (count + 1)), AtomicU32::new(0));
    let seen = std::thread::scope(|scope| {
        scope.spawn(|| {
            stops.make(count, |stop| {
                let hub = turn[stop as usize - 1];
                cluster.programs[hub].finish();
                cluster.again(hub);
            });
        });
        on_machines(|worker| {
            let mut session = begun(configs[worker as usize].clone());
            for number in 0..STEPS {
                stops.before(&mut session, number);
                for key in session.keys() {
                    fill_gradient(SEED, worker, number, key, session.gradient_mut(key).unwrap());
                    std::thread::sleep(Duration::from_millis(2)); // computing
                    session.push(key).unwrap();
                }
                session.wait_all().unwrap();
            }
            end_together(&mut session, &ended, MACHINES * WORKERS);
            assert_eq!(session.returns(), Returns { times: count, lost_rounds: 0 });
            weights(&session)
        })
    });
    let reference = Reference::new(SEED, MACHINES * WORKERS, NESTEROV, &small_model());
    let reference = reference.on_machines(vec![WORKERS; MACHINES as usize]).after(STEPS);
    let expected: Vec<Vec<u32>> = reference.weights.iter().map(|weights| bits(weights)).collect();
    assert!(seen.iter().all(|weights| *weights == expected), "a step with the gradients of some workers");
}

#[test]
fn a_hub_of_a_mesh_that_stops_loses_nothing() {
    stopped(true, &[1, 0, 1]);
}

#[test]
fn a_hub_above_or_below_others_that_stops_loses_nothing() {
    stopped(false, &[MACHINES as usize, 0, 1]);
}

#[test]
fn a_hub_above_that_does_not_come_back_is_named_on_all_machines_in_time() {
    let _watchdog = Watchdog::start();
    let mut cluster = Cluster::start(false, 1000, 1);
    let wait = Duration::from_millis(700);
    let config =
        |number| SessionConfig { hub_wait: wait, ..cluster.config(number / WORKERS, number % WORKERS) };
    let configs: Vec<_> = (0..MACHINES * WORKERS).map(config).collect();
    let sessions = ready_all(MACHINES * WORKERS, |number| configs[number as usize].clone());
    let above = cluster.addresses[MACHINES as usize].to_string();
    cluster.kill(MACHINES as usize);
    std::thread::scope(|scope| {
        let ends: Vec<_> = sessions
            .into_iter()
            .map(|mut session| {
                scope.spawn(move || hub_tests::push_all(&mut session).and_then(|()| session.wait_all()))
            })
            .collect();
        for end in ends {
            let error = end.join().unwrap().unwrap_err();
            says(error, &["job \"job\"", "lost the hub at", &above, "did not come back within"]);
        }
    });
}
