//! Asks the cores how a job's rounds go: at each look at the rounds, and when somebody asks the hub. On the control thread.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pbox_core::{Gauged, JobId, Watched};

use super::Registry;
use super::job::Job;
use crate::cores::{Command, Measured};

/// How long the cores may take to say it: one that hangs has its job described without.
const LIMIT: Duration = Duration::from_millis(500);

impl Registry {
    /// Asks the cores how the rounds of running jobs go, unless they have just been asked.
    pub async fn look_at_waits(self: &Arc<Self>) {
        let now = Instant::now();
        let is_stale = |job: &mut &mut Job| job.runs() && job.rounds.last.is_to_be_asked(now);
        let jobs: Vec<JobId> =
            self.lock().jobs_mut().filter_map(|mut job| is_stale(&mut job).then_some(job.id)).collect();
        let deadline = tokio::time::Instant::now() + LIMIT;
        for id in jobs {
            let asked = self.ask(id, |reply| Command::Measure { job: id, reply });
            let Ok(Ok(cores)) = tokio::time::timeout_at(deadline, asked).await else { continue };
            let _ = self.of_job(id, |job| {
                let (mut all, mut gauges) = (Watched::default(), Gauged::default());
                for (core, Measured { watched, gauged, crossed }) in cores.into_iter().enumerate() {
                    (all, gauges) = (all.with(watched), gauges.with(gauged));
                    crossed.into_iter().for_each(|(rank, crossed)| job.note_crossed(rank, core, crossed));
                }
                job.rounds.last.note(all, gauges, Instant::now());
            });
        }
    }
}
