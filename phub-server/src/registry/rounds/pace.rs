//! Asks the cores how fast a job's rounds are: at each check of the rounds, and when a client asks the hub. Runs on
//! the control thread.

use std::sync::Arc;
use std::time::{Duration, Instant};

use coordinator::input::Crossed;
use hub_threads::{Command, Measured};
use pbox_core::{Gauged, JobId, Round, Watched};

use crate::registry::{Both, Registry};

/// The time limit of the cores' answers. If a core hangs, its job is described without these figures.
const LIMIT: Duration = Duration::from_millis(500);

impl Registry {
    /// Asks the cores how fast the rounds of running jobs are, unless the cores have just been asked.
    pub async fn look_at_waits(self: &Arc<Self>) {
        let now = Instant::now();
        let is_stale = |(state, job): Both| state.life.runs() && job.last_rounds.mark_asked_if_due(now);
        let stale = |both: Both| Some(both.0.spec.id).filter(|_| is_stale(both));
        let jobs: Vec<JobId> = self.lock().jobs().filter_map(stale).collect();
        let deadline = tokio::time::Instant::now() + LIMIT;
        for id in jobs {
            let asked = self.ask(id, |reply| Command::Measure { job: id, reply });
            let Ok(Ok(cores)) = tokio::time::timeout_at(deadline, asked).await else { continue };
            let (mut all, mut gauges, mut links) = (Watched::default(), Gauged::default(), Vec::new());
            let mut reached = Round(0);
            for (core, Measured { round, watched, gauged, crossed }) in cores.into_iter().enumerate() {
                (reached, all, gauges) = (reached.max(round), all.with(watched), gauges.with(gauged));
                links.extend(crossed.into_iter().map(|(rank, of)| (rank, core, (of.sent, of.received))));
            }
            let mut inner = self.lock();
            inner.ask(Crossed { job: id, links });
            if let Ok((_, job)) = inner.running(id) {
                job.last_rounds.note(all, gauges, Instant::now());
                job.round = reached;
            }
        }
    }
}
