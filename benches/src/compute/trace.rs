//! A trace, and the plan that it gives for a job's keys.
//!
//! Plain data, owned by its reader. Must not know where it came from.

use std::collections::HashMap;
use std::time::Duration;

use pbox_core::{Key, KeyId};

use super::error::{TraceError, at_most};

/// The longest time of a layer: a longer time is a mistake in the unit.
const LONGEST_US: f64 = 3600.0 * 1e6;

/// The compute times of a model's layers.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    /// Its name.
    pub name: String,
    /// Samples in a worker's batch.
    pub batch: u32,
    /// In the order of the forward pass.
    pub layers: Vec<Layer>,
}

/// Keys that are needed at the same time and have their gradients at the same time.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    /// Unique in its trace.
    pub name: String,
    /// Names of its keys.
    pub keys: Vec<String>,
    /// From its weights and inputs to its outputs, in microseconds.
    pub forward_us: f64,
    /// From its outputs' gradients to all of its own, in microseconds.
    pub backward_us: f64,
}

/// A trace of a job: keys by number, times scaled.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The trace's name.
    pub name: String,
    /// Samples in a worker's batch.
    pub batch: u32,
    /// In the order of the forward pass.
    pub steps: Vec<Step>,
}

/// One layer of a plan.
#[derive(Clone, Debug)]
pub struct Step {
    /// The layer's name.
    pub name: String,
    /// Its keys.
    pub keys: Vec<KeyId>,
    /// Its time in the forward pass.
    pub forward: Duration,
    /// Its time in the backward pass.
    pub backward: Duration,
}

impl Trace {
    /// The plan for a job with these keys, with all times multiplied by `time_scale`.
    ///
    /// # Errors
    /// When the trace names a key that the job does not have, names a key twice, or leaves a key out; when a time is out of
    /// range.
    pub fn plan(&self, keys: &[Key], time_scale: f64) -> Result<Plan, TraceError> {
        if !(time_scale.is_finite() && time_scale > 0.0) {
            return Err(TraceError::TimeScale { seen: time_scale });
        }
        if self.layers.is_empty() {
            return Err(TraceError::NoLayers { trace: self.name.clone() });
        }
        let ids: HashMap<&str, KeyId> = keys.iter().map(|key| &*key.name).zip((0..).map(KeyId)).collect();
        let mut layer_of: Vec<Option<&str>> = vec![None; keys.len()];
        let mut steps = Vec::with_capacity(self.layers.len());
        for layer in &self.layers {
            let mut numbers = Vec::with_capacity(layer.keys.len());
            for name in &layer.keys {
                let Some(&key) = ids.get(&**name) else { return Err(self.unknown_key(layer, name, keys)) };
                if let Some(other) = layer_of[key.index()].replace(&layer.name) {
                    let (key, layers) = (at_most(name), [other, &layer.name].map(at_most));
                    return Err(TraceError::KeyTwice { trace: self.name.clone(), key, layers });
                }
                numbers.push(key);
            }
            numbers.sort();
            let forward = self.scaled(layer, "forward_us", layer.forward_us, time_scale)?;
            let backward = self.scaled(layer, "backward_us", layer.backward_us, time_scale)?;
            steps.push(Step { name: layer.name.clone(), keys: numbers, forward, backward });
        }
        let missing: Vec<String> = layer_of
            .iter()
            .zip(keys)
            .filter(|(layer, _)| layer.is_none())
            .map(|(_, k)| k.name.clone())
            .collect();
        if !missing.is_empty() {
            return Err(TraceError::MissingKeys { trace: self.name.clone(), missing });
        }
        Ok(Plan { name: self.name.clone(), batch: self.batch, steps })
    }

    fn unknown_key(&self, layer: &Layer, key: &str, keys: &[Key]) -> TraceError {
        TraceError::UnknownKey {
            trace: self.name.clone(),
            layer: at_most(&layer.name),
            key: at_most(key),
            keys: keys.len(),
            first: keys.first().map_or_else(String::new, |key| at_most(&key.name)),
        }
    }

    fn scaled(&self, layer: &Layer, what: &'static str, us: f64, scale: f64) -> Result<Duration, TraceError> {
        let scaled = us * scale;
        if us > 0.0 && us.is_finite() && scaled <= LONGEST_US {
            return Ok(Duration::from_secs_f64(scaled / 1e6));
        }
        let (trace, layer) = (self.name.clone(), at_most(&layer.name));
        Err(TraceError::Time { trace, layer, what, seen: us, scale })
    }
}

impl Plan {
    /// The time of an iteration without communication.
    pub fn compute(&self) -> Duration {
        self.steps.iter().map(|step| step.forward + step.backward).sum()
    }
}
