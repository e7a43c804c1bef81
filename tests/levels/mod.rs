//! Hubs below hubs. The workers of a machine push to the hub on that machine, and this hub sends one sum to a
//! hub above.

mod by_key;
mod checkpoints;
mod clipped;
mod codecs;
mod ends;
mod lateness;
mod slow;
mod staleness;
mod state;
mod weights;

use std::sync::Barrier;

use hub_tests::training::Training;
use hub_tests::{addresses, config_at, hub, hub_below};
use pbox_core::control::Mesh;
use phub_server::{Hub, Machine};
use worker_shim::SessionConfig;

/// Hubs at the top, and machines below them with a hub each.
struct Machines {
    /// The machines' hubs. They are dropped before `top`: a hub above that stops first would fail their jobs.
    below: Vec<Hub>,
    top: Vec<Hub>,
    is_mesh: bool,
}

impl Machines {
    /// Starts `tops` hubs at the top, with two cores each, and `machines` machines.
    fn start(tops: u32, machines: u32) -> Self {
        let top: Vec<Hub> = (0..tops).map(|_| hub(2)).collect();
        let list = addresses(&top);
        let below = (0..machines).map(|machine| hub_below(&list, machine, machines)).collect();
        Machines { below, top, is_mesh: false }
    }

    /// Starts a mesh of machines: the hub of each machine owns a share.
    fn mesh(machines: u32) -> Self {
        Machines { below: (0..machines).map(|_| hub(2)).collect(), top: Vec::new(), is_mesh: true }
    }

    fn config(&self, machine: u32, job: &str, rank: u32, workers: u32) -> SessionConfig {
        self.on(machine, config_at(&self.address(machine), job, rank, workers))
    }

    /// Returns `config` for a worker on a machine.
    fn on(&self, machine: u32, mut config: SessionConfig) -> SessionConfig {
        if self.is_mesh {
            let machine = Machine { number: machine, of: self.below.len() as u32 };
            config.mesh = Some(Mesh { machine, meet: self.address(0) });
        }
        config
    }

    /// Returns the hub beside a machine's workers.
    fn address(&self, machine: u32) -> String {
        self.below[machine as usize].address().to_string()
    }
}

/// Runs each machine's workers, each on its own thread. Returns their results by machine and rank.
fn on_machines<T: Send>(
    machines: u32,
    workers: u32,
    worker: impl Fn(u32, u32, &Barrier) -> T + Sync,
) -> Vec<Vec<T>> {
    let barrier = Barrier::new((machines * workers) as usize);
    let flat = hub_tests::on_threads(machines * workers, |at| worker(at / workers, at % workers, &barrier));
    let mut flat = flat.into_iter();
    (0..machines).map(|_| flat.by_ref().take(workers as usize).collect()).collect()
}

/// Trains on machines; `shape` has the number of workers of each machine. Returns the bits of the last
/// weights.
fn train(machines: &Machines, shape: &[u32], training: &Training) -> Vec<Vec<u32>> {
    let (all, here) = (shape.iter().sum(), shape[0]);
    assert!(shape.iter().all(|of_machine| *of_machine == here));
    let training = Training { workers: all, machines: shape.to_vec(), ..training.clone() };
    training.run_at(|rank| {
        let mut config = training.config(&machines.address(rank / here), rank % here);
        config.terms.workers = here;
        machines.on(rank / here, config)
    })
}
