//! The probe's worker if computing takes time: first some exchanges without compute, and then iterations of a
//! trace.

use std::time::Duration;

use anyhow::Result;
use pbox_core::Element;

use super::{Worker, check_lines};
use crate::compute::{Clocked, ComputePlan, Iteration, Times, Worker as _};
use crate::probe::expected::allowed;

/// The number of iterations before the measured iterations. The first iteration is not measured: nothing is in flight
/// when it begins, so it waits for no weights.
pub(super) const LEAD_IN: u32 = 1;

impl<E: Element> Worker<E> {
    /// Makes some exchanges without compute, then `iterations` iterations. Returns the time of each.
    pub(super) fn compute(
        &mut self,
        plan: &ComputePlan,
        iterations: u32,
        mut progress: impl FnMut(u32),
    ) -> Result<Times> {
        let exchanges = self.measure(self.exchanges, |_| ())?;
        let Worker {
            session, expected, consistency, rank, workers, steppers, round, rounds, lead_in, ..
        } = self;
        let mut worker = Clocked::new(session, |session| {
            if !expected.is_slow() {
                expected.expect(allowed(*consistency, *steppers, *round, *rounds));
                check_lines(session, expected, *rank, *workers, *round)?;
            }
            *round += 1; // the pushes of this iteration are one round
            Ok(())
        });
        let mut iteration = Iteration::new(plan, Duration::ZERO);
        for _ in 0..*lead_in {
            iteration.run(&mut worker)?;
        }
        iteration.restart();
        let mut times = Times { exchanges, ..Times::default() };
        let mut last = worker.now();
        for done in 1..=iterations {
            iteration.run(&mut worker)?;
            let now = worker.now();
            times.iterations.push((now - last).as_nanos() as u64);
            last = now;
            progress(done);
        }
        times.stalled = iteration.stalled().iter().map(|time| time.as_nanos() as u64).collect();
        self.expected.expect(allowed(self.consistency, self.steppers, self.round, self.rounds));
        self.session.wait_all()?;
        Ok(times)
    }
}
