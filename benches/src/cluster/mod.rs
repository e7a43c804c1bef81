//! The timeline of a simulated cluster: how fast machines with known links, compute times and start-up times
//! would train. The simulated cluster can have more machines than are available (iBatch's paper has 72). The
//! figures use the simulation, which was checked against measurements on few machines.
//!
//! ```text
//!   trace (compute times) + placement (which hub has which bytes) + links -> Cluster
//!   pulled layer by layer -> profile -> batches -> pulled in batches -> time of an iteration
//! ```
//!
//! The caller owns the simulation, which must not depend on sessions, transports, or a real clock.

mod args;
mod network;
mod simulation;

pub use args::{Args, run};
pub use simulation::{Cluster, ClusterLayer, Ran, simulate};

use pbox_core::{Key, Layout, Placement, Schedule, Share};
use worker_shim::batch::{LayerCost, Profile};

use crate::compute::{ComputePlan, ComputeStep, shortest_iteration};

/// The number of iterations of a run. The last one counts; from the second on, they are equal.
const ITERATIONS: u32 = 3;

/// The placement of tensors on a cluster's hubs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Spread {
    /// The baseline of this hub: large tensors in parts on all hubs, and each small tensor on one hub.
    Hubs,
    /// Each tensor is spread evenly over all hubs, as in systems that cut one long vector of all tensors.
    Even,
}

/// Joins neighbouring layers whose names are equal up to a character. So each module of a network becomes one
/// layer, as the paper counts layers.
fn join(plan: ComputePlan, by: char) -> ComputePlan {
    let module = |name: &str| name.split(by).next().unwrap_or_default().to_owned();
    let mut steps: Vec<ComputeStep> = Vec::new();
    for step in plan.steps {
        match steps.last_mut() {
            Some(last) if last.name == module(&step.name) => {
                last.keys.extend(step.keys);
                last.forward += step.forward;
                last.backward += step.backward;
            }
            _ => steps.push(ComputeStep { name: module(&step.name), ..step }),
        }
    }
    ComputePlan { steps, ..plan }
}

/// Returns the layers of a plan. `bytes` has each hub's bytes of each key. A layer without keys computes as
/// a part of the previous layer.
fn layers(plan: &ComputePlan, bytes: &[Vec<f64>], hubs: usize) -> Vec<ClusterLayer> {
    let mut layers: Vec<ClusterLayer> = Vec::new();
    for step in &plan.steps {
        let (forward, backward) = (step.forward.as_secs_f64(), step.backward.as_secs_f64());
        match layers.last_mut() {
            Some(layer) if step.keys.is_empty() => {
                layer.forward += forward;
                layer.backward += backward;
            }
            _ => {
                let of_hub = |hub: usize| step.keys.iter().map(|key| bytes[key.index()][hub]).sum();
                layers.push(ClusterLayer { forward, backward, by_hub: (0..hubs).map(of_hub).collect() });
            }
        }
    }
    layers
}

fn key_bytes_by_hub(layout: &Layout, spread: Spread, hubs: usize, split_above: u64) -> Vec<Vec<f64>> {
    if spread == Spread::Even {
        let even = |key: &Key| vec![key.bytes().unwrap_or(0) as f64 / hubs as f64; hubs];
        return layout.keys().iter().map(even).collect();
    }
    let share = |hub| Share { hub, hubs: hubs as u32, split_above };
    let parts: Vec<Placement> =
        (0..hubs as u32).map(|hub| Placement::of_share(layout, Schedule::KvStore, share(hub), 1)).collect();
    let mut bytes = vec![vec![0.0; hubs]; layout.keys().len()];
    for (hub, chunks) in Placement::over_hubs(&parts).chunks_by_core().into_iter().enumerate() {
        for chunk in chunks.into_iter().map(|chunk| layout.chunk(chunk)) {
            bytes[chunk.key.index()][hub] += chunk.span.bytes as f64;
        }
    }
    bytes
}

impl Cluster {
    /// Returns the profile that a session would measure if it pulled layer by layer.
    pub fn profile(&self) -> Profile {
        let each: Vec<_> = (0..self.layers.len()).map(|layer| layer..layer + 1).collect();
        let pulls = simulate(self, &each, ITERATIONS).pulls;
        let start_up = self.start_up + self.latency;
        let cost = |(pull, layer): (&f64, &ClusterLayer)| LayerCost {
            transfer: f64::max(0.0, pull - start_up),
            forward: layer.forward,
        };
        Profile { start_up, layers: pulls.iter().zip(&self.layers).map(cost).collect() }
    }

    /// Returns the shortest iteration of any schedule, if gradients and weights cross these links.
    pub fn bound(&self, plan: &ComputePlan, key_bytes: &[u64]) -> f64 {
        let crossing = 2.0 * (self.nodes - 1) as f64 / self.nodes as f64;
        shortest_iteration(plan, key_bytes, self.link_bytes_per_s / crossing).as_secs_f64()
    }
}

#[cfg(test)]
mod tests;
