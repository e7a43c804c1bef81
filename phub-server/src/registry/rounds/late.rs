//! Checks the progress of running jobs. Every few seconds the cores report, between two turns, which rounds
//! they have reached. The coordinator decides whether a worker is late.
//!
//! Runs on the control thread.

use std::sync::Arc;

use coordinator::input::Judge;
use hub_threads::Command;
use pbox_core::{JobId, Look};
use tokio::time::Instant;

use crate::registry::Registry;

impl Registry {
    /// Checks the progress of each running job once.
    pub async fn look_at_rounds(self: &Arc<Self>) {
        self.look_at_waits().await;
        let running = |job: &&coordinator::Job| job.life.runs();
        let jobs: Vec<JobId> = self.lock().hub().jobs().filter(running).map(|job| job.spec.id).collect();
        for id in jobs {
            self.release_kept(id, Instant::now());
            // A core that does not answer hangs or has stopped. The next check asks it again.
            let asked = self.ask(id, |reply| Command::Look { job: id, reply });
            let Ok(Ok(looks)) = tokio::time::timeout(self.late.pause(), asked).await else { continue };
            let look = looks.into_iter().fold(Look::default(), Look::with);
            let mut inner = self.lock();
            let Some((_, job)) = inner.job(id) else { continue };
            let above = job.above.as_ref().map_or_else(Vec::new, |above| above.held_up_by());
            let effects = inner.ask(Judge { job: id, look, above });
            self.carry_out(&mut inner, id, effects);
        }
    }
}

/// Logs which workers delay a job's rounds now.
pub(in crate::registry) fn say_held_up(job: &coordinator::Job) {
    let late = &job.news.now().held_up_by;
    match late.is_empty() {
        true => tracing::info!(job = job.spec.name, "rounds continue"),
        false => late.iter().for_each(|late| tracing::warn!(job = job.spec.name, "{late}")),
    }
}
