//! A trace, and the plan that it gives for a job's keys.
//!
//! This module has only data, which its caller owns. It must not depend on where a trace comes from.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use pbox_core::{Key, KeyId};

/// The longest time of a layer. A longer time means that the unit is wrong.
const LONGEST_US: f64 = 3600.0 * 1e6;

/// The compute times of a model's layers.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    /// The name.
    pub name: String,
    /// Samples in a worker's batch.
    pub batch: u32,
    /// The layers, in the order of the forward pass.
    pub layers: Vec<Layer>,
}

/// Keys whose weights are needed at the same time, and whose gradients are ready at the same time.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    /// The name, unique in its trace.
    pub name: String,
    /// Names of its keys.
    pub keys: Vec<String>,
    /// The time from a layer's weights and inputs to its outputs, in microseconds.
    pub forward_us: f64,
    /// The time from the gradients of a layer's outputs to all gradients of the layer, in microseconds.
    pub backward_us: f64,
}

/// The trace for one job: keys by number, times scaled.
#[derive(Clone, Debug)]
pub struct ComputePlan {
    /// The trace's name.
    pub name: String,
    /// Samples in a worker's batch.
    pub batch: u32,
    /// The steps, in the order of the forward pass.
    pub steps: Vec<ComputeStep>,
}

/// One layer of a plan.
#[derive(Clone, Debug)]
pub struct ComputeStep {
    /// The layer's name.
    pub name: String,
    /// The keys.
    pub keys: Vec<KeyId>,
    /// The time in the forward pass.
    pub forward: Duration,
    /// The time in the backward pass.
    pub backward: Duration,
}

impl Trace {
    /// Returns the plan for a job with these keys. All times are multiplied by `time_scale`.
    ///
    /// # Errors
    /// Returns an error if the trace names an unknown key, names a key twice, or leaves a key out. Also
    /// returns an error if a time is out of range.
    pub fn plan(&self, keys: &[Key], time_scale: f64) -> Result<ComputePlan> {
        let trace = &self.name;
        ensure!(
            time_scale.is_finite() && time_scale > 0.0,
            "time scale {time_scale}: expected a number above 0"
        );
        ensure!(
            !self.layers.is_empty(),
            "trace {trace:?} has no layers: give a line for each, after the first line"
        );
        let ids: HashMap<&str, KeyId> = keys.iter().map(|key| &*key.name).zip((0..).map(KeyId)).collect();
        let mut layer_of: Vec<Option<&str>> = vec![None; keys.len()];
        let mut steps = Vec::with_capacity(self.layers.len());
        for layer in &self.layers {
            let mut numbers = Vec::with_capacity(layer.keys.len());
            for name in &layer.keys {
                let key = *ids.get(&**name).with_context(|| {
                    let first = keys.first().map_or_else(String::new, |key| at_most(&key.name));
                    format!(
                        "trace {trace:?}, layer {:?}: key {:?} is not one of the model's {} keys (the first is {first:?}); is the trace of another model? Choose it by --model or --manifest",
                        at_most(&layer.name),
                        at_most(name),
                        keys.len()
                    )
                })?;
                if let Some(other) = layer_of[key.index()].replace(&layer.name) {
                    let [key, other, this] = [name, other, &layer.name].map(at_most);
                    bail!(
                        "trace {trace:?}: key {key:?} is in layer {other:?} and in layer {this:?}; expected it in one"
                    );
                }
                numbers.push(key);
            }
            numbers.sort();
            let forward = self.scaled(layer, "forward_us", layer.forward_us, time_scale)?;
            let backward = self.scaled(layer, "backward_us", layer.backward_us, time_scale)?;
            steps.push(ComputeStep { name: layer.name.clone(), keys: numbers, forward, backward });
        }
        let missing: Vec<&Key> =
            layer_of.iter().zip(keys).filter(|(layer, _)| layer.is_none()).map(|(_, key)| key).collect();
        if let Some(first) = missing.first() {
            bail!(
                "trace {trace:?}: {} of the model's keys are in no layer, the first of them {:?}; name each key in the layer that uses it",
                missing.len(),
                at_most(&first.name)
            );
        }
        Ok(ComputePlan { name: trace.clone(), batch: self.batch, steps })
    }

    fn scaled(&self, layer: &Layer, what: &str, us: f64, scale: f64) -> Result<Duration> {
        ensure!(
            us > 0.0 && us.is_finite() && us * scale <= LONGEST_US,
            "trace {:?}, layer {:?}: {what} is {us} (times {scale}); expected microseconds above 0, and below an hour",
            self.name,
            at_most(&layer.name)
        );
        Ok(Duration::from_secs_f64(us * scale / 1e6))
    }
}

/// The most characters that an error shows of a name from a file.
const ECHOED_CHARS: usize = 64;

pub(super) fn at_most(name: &str) -> String {
    name.chars().take(ECHOED_CHARS).collect()
}

impl ComputePlan {
    /// Returns the time of an iteration without communication.
    pub fn compute(&self) -> Duration {
        self.steps.iter().map(|step| step.forward + step.backward).sum()
    }
}
