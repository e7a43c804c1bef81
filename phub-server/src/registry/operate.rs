//! The requests of operators: end a job, refuse new jobs, and end the hub.

use std::sync::Arc;
use std::time::{Duration, Instant};

use coordinator::input::Drain;
use pbox_core::control::{DrainReply, RefusalCode, StopReply};

use super::{Because, Refusal, Registry};

/// The longest time for which a core may leave its commands unread. A turn takes milliseconds, but a machine
/// may be busy.
const UNRESPONSIVE: Duration = Duration::from_secs(3);

impl Registry {
    /// Stops a job, after a checkpoint if this hub writes checkpoints. `by` names who stops the job. The job's
    /// workers are notified.
    pub async fn stop_job(self: &Arc<Self>, name: &str, by: &str) -> Result<StopReply, Refusal> {
        let (id, saves) = {
            let mut inner = self.lock();
            let id = inner.hub().id(name)?;
            (id, inner.job(id).is_some_and(|(state, job)| self.saves(state) && job.above.is_none()))
        };
        let written = match saves {
            true => Some(self.checkpoint_at_stop(id).await),
            false => None,
        };
        let (checkpoint, checkpoint_error) = match written.transpose() {
            Ok(checkpoint) => (checkpoint, None),
            Err(why) => (None, Some(why)),
        };
        tracing::info!(job = name, by, "an operator stops a job");
        self.fail(&mut self.lock(), id, &format!("an operator stopped the job, at {by}"));
        Ok(StopReply { checkpoint, checkpoint_error })
    }

    /// Makes the hub refuse new jobs; `by` names the cause. Running jobs continue, and their workers may
    /// return.
    pub fn drain(&self, by: &str) -> DrainReply {
        let jobs = self.lock().ask(Drain);
        if !self.draining.send_replace(true) {
            tracing::info!(by, "the hub takes no more jobs, and ends with its last job");
        }
        DrainReply { jobs }
    }

    /// Checks that the hub still admits workers.
    pub fn check_open(&self) -> Result<(), Refusal> {
        Ok(self.lock().hub().end().check_open(RefusalCode::NotReady)?)
    }

    /// Checks that the hub still admits workers, and that every core reads its commands. Workers that join
    /// would wait for a core that reads no commands. A core may leave its commands unread for as long as [`UNRESPONSIVE`].
    pub fn check_health(&self, now: Instant) -> Result<(), Refusal> {
        self.check_open()?;
        match self.cores.iter().map(|core| (core.unresponsive_for(now), core.lane.cpu)).max() {
            Some((unresponsive, cpu)) if unresponsive > UNRESPONSIVE => Err(RefusalCode::NotReady.because(format!(
                "the core thread on cpu {cpu} has not taken a command for {:.1} s: the thread hangs, or gets no processor",
                unresponsive.as_secs_f64()
            ))),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::test_bed;

    #[test]
    fn a_core_that_takes_no_commands_is_not_well() {
        let (registry, mut core) = test_bed::registry();
        let later = || Instant::now() + 2 * UNRESPONSIVE;
        registry.check_health(later()).unwrap(); // nothing was asked of it before
        let Refusal { code, why, .. } = registry.check_health(later()).expect_err("it is not well");
        assert_eq!(code, RefusalCode::NotReady);
        assert!(why.contains("cpu 0 has not taken a command for"), "{why}");
        registry.check_health(Instant::now()).unwrap();
        core.obey();
        registry.check_health(later()).unwrap();
        registry.stop("a test");
        core.obey();
        assert!(registry.check_health(later()).is_err(), "a hub that stops");
    }
}
