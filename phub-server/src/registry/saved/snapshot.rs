//! Snapshots: the cores' parts of a job's state, which arrive one by one and are put together.
//!
//! No core waits for the disk: while a part is being written, the next snapshot is skipped. So the cores must be
//! notified of the end of every snapshot, however it ends. A [`Collected`] that is dropped notifies them.

use std::sync::Arc;
use std::time::Duration;

use coordinator::input::WantState;
use coordinator::{CutAt, Event, JobEnded, NoState, Parts, Use, WantId};
use pbox_core::{JobId, Occasion, Round, Snapshot, Taken};
use tokio::sync::oneshot;

use super::collected::{Collected, Met, ended};
use crate::registry::job::Job;
use crate::registry::{Inner, Registry};

/// The result of a request for a state, which arrives later.
pub(super) type Wanted = oneshot::Receiver<Result<Met, NoState>>;

impl Registry {
    /// Notes that a core has taken its part of a snapshot, or cannot take it.
    pub(in crate::registry) fn taken(&self, inner: &mut Inner, id: JobId, core: usize, taken: Taken) {
        let Taken { occasion, before, through, part } = taken;
        let Some((_, job)) = inner.job(id) else { return };
        let refused = part.map(|part| self.collects(job, occasion, before).take(core, part)).err();
        self.happens(inner, id, Event::Taken { core, occasion, before, through, refused });
    }

    /// Returns the parts of a snapshot that have already arrived.
    fn collects<'a>(&self, job: &'a mut Job, occasion: Occasion, before: Round) -> &'a mut Collected {
        let (id, all) = (job.id, &mut job.checkpoints.collecting);
        all.entry(occasion).or_insert_with(|| self.collected(id, occasion, before))
    }

    fn collected(&self, job: JobId, occasion: Occasion, before: Round) -> Collected {
        let cores_of_hub = Arc::downgrade(&self.cores);
        Collected { cores_of_hub, job, occasion, before, cores: Vec::new(), parts: Vec::new() }
    }

    /// Ends a snapshot for which all cores have answered: writes the parts, gives them to a client, or discards them,
    /// as the coordinator decides.
    pub(in crate::registry) fn snapshot_over(
        &self,
        job: &mut Job,
        (occasion, before): (Occasion, Round),
        parts: Parts,
    ) {
        let collected = job.checkpoints.collecting.remove(&occasion);
        match (parts, collected) {
            (Parts::Write, Some(collected)) => {
                let Some(registry) = self.me.upgrade() else { return };
                // The client that wants the file gets the errors. They are also kept, and logged.
                self.runtime.spawn(async move { registry.save(collected).await });
            }
            (Parts::Give(want), Some(collected)) => {
                job.checkpoints.wanted.tell(&want, Ok(Met::State(collected)));
            }
            (Parts::Skip(why), _) => {
                if let Some(times) = job.checkpoints.failures.count() {
                    tracing::warn!(job = job.name, round = before.0, times, why, "checkpoint skipped");
                }
            }
            // The cores get their memory back.
            (Parts::Drop, _) | (_, None) => {}
        }
    }

    /// Notes a request for a job's state within a time limit. Also returns the request's number.
    pub(super) fn want(
        &self,
        inner: &mut Inner,
        job: JobId,
        purpose: Use,
        at: CutAt,
        limit: Duration,
    ) -> Result<(WantId, Wanted), JobEnded> {
        let (want, effects) = inner.ask(WantState { job, purpose, at, limit })?;
        let wanted = inner.running(job)?.1.checkpoints.wanted.wait_for(want);
        self.carry_out(inner, job, effects);
        Ok((want, wanted))
    }

    /// Joins the parts into a snapshot. Also returns the job's name. The caller gives the parts back to the cores.
    pub(super) fn snapshot(&self, collected: &mut Collected) -> Result<(String, Snapshot), String> {
        let (before, parts) = (collected.before, std::mem::take(&mut collected.parts));
        let (name, layout, pieces, tensors, numbers) = self.of_job(collected.job, |state, job| {
            let numbers = state.numbers.changes_from(before);
            let layout = Arc::clone(job.wire.layout());
            (job.name.clone(), layout, state.hubs.pieces.clone(), state.spec.terms.tensors(), numbers)
        })?;
        let of = (tensors, collected.occasion.selection());
        let snapshot = Snapshot::of_share(layout, pieces, of, before, numbers, parts);
        Ok((name, snapshot.map_err(|error| error.to_string())?))
    }
}

/// Waits for the result of a request for the state.
pub(super) async fn met(wanted: Wanted) -> Result<Met, NoState> {
    wanted.await.unwrap_or_else(|_| Err(ended(JobEnded)))
}

/// The cores are notified of the end of every snapshot, so that they can take the next snapshot.
#[cfg(test)]
mod tests {
    use pbox_core::control::CheckpointReply;
    use pbox_core::{Notice, Selection, SnapshotPart};

    use hub_threads::CoreThread;

    use super::*;
    use crate::registry::test_bed;

    /// Returns a hub without a directory for checkpoints, with one job.
    fn registry() -> (Arc<Registry>, CoreThread) {
        let (registry, mut core) = test_bed::registry();
        test_bed::runtime().block_on(registry.join("job".into(), test_bed::request())).unwrap();
        core.obey();
        (registry, core)
    }

    /// Returns the core's part of a snapshot that it takes now.
    fn part(core: &mut CoreThread) -> Result<SnapshotPart, String> {
        core.core.take_snapshot(JobId(0), Occasion::Asked(1, Selection::All), Round(0), &mut core.notices);
        match core.notices.pop() {
            Some(Notice::Snapshot { taken, .. }) => taken.part,
            other => panic!("{other:?}"),
        }
    }

    /// Returns a snapshot in progress. Until its end, the core cannot take another snapshot.
    fn collected(registry: &Arc<Registry>, core: &mut CoreThread) -> Collected {
        let mut collected = registry.collected(JobId(0), Occasion::Asked(1, Selection::All), Round(1));
        collected.take(0, part(core).unwrap());
        assert!(part(core).unwrap_err().contains("not written yet"));
        core.obey();
        assert!(part(core).is_err());
        collected
    }

    fn save(registry: &Arc<Registry>, collected: Collected) -> Result<CheckpointReply, String> {
        test_bed::runtime().block_on(registry.save(collected))
    }

    #[track_caller]
    fn assert_heard(core: &mut CoreThread) {
        core.obey();
        part(core).unwrap();
    }

    #[test]
    fn a_core_hears_of_a_snapshot_that_nobody_writes() {
        let (registry, mut core) = registry();
        drop(collected(&registry, &mut core));
        assert_heard(&mut core);
    }

    #[test]
    fn a_core_hears_of_a_snapshot_that_is_none() {
        let (registry, mut core) = registry();
        let mut collected = collected(&registry, &mut core);
        collected.parts[0].values = fabric::Slab::zeroed("test", 15).unwrap();
        assert!(save(&registry, collected).unwrap_err().contains("15 values"));
        assert_heard(&mut core);
    }

    #[test]
    fn a_core_hears_of_a_snapshot_whose_writer_panicked() {
        let (registry, mut core) = registry();
        let collected = collected(&registry, &mut core);
        let why = save(&registry, collected).unwrap_err(); // there is no store
        assert_heard(&mut core);
        let error = registry.of_job(JobId(0), |state, _| state.checkpoints.error.clone());
        assert_eq!(error.unwrap(), Some(why));
    }

    #[test]
    fn a_snapshot_that_was_copied_gives_the_core_its_memory() {
        let (registry, mut core) = registry();
        let mut collected = collected(&registry, &mut core);
        let (_, snapshot) = registry.snapshot(&mut collected).unwrap();
        collected.give_back(snapshot);
        assert_heard(&mut core);
    }

    #[test]
    fn a_snapshot_that_is_skipped_is_told() {
        let (registry, _core) = registry();
        let before = Round(7);
        let (occasion, part) = (Occasion::Due(before), Err("not written yet".into()));
        let skipped = Taken { occasion, before, through: None, part };
        let _in_runtime = test_bed::runtime().enter();
        registry.taken(&mut registry.lock(), JobId(0), 0, skipped);
        let error = registry.describe().jobs.remove(0).checkpoint_error.unwrap();
        assert!(error.contains("before round 7 was skipped: not written yet"), "{error}");
    }
}
