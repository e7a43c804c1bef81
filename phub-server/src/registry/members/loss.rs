//! Losses of workers and failures of jobs. The cause is a core's report, a worker's silence, or the stop of
//! the hub. All of this runs under the registry's lock.

use std::sync::Arc;
use std::time::{Duration, Instant};

use coordinator::input::{Fail, Forgotten, Lose, StoodStill, Sweep, TellAbove, ToldAbove};
use coordinator::{Blame, Cause, Event, Member, MemberOf};
use hub_threads::Command;
use hub_threads::alarm::guarded;
use pbox_core::{Discarded, JobId, Wire};

use crate::registry::above::JoinedAbove;
use crate::registry::{Inner, Registry};

impl Registry {
    /// Loses a worker. Its job continues without it if the job's terms allow that and another worker is left. Otherwise the job
    /// fails.
    pub(in crate::registry) fn lose(
        self: &Arc<Self>,
        inner: &mut Inner,
        id: JobId,
        rank: u32,
        cause: Cause,
        reason: &str,
    ) {
        let member = MemberOf { job: id, rank };
        let effects = inner.ask(Lose { member, cause, reason: reason.to_owned() });
        self.carry_out(inner, id, effects);
    }

    pub(in crate::registry) fn fail(&self, inner: &mut Inner, id: JobId, reason: &str) {
        self.fail_by(inner, id, reason, Blame::Job);
    }

    /// Works like [`fail`](Self::fail), and also reports to the workers which party caused the end. While this hub
    /// stops, the stop counts as the cause.
    pub(in crate::registry) fn fail_by(&self, inner: &mut Inner, id: JobId, reason: &str, blame: Blame) {
        let saves = inner.job(id).is_some_and(|(state, job)| self.saves(state) && job.above.is_none());
        let failed = inner.ask(Fail { job: id, reason: reason.to_owned(), blame, saves });
        let (Some(failed), Some((_, job))) = (failed, inner.job(id)) else { return };
        tracing::warn!(job = job.name, reason, "job failed");
        job.fail();
        match job.above.take() {
            Some(above) if above.lives_at_some() => self.fail_above(inner, id, above, reason, failed.blame),
            _ if failed.is_being_saved => {}
            _ => self.command(job, || Command::RemoveJob { job: id }),
        }
        self.carry_out(inner, id, failed.effects);
        // Joins may be waiting for the job's name, or for one of its ranks.
        self.freed.notify_waiters();
    }

    /// Notifies the hubs above why a job failed here. Closes the job's links only afterwards: a closed link alone would give no
    /// reason.
    fn fail_above(&self, inner: &mut Inner, id: JobId, above: Arc<JoinedAbove>, reason: &str, blame: Blame) {
        inner.ask(TellAbove { job: id });
        let (registry, reason) = (self.me.clone(), reason.to_owned());
        let tell = move || {
            above.fail(&reason, blame);
            drop(above);
            if let Some(registry) = registry.upgrade() {
                registry.note_notified_above(&mut registry.lock(), id);
            }
        };
        if let Err(error) = std::thread::Builder::new().name("phub-above".into()).spawn(guarded(tell)) {
            tracing::warn!(%error, "cannot start a thread that reports the job's failure to the hubs above");
            self.note_notified_above(inner, id);
        }
    }

    fn note_notified_above(&self, inner: &mut Inner, id: JobId) {
        if let Some((_, job)) = inner.job(id) {
            self.command(job, || Command::RemoveJob { job: id });
        }
        inner.ask(ToldAbove { job: id });
        self.stop_notified.notify_all();
        self.freed.notify_waiters(); // joins may be waiting for the job's name at the hubs above
    }

    /// Removes workers that were silent for too long, forgets old failures, and notes whether the hub has
    /// jobs. Also measures the contention for the cpus of the cores.
    pub fn sweep(self: &Arc<Self>) {
        self.cores.iter().for_each(|core| core.contention.measure());
        let mut inner = self.lock();
        let now = Instant::now();
        for id in inner.hub().jobs().map(|job| job.spec.id).collect::<Vec<JobId>>() {
            self.happens(&mut inner, id, Event::Swept(self.heartbeat_limit));
        }
        let failed = inner.jobs().filter(|(state, _)| !state.is_kept());
        let wires: Vec<Wire> = failed.filter_map(|(_, job)| job.forget_wire()).collect();
        let Forgotten { models, stop } = inner.ask(Sweep);
        self.take_steps(&mut inner, stop);
        if !models.is_empty() || !wires.is_empty() {
            self.free(Discarded::of((models, wires)));
        }
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

    /// Whether there is a job, or a job is being made.
    fn is_used(&self, inner: &Inner) -> bool {
        !inner.hub().names().is_empty() || self.meetings.are_under_way()
    }

    /// Whether the hub takes no more jobs and has no jobs.
    pub fn is_drained(&self) -> bool {
        let inner = self.lock();
        inner.hub().end().drains() && !self.is_used(&inner)
    }

    /// Notes that this hub itself was suspended for `pause`, so it received no heartbeats.
    pub fn stood_still(&self, pause: Duration) {
        tracing::warn!(
            "this hub was suspended for {:.1} s; it counts the silence of its workers from now",
            pause.as_secs_f64()
        );
        self.lock().ask(StoodStill);
    }
}

/// Logs that a worker is lost.
pub(in crate::registry) fn say_lost(job: &coordinator::Job, rank: u32, reason: &str, goes_on: bool) {
    let (from, goes_on) =
        (job.members.get(rank).and_then(Member::place), if goes_on { "; the job continues" } else { "" });
    tracing::warn!(job = job.spec.name, rank, from, reason, "worker lost{goes_on}");
}

#[cfg(test)]
mod tests {
    use pbox_core::JobId;

    use crate::registry::test_bed::{JOBS_LIMIT, registry, request, runtime};

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
            let mut inner = registry.lock();
            assert!(inner.job(JobId(0)).is_none());
            let kept = |(state, job): crate::registry::Both| {
                state.spec.terms.keys.len() + job.wire.layout().chunks().len()
            };
            assert_eq!(inner.jobs().map(kept).sum::<usize>(), 0);
        });
    }
}
