//! Lost links to hubs above that are alive, for example after the failure of a NIC. This hub makes new links,
//! as a worker does.
//!
//! ```text
//!   a link to a hub above ended
//!     -> the hubs above drop this hub's links, and the sums of this hub that no step has used
//!     -> every core here drops its links -> new links, over any transport that still leads there
//!     -> the sums without an answer go up again; if a step has used a sum, the hub above only answers it again
//! ```
//!
//! Meanwhile the workers of this hub wait for the hubs above. [`Member`](membership::Member) decides on the
//! steps.

use std::sync::Arc;

use coordinator::Blame;
use hub_threads::Command;
use membership::{Event, Failure, LetIn, Step};
use pbox_core::JobId;

use super::JoinedAbove;
use super::links::Linked;
use crate::registry::job::Job;
use crate::registry::{Registry, on_thread};

impl Registry {
    /// Replaces the links after a link to a hub above ended. If the links cannot be replaced, the job fails.
    /// The reason comes from the news of the hub above, if that hub is alive.
    pub(crate) fn lost_above(&self, id: JobId, reason: String) {
        let (above, step) = {
            let mut inner = self.lock();
            let stopping = inner.hub().end().stops();
            let Ok((state, job)) = inner.running(id) else { return };
            let Some(above) = job.above.clone() else { return };
            let may_relink = !stopping && state.life.runs() && above.may_relink();
            let step = job.relinks_above.link_ended(may_relink, above.hubs.len(), self.up.start_limit);
            let Some(step) = step else { return };
            (above, step)
        };
        let registry = self.me.clone();
        self.runtime.spawn(async move {
            let mut symptom = reason;
            if let Some(registry) = registry.upgrade() {
                match registry.mend_links_above(id, &above, step, &symptom).await {
                    Ok(()) => return,
                    Err(why) if why.is_empty() => {}
                    Err(why) => symptom = format!("{symptom}; reconnecting failed: {why}"),
                }
            }
            let told = on_thread("phub-above", move || above.explain(&symptom)).await;
            let (why, blame) = told.unwrap_or_else(|why| {
                (
                    format!("a link to a hub above is lost, and asking the hub for the reason failed: {why}"),
                    Blame::Hub,
                )
            });
            if let Some(registry) = registry.upgrade() {
                registry.fail_by(&mut registry.lock(), id, &why, blame);
            }
        });
    }

    /// Carries out the steps that replace a job's links to the hubs above. Returns an error if the links are not
    /// replaced. The error has the reason, or is empty if no attempt was made.
    async fn mend_links_above(
        &self,
        id: JobId,
        above: &Arc<JoinedAbove>,
        mut step: Step,
        lost: &str,
    ) -> Result<(), String> {
        let (mut let_in, mut why) = (Vec::new(), None);
        loop {
            let done = match step {
                Step::Ask(hub) => {
                    if hub == 0 {
                        let_in.clear();
                    }
                    let asked = self.ask_above(above, hub, lost).await;
                    asked.map(|hub| let_in.push(hub)).map(|()| Event::Granted)
                }
                Step::DropLinks => self.unlink_above(id).await,
                Step::MakeLinks => {
                    match self.make_links_above(id, above, std::mem::take(&mut let_in), lost).await {
                        Ok(()) => return Ok(()),
                        Err(failed) => Err(failed),
                    }
                }
                Step::Wait(until) => {
                    tokio::time::sleep_until(until.into()).await;
                    Ok(Event::TimePassed)
                }
                Step::Explain(over) => {
                    let over = over.map(|over| over.to_string());
                    return Err(why.into_iter().chain(over).collect::<Vec<_>>().join("; "));
                }
                step => unreachable!("{step:?} makes no links"),
            };
            let event = done.unwrap_or_else(|(failure, error)| {
                tracing::warn!("{lost}; could not reconnect to the hubs above yet, trying again: {error}");
                why = Some(error);
                Event::Failed(failure)
            });
            step = self.of_job(id, |_, job| job.relinks_above.handle(event))?;
        }
    }

    async fn ask_above(
        &self,
        above: &Arc<JoinedAbove>,
        hub: usize,
        lost: &str,
    ) -> Result<LetIn, (Failure, String)> {
        let (above, lost) = (Arc::clone(above), lost.to_owned());
        let asked = on_thread("phub-above", move || above.hubs[hub].relink(lost)).await;
        asked.map_err(permanent)?.map_err(|error| permanent(error.to_string()))
    }

    /// Makes all cores drop a job's links to the hubs above.
    async fn unlink_above(&self, id: JobId) -> Result<Event, (Failure, String)> {
        let begin = |_: &coordinator::Job, job: &mut Job| {
            job.relinks_above.unlink(job.cores.numbers.len());
            self.command(job, || Command::UnlinkAbove { job: id });
        };
        self.of_job(id, begin).map_err(permanent)?;
        let limit = tokio::time::Instant::now() + self.up.limit;
        loop {
            let freed = self.freed.notified(); // before the check, so that no wake-up is missed
            if let Some(unlinked) =
                self.of_job(id, |_, job| job.relinks_above.unlinked()).map_err(permanent)?
            {
                return Ok(unlinked);
            }
            if tokio::time::timeout_at(limit, freed).await.is_err() {
                let seconds = self.up.limit.as_secs_f64();
                return Err(permanent(format!("a core did not drop the old links in {seconds} s")));
            }
        }
    }

    async fn make_links_above(
        &self,
        id: JobId,
        above: &Arc<JoinedAbove>,
        let_in: Vec<LetIn>,
        lost: &str,
    ) -> Result<(), (Failure, String)> {
        let deadline = membership::deadline(&let_in, self.up.limit.min(self.up.start_limit));
        let made = Arc::clone(above);
        let made = on_thread("phub-above", move || made.spec.make(&let_in, deadline)).await;
        let transient = |error: String| (Failure::Transient, error);
        let Linked { links, cores, paths } =
            made.map_err(|error| transient(error.into()))?.map_err(|error| transient(error.to_string()))?;
        let add = |_: &coordinator::Job, job: &mut Job| {
            // The state changes before a core can report the end of a new link.
            job.relinks_above.handle(Event::LinksMade);
            self.add_above(job, above.spec.level_of(&cores), links);
            membership::say_made(&job.name, above.addresses().iter().map(String::as_str), &paths, lost);
        };
        self.of_job(id, add).map_err(permanent)
    }
}

fn permanent(error: impl Into<String>) -> (Failure, String) {
    (Failure::Permanent, error.into())
}
