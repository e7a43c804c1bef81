//! An iteration of a worker that waits where a GPU would compute, and what held it up.
//!
//! The GPU of the imitation has its own clock, `computed_until`: a layer begins when the one before has ended and
//! its weights are there, not when this thread, which may have been woken late, looks. So a late wake-up delays a
//! push, as it does beside a real GPU, and adds up to nothing. Owned by the worker's thread; generic over it, so that
//! tests have a clock of their own.

use std::time::Duration;

use pbox_core::KeyId;

use super::trace::{Plan, Step};

/// What computes: pushes, waits, and lets time pass.
pub trait Worker {
    /// What can go wrong.
    type Error;

    /// The time, from any beginning.
    fn now(&self) -> Duration;

    /// Whether a key's weights are there.
    fn is_ready(&mut self, key: KeyId) -> Result<bool, Self::Error>;

    /// Waits for a key's weights.
    fn wait(&mut self, key: KeyId) -> Result<(), Self::Error>;

    /// Sends a key's gradient.
    fn push(&mut self, key: KeyId) -> Result<(), Self::Error>;

    /// Lets the exchange go on until a time.
    fn compute_until(&mut self, until: Duration) -> Result<(), Self::Error>;

    /// All weights of the last iteration are there, and nothing of the next is pushed.
    fn look(&mut self) -> Result<(), Self::Error>;
}

/// A worker's iterations.
#[derive(Debug)]
pub struct Iteration<'a> {
    plan: &'a Plan,
    computed_until: Duration,
    /// By layer, over all iterations: how long its weights were waited for with nothing to compute.
    stalled: Vec<Duration>,
}

impl<'a> Iteration<'a> {
    /// Before the first one, which begins now.
    pub fn new(plan: &'a Plan, now: Duration) -> Self {
        Iteration { plan, computed_until: now, stalled: vec![Duration::ZERO; plan.steps.len()] }
    }

    /// Forward and backward, once.
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

    /// Forgets what was counted so far.
    pub fn restart(&mut self) {
        self.stalled.fill(Duration::ZERO);
    }

    /// By layer, how long its weights were waited for.
    pub fn stalled(&self) -> &[Duration] {
        &self.stalled
    }

    fn await_weights<W: Worker>(
        &mut self,
        worker: &mut W,
        step: &Step,
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
