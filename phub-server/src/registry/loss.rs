//! How workers are lost and jobs fail: by a core's report, by silence, or because the hub stops; and how long a stop waits
//! until the workers know. Under the registry's lock.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use coordinator::{Blame, Cause, Event, KEEP_FAILED, Progress};
use pbox_core::JobId;
use pbox_core::control::LostReply;

use super::above::JoinedAbove;
use super::job::Job;
use super::make::Load;
use super::{Inner, Registry};
use crate::alarm::guarded;
use crate::cores::Command;

impl Registry {
    /// A worker is lost: its job fails, or goes on without it, if the job's terms say so and another worker is left.
    pub(super) fn lose(
        self: &Arc<Self>,
        inner: &mut Inner,
        id: JobId,
        rank: u32,
        cause: Cause,
        reason: &str,
    ) {
        let Some(job) = inner.jobs.get_mut(&id) else { return };
        let effects = job.lose(rank, cause, reason);
        self.carry_out(inner, id, effects);
    }

    pub(super) fn fail(&self, inner: &mut Inner, id: JobId, reason: &str) {
        self.fail_by(inner, id, reason, Blame::Job);
    }

    /// As [`fail`](Self::fail), and the workers are told whose end it is. Whatever ends while this hub stops, its stop ends.
    pub(super) fn fail_by(&self, inner: &mut Inner, id: JobId, reason: &str, blame: Blame) {
        let Some(job) = inner.jobs.get_mut(&id).filter(|job| !job.failed()) else { return };
        tracing::warn!(job = job.name, reason, "job failed");
        inner.counts.failed_jobs += 1;
        let blame = if inner.stopping { Blame::Hub } else { blame };
        let effects = job.fail(reason, blame, self.saves_last(job));
        inner.names.remove(&job.name);
        match job.above.take() {
            Some(above) if above.lives_at_some() => self.fail_above(inner, id, above, reason, blame),
            // Nobody goes on from the checkpoint before it meanwhile.
            _ if job.is_being_saved() => {
                drop(inner.making.insert(job.name.clone(), Load::of_last_state()));
            }
            _ => self.command(job, || Command::RemoveJob { job: id }),
        }
        self.carry_out(inner, id, effects);
        // Joins may wait for the job's name, or for one of its ranks.
        self.freed.notify_waiters();
    }

    /// Tells the hubs above why a job failed here, and then closes its links: a closed link alone does not say why.
    fn fail_above(&self, inner: &mut Inner, id: JobId, above: Arc<JoinedAbove>, reason: &str, blame: Blame) {
        inner.untold_above.insert(id);
        let (registry, reason) = (self.me.clone(), reason.to_owned());
        let tell = move || {
            above.fail(&reason, blame);
            drop(above);
            if let Some(registry) = registry.upgrade() {
                registry.told_above(&mut registry.lock(), id);
            }
        };
        if let Err(error) = std::thread::Builder::new().name("phub-above".into()).spawn(guarded(tell)) {
            tracing::warn!(%error, "no thread to tell the hubs above why the job failed here");
            self.told_above(inner, id);
        }
    }

    fn told_above(&self, inner: &mut Inner, id: JobId) {
        if let Some(job) = inner.jobs.get(&id) {
            self.command(job, || Command::RemoveJob { job: id });
        }
        inner.untold_above.remove(&id);
        self.told.notify_all();
    }

    /// Removes workers that were silent too long, forgets old failures, and sees whether there are jobs.
    pub fn sweep(self: &Arc<Self>) {
        let mut inner = self.lock();
        let now = Instant::now();
        for id in inner.jobs.keys().copied().collect::<Vec<JobId>>() {
            self.happens(&mut inner, id, Event::Swept(self.heartbeat_limit));
        }
        let Inner { jobs, tokens, .. } = &mut *inner;
        jobs.retain(|_, job| is_kept(job) || job.failed_at().is_some_and(|at| now - at < KEEP_FAILED));
        let failed = jobs.values_mut().filter(|job| !is_kept(job));
        failed.filter_map(Job::forget_model).for_each(|model| self.free(model));
        forget_oldest(jobs, self.jobs_limit);
        tokens.sweep(|job| jobs.contains_key(&job), now);
        let is_used = self.is_used(&inner);
        let changed = self.unused_since.send_if_modified(|since| {
            let was_used = since.is_none();
            *since = if is_used { None } else { since.or(Some(now)) };
            was_used != is_used
        });
        if changed {
            self.freed.notify_waiters();
        }
    }

    /// Whether there is a job, or somebody makes it.
    fn is_used(&self, inner: &Inner) -> bool {
        let has_job = inner.jobs.values().any(|job| !job.failed());
        has_job || !inner.making.is_empty() || self.meetings.are_under_way()
    }

    /// Whether the hub takes no more jobs and has none.
    pub fn is_drained(&self) -> bool {
        *self.draining.borrow() && !self.is_used(&self.lock())
    }

    /// This hub itself stood still for so long, and could hear nobody.
    pub fn stood_still(&self, pause: Duration) {
        let now = Instant::now();
        tracing::warn!(
            "this hub stood still for {:.1} s; the clocks of its workers begin anew",
            pause.as_secs_f64()
        );
        let mut inner = self.lock();
        for job in inner.jobs.values_mut() {
            job.members.iter_mut().flatten().for_each(|member| member.heard = now);
            job.rounds.progress = Progress::new(now);
        }
    }

    /// Ends every job in order: admits nobody, writes the checkpoints that can be written, and tells all workers why. Not on the
    /// control thread.
    pub fn end_all(self: &Arc<Self>, reason: &str) {
        // A worker that came now would begin with a state that is no longer the hub's last.
        self.close();
        self.save_all(reason);
        self.stop(reason);
        self.wait_until_saved();
    }

    /// Fails every job and admits no more.
    pub fn stop(&self, reason: &str) {
        self.stops.send_replace(Some(reason.to_owned()));
        let mut inner = self.lock();
        inner.stopping = true;
        let jobs = inner.jobs.values().filter(|job| !job.failed());
        let members = |job: &Job| (0..job.terms.workers).filter(|&rank| job.has(rank)).collect::<Vec<_>>();
        let running: Vec<(JobId, Vec<u32>)> = jobs.map(|job| (job.id, members(job))).collect();
        for (id, ranks) in running {
            self.fail(&mut inner, id, reason);
            inner.untold.extend(ranks.into_iter().map(|rank| (id, rank)));
        }
    }

    /// A worker is being told that its job failed.
    pub fn told(&self, job: &str, token: &str) {
        let mut inner = self.lock();
        if let Ok(member) = inner.member(job, token).map(|(job, rank)| (job.id, rank)) {
            inner.untold.remove(&member);
            self.told.notify_all();
        }
    }

    /// Waits until every worker, and the hubs above, have been told that the hub stops; those that are dead never ask.
    pub fn wait_until_all_told(&self, limit: Duration) {
        let untold = |inner: &mut Inner| !inner.untold.is_empty() || !inner.untold_above.is_empty();
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.told.wait_timeout_while(inner, limit, untold));
    }
}

/// Says in the log that a worker is lost.
pub(super) fn say_lost(job: &Job, rank: u32, reason: &str, goes_on: bool) {
    let (from, goes_on) = (job.place(rank), if goes_on { "; the job goes on" } else { "" });
    tracing::warn!(job = job.name, rank, from, reason, "worker lost{goes_on}");
}

/// The number of workers that were lost by a cause.
pub(super) fn lost_by(cause: Cause, lost: &mut LostReply) -> &mut u64 {
    match cause {
        Cause::Link => &mut lost.link,
        Cause::Silent => &mut lost.silent,
        Cause::Late => &mut lost.late,
        Cause::HubLost | Cause::Other => &mut lost.other,
    }
}

/// Whether a job is kept as it is: it has not failed, or its last state is not saved yet.
fn is_kept(job: &Job) -> bool {
    !job.failed() || job.is_being_saved()
}

/// Forgets the failed jobs that have failed first, beyond this many failed ones.
fn forget_oldest(jobs: &mut HashMap<JobId, Job>, limit: usize) {
    let failed = jobs.values().filter(|job| !is_kept(job));
    let mut failed: Vec<(Instant, JobId)> =
        failed.filter_map(|job| Some((job.failed_at()?, job.id))).collect();
    failed.sort_unstable_by_key(|&(at, _)| at);
    let beyond = failed.len().saturating_sub(limit);
    failed[..beyond].iter().for_each(|(_, id)| drop(jobs.remove(id)));
}

#[cfg(test)]
mod tests {
    use pbox_core::JobId;
    use pbox_core::control::RefusalCode;

    use crate::registry::Refusal;
    use crate::registry::test_bed::{JOBS_LIMIT, registry, request, runtime};

    #[test]
    fn one_job_more_than_the_limit_is_refused_until_another_ends() {
        let (registry, _core) = registry();
        runtime().block_on(async {
            let join = |name: String| registry.join(name, request());
            for number in 0..JOBS_LIMIT {
                join(format!("job-{number}")).await.unwrap();
            }
            let Refusal { code, why } = join("another".into()).await.expect_err("there are 4");
            assert_eq!(code, RefusalCode::JobsLimit);
            assert!(why.contains("4 jobs") && why.contains("--jobs-limit"), "{why}");
            registry.fail(&mut registry.lock(), JobId(0), "a test");
            join("another".into()).await.unwrap();
        });
    }

    #[test]
    fn failed_jobs_keep_their_news_and_not_their_models_and_are_few() {
        let (registry, mut core) = registry();
        runtime().block_on(async {
            for number in 0..=JOBS_LIMIT as u64 {
                registry.join("job".into(), request()).await.unwrap();
                core.obey();
                registry.fail(&mut registry.lock(), JobId(number), "a test");
            }
            registry.sweep();
            let jobs = registry.describe().jobs;
            assert_eq!(jobs.len(), JOBS_LIMIT, "the first is forgotten");
            assert!(jobs.iter().all(|job| job.keys == 1 && job.model_bytes == 64), "{jobs:?}");
            let inner = registry.lock();
            assert!(!inner.jobs.contains_key(&JobId(0)));
            let kept = |job: &super::Job| job.terms.keys.len() + job.wire.layout().chunks().len();
            assert_eq!(inner.jobs.values().map(kept).sum::<usize>(), 0);
        });
    }
}
