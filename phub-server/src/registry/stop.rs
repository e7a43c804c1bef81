//! The stop of the hub. The [coordinator](coordinator::StopStep) decides which jobs are saved, when all are
//! saved, and when the wait for checkpoints ends. This module carries out these steps.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use coordinator::input::{BeginStop, SavedAtStop, Stop, Told};
use coordinator::{SAVED_WITHIN, StopStep};

use super::job::Job;
use super::{Inner, Registry};

impl Registry {
    /// Ends every job cleanly. Admits no more workers, writes the checkpoints that can be written, and sends all
    /// workers the reason. Must not run on the control thread.
    pub fn end_all(&self, reason: &str) {
        let (reason, has_files) = (reason.to_owned(), self.store.is_some());
        {
            let mut inner = self.lock();
            let steps = inner.ask(BeginStop { reason, has_files });
            self.take_steps(&mut inner, steps);
        }
        self.runtime.block_on(async {
            loop {
                let freed = self.freed.notified(); // before the check, so that no end of a job is missed
                if self.lock().hub().has_stopped() {
                    return;
                }
                freed.await;
            }
        });
    }

    /// Fails every job at once, and admits no more workers.
    pub fn stop(&self, reason: &str) {
        let mut inner = self.lock();
        let steps = inner.ask(Stop { reason: reason.to_owned() });
        self.take_steps(&mut inner, steps);
    }

    /// Carries out the steps of a stop.
    pub(super) fn take_steps(&self, inner: &mut Inner, steps: Vec<StopStep>) {
        for step in steps {
            match step {
                StopStep::Save { job: id, why } => {
                    let Some(registry) = self.me.upgrade() else { return };
                    let saving = Arc::clone(&registry);
                    let ends = self.runtime.spawn(async move { saving.end_at_cut(id, &why).await });
                    self.runtime.spawn(async move {
                        let saved = ends.await.unwrap_or_else(|error| Err(error.to_string())); // a panic counts as an error
                        let mut inner = registry.lock();
                        if let (Err(why), Some((_, job))) = (&saved, inner.job(id)) {
                            tracing::warn!(job = job.name, why, "no checkpoint at the stop");
                            registry.is_unsaved(&job.name, registry.file_of(job), why);
                        }
                        let steps = inner.ask(SavedAtStop { job: id, is_saved: saved.is_ok() });
                        registry.take_steps(&mut inner, steps);
                        registry.tell_unsaved(&inner);
                    });
                }
                StopStep::TooLate(jobs) => {
                    tracing::warn!(
                        jobs = jobs.join(","),
                        "the hub stops: these jobs were not saved within {SAVED_WITHIN:?}"
                    );
                }
                StopStep::Fail(jobs, reason) => {
                    self.stops.send_replace(Some(reason.clone()));
                    jobs.into_iter().for_each(|id| self.fail(inner, id, &reason));
                }
            }
            self.tell_unsaved(inner);
        }
    }

    /// Returns the file of a job's checkpoints, for an error. The hubs above have the file of a job below them. In the
    /// name of a hub's part, `*` stands for the round and the hub.
    pub(super) fn file_of(&self, job: &Job) -> Option<String> {
        let store = self.store.as_ref().filter(|_| job.above.is_none())?;
        let part = if job.peers.addresses.is_empty() { "" } else { "@*" };
        Some(store.file(&format!("{}{part}.safetensors", job.name)).display().to_string())
    }

    /// Notes the reason why the state of a job is not saved in a file of this hub.
    pub(super) fn is_unsaved(&self, job: &str, file: Option<String>, why: &str) {
        let mut reasons = self.unsaved_because.lock().unwrap_or_else(PoisonError::into_inner);
        reasons.insert(job.to_owned(), (file, why.to_owned()));
    }

    /// Returns an error for each job that the stop could not save in a file of this hub. Each error names the job, the file
    /// and the reason.
    pub fn lost_states(&self) -> Vec<String> {
        let unsaved = self.lock().hub().end().unsaved();
        let reasons = self.unsaved_because.lock().unwrap_or_else(PoisonError::into_inner);
        let lost = |job: String| {
            let (file, why) = match reasons.get(&job) {
                Some((file, why)) => (file.as_deref()?, why.as_str()),
                None => ("its file", "writing the file took too long"),
            };
            Some(format!(
                "job {job:?}: its last checkpoint was not written: {file}: {why}; the job continues from its earlier checkpoint, if \
                 there is one"
            ))
        };
        unsaved.into_iter().filter_map(lost).collect()
    }

    /// Publishes which jobs are not saved yet, if the hub stops.
    pub(super) fn tell_unsaved(&self, inner: &Inner) {
        self.unsaved.send_replace(inner.hub().end().unsaved());
        self.freed.notify_waiters();
    }

    /// Notes that the hub answers a worker's heartbeat with the failure of its job.
    pub fn note_notified(&self, job: &str, token: &str) {
        let mut inner = self.lock();
        let member = inner.member(job, token).map(|(member, _)| member);
        if let Ok(member) = member {
            inner.ask(Told { member });
            self.stop_notified.notify_all();
        }
    }

    /// Waits until all workers and the hubs above know that the hub stops. A dead worker sends no heartbeat,
    /// so the wait has a limit.
    pub fn wait_until_all_notified(&self, limit: Duration) {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.stop_notified.wait_timeout_while(inner, limit, |inner| inner.hub().end().has_unnotified()));
    }
}
