//! Ends: a job fails, or all its workers have left it; the hub takes no more jobs, admits nobody, stops. Old failures are forgotten.
//!
//! A job that has failed is kept for its news, for [`KEEP_FAILED`]. There are no more of them than a hub may have jobs.

use std::ops::DerefMut;
use std::time::Instant;

use pbox_core::{JobId, Round};

use super::Hub;
use crate::Token;
use crate::job::{Blame, Job, Leave};
use crate::tokens::KEEP_FAILED;

impl<J: DerefMut<Target = Job>, L: Default> Hub<J, L> {
    /// Lets a member leave, which shows this token. Returns what follows.
    pub fn leave(&mut self, member: (JobId, u32), token: Option<Token>, round: Round, now: Instant) -> Leave {
        let Some(job) = self.job_mut(member.0) else { return Leave::Nothing };
        let leave = job.leave(member.1, round);
        if matches!(leave, Leave::Left | Leave::Last) {
            token.into_iter().for_each(|token| self.tokens.left(member, token, now));
        }
        leave
    }

    /// Ends a job that all workers have left. Returns it. Whoever came behind the last leave has no token any more.
    pub fn end(&mut self, id: JobId, now: Instant) -> Option<J> {
        let job = self.jobs.remove(&id)?;
        self.names.take(&job.name, id);
        self.tokens.sweep(|job| job != id, now);
        Some(job)
    }

    /// Counts a job that is about to fail, and frees its name. Returns the job, and whose end it is: whatever ends while this hub stops,
    /// its stop ends. `None` if the job has failed or ended.
    pub fn fails(&mut self, id: JobId, blame: Blame) -> Option<(&mut J, Blame)> {
        let job = self.jobs.get_mut(&id).filter(|job| !job.failed())?;
        self.counts.failed_jobs += 1;
        self.names.take(&job.name, id);
        Some((job, if self.stopping { Blame::Hub } else { blame }))
    }

    /// Takes no more jobs. Returns the names of those that it has, in order.
    pub fn drain(&mut self) -> Vec<String> {
        self.draining = true;
        self.names.all()
    }

    /// Whether it takes no more jobs.
    pub fn drains(&self) -> bool {
        self.draining
    }

    /// Admits nobody any more.
    pub fn close(&mut self) {
        self.closed = true;
    }

    /// Whether it admits nobody.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Stops. Returns the jobs that fail for it, whose members then have to be told.
    pub fn stop(&mut self) -> Vec<JobId> {
        self.stopping = true;
        let Hub { jobs, untold, .. } = self;
        let living = jobs.iter().filter(|(_, job)| !job.failed());
        let living = living.map(|(&id, job)| {
            untold.extend((0..job.terms.workers).filter(|&rank| job.has(rank)).map(|rank| (id, rank)));
            id
        });
        living.collect()
    }

    /// Whether all jobs end, or have ended, because it stops.
    pub fn stops(&self) -> bool {
        self.stopping
    }

    /// Notes that the member with this token is being told that its job failed. Whether it is a member.
    pub fn told(&mut self, job: &str, token: &str) -> bool {
        let member = self.member(job, token).map(|(job, rank)| (job.id, rank));
        member.is_ok_and(|member| {
            self.untold.remove(&member);
            true
        })
    }

    /// Notes that the hubs above have to be told why a job failed.
    pub fn tells_above(&mut self, id: JobId) {
        self.untold_above.insert(id);
    }

    /// Notes that the hubs above have been told, or cannot be told.
    pub fn told_above(&mut self, id: JobId) {
        self.untold_above.remove(&id);
    }

    /// Whether members have not been told that it stops, or the hubs above that a job failed.
    pub fn has_untold(&self) -> bool {
        !self.untold.is_empty() || !self.untold_above.is_empty()
    }

    /// Whether there is a job, or somebody makes it, or its last state is being saved.
    pub fn is_used(&self) -> bool {
        !self.names.is_empty()
    }

    /// Forgets failed jobs that are old or too many, their tokens and their members. A job whose last state is being saved stays.
    pub fn sweep(&mut self, now: Instant) {
        let Hub { jobs, tokens, untold, jobs_limit, .. } = self;
        jobs.retain(|_, job| job.is_kept() || job.failed_at().is_some_and(|at| now - at < KEEP_FAILED));
        let failed = jobs.iter().filter(|(_, job)| !job.is_kept());
        let mut failed: Vec<(Instant, JobId)> =
            failed.filter_map(|(&id, job)| Some((job.failed_at()?, id))).collect();
        failed.sort_unstable();
        let beyond = failed.len().saturating_sub(*jobs_limit);
        failed[..beyond].iter().for_each(|(_, id)| drop(jobs.remove(id)));
        tokens.sweep(|job| jobs.contains_key(&job), now);
        untold.retain(|(job, _)| jobs.contains_key(job));
    }
}
