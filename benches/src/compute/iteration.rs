//! An iteration of a worker that waits instead of computing, with the time for which it waited for each
//! layer.
//!
//! The imitated GPU has its own clock, `computed_until`. A layer begins when the previous layer has ended and
//! the layer's own weights have arrived, not when this thread wakes. A late wake-up therefore delays a push,
//! as with a real GPU, but delays do not add up. The worker's thread owns the iteration, which is
//! generic over the worker, so that tests can have their own clock.

use std::time::Duration;

use pbox_core::KeyId;

use super::trace::{ComputePlan, ComputeStep};

/// A worker that computes: it pushes, waits, and lets time pass.
pub trait Worker {
    /// The error.
    type Error;

    /// Returns the time since some fixed beginning.
    fn now(&self) -> Duration;

    /// Whether a key's weights have arrived.
    fn is_ready(&mut self, key: KeyId) -> Result<bool, Self::Error>;

    /// Waits for a key's weights.
    fn wait(&mut self, key: KeyId) -> Result<(), Self::Error>;

    /// Sends a key's gradient.
    fn push(&mut self, key: KeyId) -> Result<(), Self::Error>;

    /// Continues the exchange until this time.
    fn compute_until(&mut self, until: Duration) -> Result<(), Self::Error>;

    /// Runs the worker's own check, once per iteration: when all weights have arrived, and before the next
    /// iteration pushes anything.
    fn look(&mut self) -> Result<(), Self::Error>;
}

/// A worker's iterations.
#[derive(Debug)]
pub struct Iteration<'a> {
    plan: &'a ComputePlan,
    computed_until: Duration,
    /// The time for which the worker waited for each layer's weights without anything to compute, over all
    /// iterations.
    stalled: Vec<Duration>,
}

impl<'a> Iteration<'a> {
    /// Creates the state before the first iteration, which begins now.
    pub fn new(plan: &'a ComputePlan, now: Duration) -> Self {
        Iteration { plan, computed_until: now, stalled: vec![Duration::ZERO; plan.steps.len()] }
    }

    /// Runs one iteration, forward and backward.
    pub fn run<W: Worker>(&mut self, worker: &mut W) -> Result<(), W::Error> {
        for (step, layer) in self.plan.steps.iter().zip(0..) {
            self.await_weights(worker, step, layer)?;
            self.compute(worker, step.forward)?;
        }
        worker.look()?;
        for step in self.plan.steps.iter().rev() {
            self.compute(worker, step.backward)?;
            step.keys.iter().rev().try_for_each(|&key| worker.push(key))?;
        }
        Ok(())
    }

    /// Resets all counts.
    pub fn restart(&mut self) {
        self.stalled.fill(Duration::ZERO);
    }

    /// Returns the time for which the worker waited for each layer's weights.
    pub fn stalled(&self) -> &[Duration] {
        &self.stalled
    }

    fn await_weights<W: Worker>(
        &mut self,
        worker: &mut W,
        step: &ComputeStep,
        layer: usize,
    ) -> Result<(), W::Error> {
        let mut was_there = true;
        for &key in &step.keys {
            if !worker.is_ready(key)? {
                was_there = false;
                worker.wait(key)?;
            }
        }
        if !was_there {
            let now = worker.now();
            self.stalled[layer] += now.saturating_sub(self.computed_until);
            self.computed_until = self.computed_until.max(now);
        }
        Ok(())
    }

    fn compute<W: Worker>(&mut self, worker: &mut W, time: Duration) -> Result<(), W::Error> {
        self.computed_until += time;
        worker.compute_until(self.computed_until)
    }
}

#[cfg(test)]
mod tests;
