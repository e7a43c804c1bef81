//! The report of a run with compute. It has samples per second, and the layers for which the workers waited. It also
//! has the share of the communication that took no extra time, because the workers computed meanwhile.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use super::bound::shortest_iteration;
use super::trace::ComputePlan;

/// The number of rows of the table, which has the layers with the longest waits.
const WORST: usize = 8;
const BAR: f64 = 30.0;

/// The measurements of one worker, in nanoseconds.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Times {
    /// The time of each iteration.
    pub iterations: Vec<u64>,
    /// The time for which the worker waited for each layer's weights without anything to compute, over all
    /// iterations.
    pub stalled: Vec<u64>,
    /// The time of each exchange of the whole model without compute. The exchanges are of the same run.
    pub exchanges: Vec<u64>,
}

/// The result of a run, as means over iterations and workers. `docs/compute.md` has the formulas.
#[derive(Clone, Debug, Serialize)]
pub struct ComputeReport {
    trace: String,
    batch: u32,
    time_scale: f64,
    /// The number of samples per second of all workers together.
    pub samples_per_s: f64,
    iteration_ms: f64,
    compute_ms: f64,
    /// The time of waiting for weights in the forward pass.
    pub stalled_ms: f64,
    /// The time without compute and without waiting for weights: threads woke late, or had no core.
    late_ms: f64,
    exchange_ms: f64,
    /// The share of an exchange that took no extra time, because the worker computed meanwhile.
    pub overlap: f64,
    /// The most samples per second if computing and the link are as busy as possible, and each layer waits
    /// for its weights.
    bound_samples_per_s: Option<f64>,
    bound_ratio: Option<f64>,
    /// The layers, in the order of the forward pass.
    pub layers: Vec<LayerReport>,
}

/// One layer.
#[derive(Clone, Debug, Serialize)]
pub struct LayerReport {
    /// The name.
    pub name: String,
    /// Bytes of each of its keys.
    key_bytes: Vec<u64>,
    forward_ms: f64,
    backward_ms: f64,
    /// The time of waiting for the layer's weights, per iteration.
    pub stalled_ms: f64,
}

impl ComputeReport {
    /// Makes the report from the workers' measurements, for a model with keys of `key_bytes`. Each worker's
    /// link carries the model at `bandwidth_gbps` in each direction, if that is known.
    pub fn new(
        plan: &ComputePlan,
        time_scale: f64,
        key_bytes: &[u64],
        bandwidth_gbps: Option<f64>,
        by_worker: &[Times],
    ) -> Self {
        let batch = f64::from(plan.batch);
        let iterations = by_worker.iter().map(|times| mean(&times.iterations)).collect::<Vec<_>>();
        let samples_per_s = iterations.iter().map(|ns| batch * 1e9 / ns).sum();
        let iteration_ms = mean_of(&iterations) / 1e6;
        let stalled_in = |layer: usize| {
            let of_worker =
                |times: &Times| times.stalled[layer] as f64 / times.iterations.len().max(1) as f64;
            mean_of(&by_worker.iter().map(of_worker).collect::<Vec<_>>()) / 1e6
        };
        let layers: Vec<LayerReport> = (plan.steps.iter().enumerate())
            .map(|(number, step)| LayerReport {
                name: step.name.clone(),
                key_bytes: step.keys.iter().map(|key| key_bytes[key.index()]).collect(),
                forward_ms: step.forward.as_secs_f64() * 1e3,
                backward_ms: step.backward.as_secs_f64() * 1e3,
                stalled_ms: stalled_in(number),
            })
            .collect();
        let stalled_ms = layers.iter().map(|layer| layer.stalled_ms).sum::<f64>();
        let exchange_ms =
            mean_of(&by_worker.iter().map(|times| median(&times.exchanges)).collect::<Vec<_>>()) / 1e6;
        let compute_ms = plan.compute().as_secs_f64() * 1e3;
        let shortest = |gbps: f64| shortest_iteration(plan, key_bytes, gbps * 1e9 / 8.0).as_secs_f64();
        let bound_samples_per_s = bandwidth_gbps.map(|gbps| batch * by_worker.len() as f64 / shortest(gbps));
        ComputeReport {
            trace: plan.name.clone(),
            batch: plan.batch,
            time_scale,
            samples_per_s,
            iteration_ms,
            compute_ms,
            stalled_ms,
            late_ms: iteration_ms - compute_ms - stalled_ms,
            exchange_ms,
            overlap: (1.0 - stalled_ms / exchange_ms).clamp(0.0, 1.0),
            bound_ratio: bound_samples_per_s.map(|bound| samples_per_s / bound),
            bound_samples_per_s,
            layers,
        }
    }

    /// Returns names and values of rows for the probe's table.
    pub fn rows(&self) -> Vec<(&'static str, String)> {
        let alone = self.iteration_ms.recip() * self.compute_ms;
        let mut rows = vec![
            ("compute", format!("{}, batch {}, times {}", self.trace, self.batch, self.time_scale)),
            (
                "samples",
                format!("{:.1} a second, {alone:.2} of what computing alone allows", self.samples_per_s),
            ),
            (
                "an iteration",
                format!(
                    "{:.2} ms: {:.2} computing, {:.2} stalled in forward, {:.2} late",
                    self.iteration_ms,
                    self.compute_ms,
                    self.stalled_ms,
                    self.late_ms.max(0.0)
                ),
            ),
            (
                "overlap",
                format!(
                    "{:.2} of an exchange, which takes {:.2} ms with no compute",
                    self.overlap, self.exchange_ms
                ),
            ),
        ];
        if let (Some(bound), Some(ratio)) = (self.bound_samples_per_s, self.bound_ratio) {
            rows.push(("bound", format!("{bound:.1} samples a second, {ratio:.2} of it reached")));
        }
        rows
    }

    /// Returns a bar for each of the layers with the longest waits, in the order of the forward pass.
    pub fn worst_layers(&self) -> String {
        let mut worst: Vec<(usize, &LayerReport)> = self.layers.iter().enumerate().collect();
        worst.sort_by(|(_, a), (_, b)| b.stalled_ms.total_cmp(&a.stalled_ms));
        worst.truncate(WORST);
        worst.retain(|(_, layer)| layer.stalled_ms > 0.0);
        let Some(longest) = worst.first().map(|(_, layer)| layer.stalled_ms) else { return String::new() };
        worst.sort_by_key(|&(number, _)| number);
        let mut text = "\n  layer                             ms  stalled, in an iteration\n".to_owned();
        for (_, LayerReport { name, stalled_ms, .. }) in worst {
            let bar = "█".repeat((stalled_ms / longest * BAR).ceil() as usize);
            let _ = writeln!(text, "  {name:<28.28} {stalled_ms:>7.2}  {bar}");
        }
        text
    }
}

fn mean(ns: &[u64]) -> f64 {
    ns.iter().sum::<u64>() as f64 / ns.len().max(1) as f64
}

fn mean_of(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

fn median(ns: &[u64]) -> f64 {
    let mut sorted = ns.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).map_or(f64::NAN, |&ns| ns as f64)
}
