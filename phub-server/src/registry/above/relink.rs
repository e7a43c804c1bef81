//! Links to the hubs above that are lost while these live, as with a NIC: this hub makes others, as a worker does.
//!
//! ```text
//!   a link that leads up ended
//!     -> the hubs above drop this hub's links, and its sums that are not stepped
//!     -> every core here drops its links -> others, over whatever leads there now
//!     -> the sums that have no answer go up again; a sum that is stepped is answered again
//! ```
//!
//! The workers here wait meanwhile, as for any late hub.

use std::sync::Arc;
use std::time::Instant;

use coordinator::{Blame, JobEnded};
use membership::{Again, PAUSE};
use pbox_core::JobId;

use super::JoinedAbove;
use super::links::Linked;
use crate::cores::Command;
use crate::registry::job::Job;
use crate::registry::{Registry, on_thread};

impl Registry {
    /// A link that leads up ended. The links are made again, or the job fails. If the hub above lives, its news say why.
    pub(crate) fn lost_above(&self, id: JobId, reason: String) {
        let (above, may) = {
            let mut inner = self.lock();
            let stopping = inner.hub().stops();
            let Ok((state, job)) = inner.running(id) else { return };
            let Some(above) = job.above.clone() else { return };
            if job.relinks_above.are_lost() {
                return; // the others end, too
            }
            let may = !stopping && state.runs() && above.may_relink();
            if may {
                job.relinks_above.begin(job.cores.numbers.len());
            }
            (above, may)
        };
        let registry = self.me.clone();
        self.runtime.spawn(async move {
            let mut symptom = reason;
            if may && let Some(registry) = registry.upgrade() {
                match registry.make_links_above(id, &above, &symptom).await {
                    Ok(()) => return,
                    Err(why) => symptom = format!("{symptom}; others could not be made: {why}"),
                }
            }
            let told = on_thread("phub-above", move || above.explain(&symptom)).await;
            let (why, blame) = told.unwrap_or_else(|why| {
                (format!("a link to a hub above is gone, and nobody can ask why: {why}"), Blame::Hub)
            });
            if let Some(registry) = registry.upgrade() {
                registry.fail_by(&mut registry.lock(), id, &why, blame);
            }
        });
    }

    /// Makes a job's links to the hubs above again, for as long as these may take to start. An error says why not.
    async fn make_links_above(&self, id: JobId, above: &Arc<JoinedAbove>, lost: &str) -> Result<(), String> {
        let until = Instant::now() + self.up.start_limit;
        loop {
            let why = match self.try_links_above(id, above, lost, until).await {
                Ok(()) => return Ok(()),
                Err(Again::Later(why)) if Instant::now() < until => why,
                Err(Again::Later(why) | Again::Never(why)) => return Err(why),
            };
            tracing::warn!("{lost}; the links to the hubs above are not made again yet: {why}");
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn try_links_above(
        &self,
        id: JobId,
        above: &Arc<JoinedAbove>,
        lost: &str,
        until: Instant,
    ) -> Result<(), Again<String>> {
        // Asked before the links end that are left: on shared memory, too, their end is no death then.
        let (asked, why) = (Arc::clone(above), lost.to_owned());
        let let_in = on_thread("phub-above", move || asked.relink(&why)).await;
        let let_in = let_in
            .map_err(|error| Again::Never(error.into()))?
            .map_err(|error| Again::Never(error.to_string()))?;
        self.unlink_above(id).await?;
        let (made, deadline) = (Arc::clone(above), until.min(Instant::now() + self.up.limit));
        let made = on_thread("phub-above", move || made.links.make(&let_in, deadline)).await;
        let Linked { ways, paths, .. } = made
            .map_err(|error| Again::Later(error.into()))?
            .map_err(|error| Again::Later(error.to_string()))?;
        let add = |_: &coordinator::Job, job: &mut Job| {
            job.relinks_above.end();
            self.add_above(job, above.links.level, ways);
            membership::say_made(&job.name, above.addresses().iter().map(String::as_str), &paths, lost);
        };
        self.of_job(id, add).map_err(ended)
    }

    /// Has all cores drop a job's links to the hubs above. Returns an error if no links are to be made again.
    async fn unlink_above(&self, id: JobId) -> Result<(), Again<String>> {
        let begin = |_: &coordinator::Job, job: &mut Job| {
            job.relinks_above.begin(job.cores.numbers.len());
            self.command(job, || Command::UnlinkAbove { job: id });
        };
        self.of_job(id, begin).map_err(ended)?;
        let limit = tokio::time::Instant::now() + self.up.limit;
        loop {
            let freed = self.freed.notified(); // before the look, so that no wake-up is missed
            let unlinked = self.of_job(id, |_, job| job.relinks_above.unlinked(self.up.start_limit));
            if let Some(may_try) = unlinked.map_err(ended)? {
                return may_try.map_err(Again::Never);
            }
            if tokio::time::timeout_at(limit, freed).await.is_err() {
                let seconds = self.up.limit.as_secs_f64();
                return Err(Again::Never(format!("a core did not drop the former links in {seconds} s")));
            }
        }
    }
}

fn ended(ended: JobEnded) -> Again<String> {
    Again::Never(ended.into())
}
