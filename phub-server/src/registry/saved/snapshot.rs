//! Snapshots: the cores' parts of a job's state, which come in one by one and are put together.
//!
//! No core waits for the disk: while a part is being written, the next one is skipped. So the cores must be told of the
//! end of every snapshot, however it ends. A [`Collected`] that is dropped tells them.

use std::sync::Arc;
use std::time::Duration;

use coordinator::{CutAt, Event, JobEnded, Purpose};
use pbox_core::{JobId, Occasion, Round, Snapshot, Taken};
use tokio::sync::oneshot;

use super::collected::{Collected, Collects, NoSnapshot};
use crate::registry::job::Job;
use crate::registry::{Inner, Registry};

impl Registry {
    /// Notes that a core has taken its part of a snapshot, or cannot take it.
    pub(in crate::registry) fn taken(&self, inner: &mut Inner, id: JobId, core: usize, taken: Taken) {
        let Taken { occasion, before, through, part } = taken;
        let Some((_, job)) = inner.job(id) else { return };
        let refused = part.map(|part| self.collects(job, occasion, before, None).take(core, part)).err();
        self.happens(inner, id, Event::Taken { core, occasion, before, through, refused });
    }

    /// Returns the parts of a snapshot as far as they are here.
    pub(crate) fn collects<'a>(
        &self,
        job: &'a mut Job,
        occasion: Occasion,
        before: Round,
        collects: Option<Collects>,
    ) -> &'a mut Collected {
        let (id, all) = (job.id, &mut job.checkpoints.collecting);
        &mut all.entry(occasion).or_insert_with(|| (self.collected(id, before), collects)).0
    }

    fn collected(&self, job: JobId, before: Round) -> Collected {
        let (cores_of_hub, freed) = (Arc::downgrade(&self.cores), Arc::clone(&self.freed));
        Collected { cores_of_hub, freed, job, before, cores: Vec::new(), parts: Vec::new() }
    }

    /// Ends a snapshot for which all cores have answered.
    pub(crate) fn snapshot_over(
        &self,
        job: &mut Job,
        (occasion, before): (Occasion, Round),
        whole: Result<(), String>,
    ) {
        let (collected, collects) = job.checkpoints.collecting.remove(&occasion).unzip();
        match (whole, collected, collects.flatten()) {
            // Nobody waits any more if the client is gone.
            (whole, Some(collected), Some(asked)) => drop(asked.send(whole.map(|()| collected))),
            (Ok(()), Some(collected), None) => {
                let Some(registry) = self.me.upgrade() else { return };
                // Errors are kept, and in the log.
                self.runtime.spawn(async move { registry.save_everywhere(collected, None).await });
            }
            (Ok(()), None, _) => {}
            (Err(why), ..) => {
                if let Some(times) = job.checkpoints.failures.count() {
                    tracing::warn!(job = job.name, round = before.0, times, why, "checkpoint skipped");
                }
            }
        }
    }

    /// Returns a job's state before the round that is furthest ahead.
    pub(crate) async fn collect(
        self: &Arc<Self>,
        id: JobId,
        at: CutAt,
        limit: Duration,
    ) -> Result<Collected, NoSnapshot> {
        let deadline = tokio::time::Instant::now() + limit;
        loop {
            let saved = self.freed.notified(); // before the request, so that no wake-up is missed
            if at != CutAt::ThisHub {
                // A hub skips a checkpoint while it writes the one before. What is wrong with a hub shows at the cut.
                let _ = self.follow_parts(id, Round(0), Some(deadline)).await;
            }
            let (before, parts) = self.ask_for_snapshot(id, at).await?;
            let collected = tokio::time::timeout_at(deadline, parts).await.map_err(|_| overdue(before))?;
            match collected.map_err(|_| JobEnded)? {
                Ok(collected) => return Ok(collected),
                // Another snapshot is being written. Try again after it.
                Err(why) => tokio::time::timeout_at(deadline, saved).await.map_err(|_| why)?,
            }
        }
    }

    /// Cuts the job before the round that is furthest ahead, and asks the cores for the state there.
    async fn ask_for_snapshot(
        self: &Arc<Self>,
        id: JobId,
        at: CutAt,
    ) -> Result<(Round, oneshot::Receiver<Result<Collected, String>>), NoSnapshot> {
        let (done, parts) = oneshot::channel();
        let before = self.cut(id, Purpose::Snapshot(at), Some(done)).await??;
        Ok((before.unwrap_or_default(), parts))
    }

    /// Puts the parts together. Returns the job's name, too. The caller gives the parts back.
    pub(crate) fn snapshot(&self, collected: &mut Collected) -> Result<(String, Snapshot), String> {
        let (before, parts) = (collected.before, std::mem::take(&mut collected.parts));
        let (name, layout, pieces, tensors, numbers) = self.of_job(collected.job, |state, job| {
            let numbers = state.numbers.changes_from(before);
            let layout = Arc::clone(job.wire.layout());
            (job.name.clone(), layout, state.hubs.pieces.clone(), state.spec.terms.tensors(), numbers)
        })?;
        let snapshot = Snapshot::of_share(layout, pieces, tensors, before, numbers, parts);
        Ok((name, snapshot.map_err(|error| error.to_string())?))
    }
}

pub(crate) fn overdue(before: Round) -> String {
    let round = before.0.saturating_sub(1);
    format!(
        "its state cannot be had: round {round} did not end in time, because not all workers have pushed all of it"
    )
}

/// The cores are told of the end of every snapshot, so that they can take the next one.
#[cfg(test)]
mod tests {
    use pbox_core::control::CheckpointReply;
    use pbox_core::{Notice, SnapshotPart};

    use super::*;
    use crate::cores::CoreThread;
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
        core.core.take_snapshot(JobId(0), Occasion::Asked(1), Round(0), &mut core.notices);
        match core.notices.pop() {
            Some(Notice::Snapshot { taken, .. }) => taken.part,
            other => panic!("{other:?}"),
        }
    }

    /// Returns a snapshot that is not done. Until its end the core cannot take another one.
    fn collected(registry: &Arc<Registry>, core: &mut CoreThread) -> Collected {
        let mut collected = registry.collected(JobId(0), Round(1));
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
    fn a_copy_gives_the_core_its_memory_and_keeps_the_values() {
        let (registry, mut core) = registry();
        let mut collected = collected(&registry, &mut core);
        let values = collected.parts[0].values.as_slice().to_vec();
        collected.copy().unwrap();
        assert_heard(&mut core);
        assert_eq!(collected.parts[0].values.as_slice(), values);
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
