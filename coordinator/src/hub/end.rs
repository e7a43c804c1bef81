//! The end of a job, and of the hub's service. A job ends when it fails, or when all its workers have left. The hub's
//! service ends in steps: it takes no more jobs, then it admits no more workers.
//!
//! The hub keeps a failed job for [`KEEP_FAILED`], so that its workers can read why it failed. The limit on the jobs of
//! the hub is also the limit on its failed jobs.

use std::collections::HashSet;
use std::time::Instant;

use pbox_core::JobId;
use pbox_core::control::RefusalCode;

use super::stop::{Stop, StopStep, Stopping};
use super::{Hub, STOPS};
use crate::job::{Blame, Effect, Job, Model};
use crate::refused::Refused;
use crate::tokens::KEEP_FAILED;

/// The result when a job has failed.
#[derive(Debug)]
pub struct Failed {
    /// The party that caused the failure.
    pub blame: Blame,
    /// Whether the last state of the job is being saved.
    pub is_being_saved: bool,
    /// The effects, in order.
    pub effects: Vec<Effect>,
}

impl Hub {
    /// Fails a job, unless it has failed or ended. The job's name becomes free, or stays reserved until its last state is
    /// saved. If the hub is stopping, the stop counts as the cause.
    pub(crate) fn fail(
        &mut self,
        id: JobId,
        reason: &str,
        blame: Blame,
        saves: bool,
        now: Instant,
    ) -> Option<Failed> {
        let stops = self.end.stops();
        let blame = if stops { Blame::Hub } else { blame };
        let job = self.jobs.get_mut(&id).filter(|job| !job.life.failed())?;
        let effects = match saves {
            true => job.fail_and_save((reason, blame), stops, now),
            false => job.fail(reason, blame == Blame::Hub, now),
        };
        self.counts.failed_jobs += 1;
        self.names.take(&job.spec.name, id);
        let is_being_saved = job.last.is_being_saved();
        if is_being_saved {
            // The name stays reserved until the last state is saved. Otherwise a new job of this name could
            // continue from an older checkpoint.
            self.names.keep(&job.spec.name);
        }
        Some(Failed { blame, is_being_saved, effects: self.noted(id, effects, now) })
    }

    /// Forgets the models of failed jobs. Also forgets failed jobs that are too old or too many, with their tokens and
    /// members. A job whose last state is being saved is not forgotten. Returns the models, and the next steps of the hub's
    /// stop.
    pub(crate) fn sweep(&mut self, now: Instant) -> (Vec<Model>, Vec<StopStep>) {
        let Hub { jobs, tokens, end: End { unnotified, .. }, settings, .. } = self;
        let models = jobs.values_mut().filter(|job| !job.is_kept()).filter_map(Job::forget_model).collect();
        jobs.retain(|_, job| job.is_kept() || job.life.failed_at().is_some_and(|at| now - at < KEEP_FAILED));
        let failed = jobs.iter().filter(|(_, job)| !job.is_kept());
        let mut failed: Vec<(Instant, JobId)> =
            failed.filter_map(|(&id, job)| Some((job.life.failed_at()?, id))).collect();
        failed.sort_unstable();
        let beyond = failed.len().saturating_sub(settings.jobs_limit);
        failed[..beyond].iter().for_each(|(_, id)| drop(jobs.remove(id)));
        tokens.sweep(|job| jobs.contains_key(&job), now);
        unnotified.retain(|(job, _)| jobs.contains_key(job));
        (models, Stopping { hub: self, now }.time_passes())
    }
}

/// The state of the end of a hub's service.
#[derive(Debug, Default)]
pub struct End {
    /// Whether the hub takes no more jobs.
    pub(crate) draining: bool,
    /// Whether no more workers may join, because the hub writes its checkpoints and then stops.
    pub(crate) closed: bool,
    /// The stop of the hub.
    pub(super) stop: Stop,
    /// The members that must still be notified that the hub stops.
    pub(crate) unnotified: HashSet<(JobId, u32)>,
    /// The failed jobs whose failure must still be reported to the hubs above.
    pub(crate) unnotified_above: HashSet<JobId>,
}

impl End {
    /// Whether the hub takes no more jobs.
    pub fn drains(&self) -> bool {
        self.draining
    }

    /// Whether the hub admits no more workers.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Whether all jobs are failing or have failed, because the hub stops.
    pub fn stops(&self) -> bool {
        self.stop.stops()
    }

    /// Returns the names of the jobs whose state is not written yet at the stop, or cannot be written.
    pub fn unsaved(&self) -> Vec<String> {
        self.stop.unsaved()
    }

    /// Whether the hubs above must still be notified that this job failed.
    pub fn tells_above(&self, job: JobId) -> bool {
        self.unnotified_above.contains(&job)
    }

    /// Whether a member must still be notified that the hub stops, or the hubs above must still be notified that a job
    /// failed.
    pub fn has_unnotified(&self) -> bool {
        !self.unnotified.is_empty() || !self.unnotified_above.is_empty()
    }

    /// Forgets a job that has ended, because all workers have left it.
    pub(crate) fn forget(&mut self, job: JobId) {
        self.stop.forget(job);
    }

    /// Checks that the hub still admits workers. Otherwise refuses the request with `code`.
    ///
    /// # Errors
    /// Returns the refusal if the hub admits no worker.
    pub fn check_open(&self, code: RefusalCode) -> Result<(), Refused> {
        if self.closed { Err(Refused::new(code, STOPS.to_owned())) } else { Ok(()) }
    }

    /// Checks that the hub still takes jobs. Otherwise refuses to make a job of this name.
    pub(super) fn check_takes_jobs(&self, name: &str) -> Result<(), Refused> {
        match self.draining {
            true => Err(Refused::new(
                RefusalCode::Draining,
                format!(
                    "job {name:?}: this hub takes no new jobs, because it ends when its running jobs have ended; use \
                     another hub"
                ),
            )),
            false => Ok(()),
        }
    }
}
