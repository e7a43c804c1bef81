//! Ends: a job fails, or all its workers have left it; the hub takes no more jobs, admits nobody, stops. Old failures are forgotten.
//!
//! A job that has failed is kept for its news, for [`KEEP_FAILED`]. There are no more of them than a hub may have jobs.

use std::time::Instant;

use pbox_core::{JobId, Round};

use super::{End, Hub};
use crate::job::{Blame, Effect, Job, Leave, Model, Saves};
use crate::tokens::KEEP_FAILED;
use crate::tokens::Token;

/// A job that has failed.
#[derive(Debug)]
pub struct Failed {
    /// The one whose end it is.
    pub blame: Blame,
    /// Whether its last state is being saved.
    pub is_being_saved: bool,
    /// The effects, in order.
    pub effects: Vec<Effect>,
}

impl Hub {
    /// Lets a member leave, which shows this token. Returns what follows.
    pub(crate) fn leave(
        &mut self,
        member: (JobId, u32),
        token: Option<Token>,
        round: Round,
        now: Instant,
    ) -> Leave {
        let Some(job) = self.job_mut(member.0) else { return Leave::Nothing };
        let leave = job.leave(member.1, round);
        if matches!(leave, Leave::Left | Leave::Last) {
            token.into_iter().for_each(|token| self.tokens.left(member, token, now));
        }
        leave
    }

    /// Ends a job that all workers have left. Returns it. Whoever came behind the last leave has no token any more.
    pub(crate) fn end(&mut self, id: JobId, now: Instant) -> Option<Job> {
        let job = self.jobs.remove(&id)?;
        self.names.take(&job.spec.name, id);
        self.tokens.sweep(|job| job != id, now);
        Some(job)
    }

    /// Fails a job, unless it has failed or ended. Its name is free, or reserved until its last state is saved. Whatever ends while
    /// this hub stops, its stop ends.
    pub(crate) fn fail(
        &mut self,
        id: JobId,
        reason: &str,
        blame: Blame,
        saves: Option<Saves>,
        now: Instant,
    ) -> Option<Failed> {
        let blame = if self.end.stopping { Blame::Hub } else { blame };
        let job = self.jobs.get_mut(&id).filter(|job| !job.failed())?;
        let effects = match saves {
            Some(saves) => job.fail_and_save(reason, blame, saves, now),
            None => job.fail(reason, blame == Blame::Hub, now),
        };
        self.counts.failed_jobs += 1;
        self.names.take(&job.spec.name, id);
        let is_being_saved = job.is_being_saved();
        if is_being_saved {
            // Nobody goes on from the checkpoint before it meanwhile.
            self.names.keep(&job.spec.name);
        }
        Some(Failed { blame, is_being_saved, effects: self.noted(id, effects, now) })
    }

    /// Takes no more jobs. Returns the names of those that it has, in order.
    pub(crate) fn drain(&mut self) -> Vec<String> {
        self.end.draining = true;
        self.names.all()
    }

    /// Whether it takes no more jobs.
    pub fn drains(&self) -> bool {
        self.end.draining
    }

    /// Admits nobody any more.
    pub(crate) fn close(&mut self) {
        self.end.closed = true;
    }

    /// Whether it admits nobody.
    pub fn is_closed(&self) -> bool {
        self.end.closed
    }

    /// Stops. Returns the jobs that fail for it, whose members then have to be told.
    pub(crate) fn stop(&mut self) -> Vec<JobId> {
        self.end.stopping = true;
        let (jobs, untold) = (&self.jobs, &mut self.end.untold);
        let living = jobs.iter().filter(|(_, job)| !job.failed());
        let living = living.map(|(&id, job)| {
            untold.extend((0..job.spec.terms.workers).filter(|&rank| job.has(rank)).map(|rank| (id, rank)));
            id
        });
        living.collect()
    }

    /// Whether all jobs end, or have ended, because it stops.
    pub fn stops(&self) -> bool {
        self.end.stopping
    }

    /// Notes that a member is being told that its job failed.
    pub(crate) fn told(&mut self, member: (JobId, u32)) {
        self.end.untold.remove(&member);
    }

    /// Notes that the hubs above have to be told why a job failed.
    pub(crate) fn tells_above(&mut self, id: JobId) {
        self.end.untold_above.insert(id);
    }

    /// Notes that the hubs above have been told, or cannot be told.
    pub(crate) fn told_above(&mut self, id: JobId) {
        self.end.untold_above.remove(&id);
    }

    /// Whether members have not been told that it stops, or the hubs above that a job failed.
    pub fn has_untold(&self) -> bool {
        !self.end.untold.is_empty() || !self.end.untold_above.is_empty()
    }

    /// Whether there is a job, or somebody makes it, or its last state is being saved.
    pub fn is_used(&self) -> bool {
        !self.names.is_empty()
    }

    /// Forgets the models of failed jobs; and failed jobs that are old or too many, their tokens and their members. A job whose last
    /// state is being saved stays. Returns the models.
    pub(crate) fn sweep(&mut self, now: Instant) -> Vec<Model> {
        let Hub { jobs, tokens, end: End { untold, .. }, settings, .. } = self;
        let models = jobs.values_mut().filter(|job| !job.is_kept()).filter_map(Job::forget_model).collect();
        jobs.retain(|_, job| job.is_kept() || job.failed_at().is_some_and(|at| now - at < KEEP_FAILED));
        let failed = jobs.iter().filter(|(_, job)| !job.is_kept());
        let mut failed: Vec<(Instant, JobId)> =
            failed.filter_map(|(&id, job)| Some((job.failed_at()?, id))).collect();
        failed.sort_unstable();
        let beyond = failed.len().saturating_sub(settings.jobs_limit);
        failed[..beyond].iter().for_each(|(_, id)| drop(jobs.remove(id)));
        tokens.sweep(|job| jobs.contains_key(&job), now);
        untold.retain(|(job, _)| jobs.contains_key(job));
        models
    }
}
