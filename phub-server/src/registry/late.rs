//! Who holds a job's rounds up: a worker whose heartbeats come, and whose pushes do not.
//!
//! ```text
//!   every few seconds, each running job: its cores look --> did anything move since the last look?
//!       no, for --late-warning-s: who owes pushes that others have made --> log, news, GET /v1/hub
//!       no, for --late-limit-s:   they are lost
//! ```
//!
//! On the control thread. The cores look between two turns.

use std::sync::Arc;
use std::time::{Duration, Instant};

use coordinator::Cause;
use pbox_core::{JobId, Look, Round};

use super::job::Job;
use super::{Inner, Registry};
use crate::cores::Command;

/// When workers are late.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LateLimits {
    /// They are named after this time.
    pub warning: Duration,
    /// They are lost after this time.
    pub limit: Option<Duration>,
}

impl LateLimits {
    /// The pause between two looks.
    pub fn pause(&self) -> Duration {
        (self.warning / 6).clamp(Duration::from_millis(250), Duration::from_secs(5))
    }
}

impl Registry {
    /// Looks at each running job once.
    pub async fn look_at_rounds(self: &Arc<Self>) {
        self.look_at_waits().await;
        let running = |job: &&Job| job.runs();
        let jobs: Vec<JobId> = self.lock().jobs.values().filter(running).map(|job| job.id).collect();
        for id in jobs {
            // A core that does not answer is stuck or has stopped, and a later look asks again.
            let asked = self.ask(id, |reply| Command::Look { job: id, reply });
            let Ok(Ok(looks)) = tokio::time::timeout(self.late.pause(), asked).await else { continue };
            let look = looks.into_iter().fold(Look::default(), Look::with);
            self.judge(&mut self.lock(), id, &look);
        }
    }

    /// Does what follows from a look at a job.
    fn judge(self: &Arc<Self>, inner: &mut Inner, id: JobId, look: &Look) {
        let Some(job) = inner.jobs.get_mut(&id).filter(|job| job.runs()) else {
            return;
        };
        if look.round >= Round::LIMIT {
            let reason = format!(
                "it has come to round {}, and a job ends before round {}: save its weights, and begin a job of another name with \
                 them",
                look.round.0,
                Round::LIMIT.0
            );
            return self.fail(inner, id, &reason);
        }
        let time = job.rounds.progress.note(look, Instant::now());
        let late = if time < self.late.warning { Vec::new() } else { job.late(look, time) };
        if let Some(limit) = self.late.limit.filter(|&limit| time >= limit && job.hubs.share.is_whole()) {
            for late in &late {
                let reason = format!("{late}; the limit is {} s (--late-limit-s)", limit.as_secs());
                self.lose(inner, id, late.rank, Cause::Late, &reason);
            }
            return;
        }
        // Where all workers here have pushed, the hubs above may know whom they wait for.
        let above = || job.above.as_ref().map_or_else(Vec::new, |above| above.held_up_by());
        let late = if late.is_empty() { above() } else { late };
        if job.held_up_by(late) {
            let late = job.news.now().held_up_by.clone();
            match late.is_empty() {
                true => tracing::info!(job = job.name, "rounds go on"),
                false => late.iter().for_each(|late| tracing::warn!(job = job.name, "{late}")),
            }
        }
    }
}
