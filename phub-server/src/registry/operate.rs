//! What operators ask for: the end of a job, no more jobs, and the end of the hub.

use std::sync::Arc;

use pbox_core::control::{DrainReply, StopReply};

use super::{Refusal, Registry};

pub(crate) const STOPS: &str = "the hub is stopping";

impl Registry {
    /// Stops a job for somebody, after a checkpoint where this hub writes them. Its workers are told.
    pub async fn stop_job(self: &Arc<Self>, name: &str, by: &str) -> Result<StopReply, Refusal> {
        let (id, saves) = {
            let inner = self.lock();
            let id = inner.named(name)?;
            (id, self.saves(&inner.jobs[&id]) && inner.jobs[&id].above.is_none())
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
        self.fail(&mut self.lock(), id, &format!("an operator stopped it, at {by}"));
        Ok(StopReply { checkpoint, checkpoint_error })
    }

    /// Takes no more jobs, because of somebody or something. Those that run go on, and their workers may come back.
    pub fn drain(&self, by: &str) -> DrainReply {
        if !self.draining.send_replace(true) {
            tracing::info!(by, "the hub takes no more jobs, and ends with its last");
        }
        let inner = self.lock();
        let mut jobs: Vec<String> = inner.names.keys().chain(inner.making.keys()).cloned().collect();
        jobs.sort();
        jobs.dedup();
        DrainReply { jobs }
    }

    /// Admits nobody any more, because the hub stops.
    pub fn close(&self) {
        self.lock().closed = true;
    }

    /// Refuses once the hub admits nobody any more.
    pub fn check_open(&self) -> Result<(), Refusal> {
        if self.lock().closed { Err(Refusal::Busy(STOPS.into())) } else { Ok(()) }
    }

    /// Refuses to make a job if there are to be no more.
    pub(super) fn check_takes_jobs(&self, name: &str) -> Result<(), Refusal> {
        if *self.draining.borrow() {
            return Err(Refusal::Conflict(format!(
                "job {name:?}: this hub takes no new jobs, because it ends with those that it has; use another hub"
            )));
        }
        Ok(())
    }
}
