//! Snapshots: the cores' parts of a job's state, which come in one by one and are put together.
//!
//! No core waits for the disk: while a part is being written, the next one is skipped. So the cores must be told of the
//! end of every snapshot, however it ends. A [`Collected`] that is dropped tells them.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use coordinator::{CutAt, JobEnded, Purpose};
use pbox_core::control::PartState;
use pbox_core::{JobId, Occasion, Round, Snapshot, SnapshotPart, Taken};
use tokio::sync::oneshot;

use super::collected::{Checkpoints, Collected, Collecting, NoSnapshot};
use crate::cores::Command;
use crate::registry::Registry;
use crate::registry::job::Job;

impl Registry {
    /// A core has taken its part of a snapshot, or cannot take it.
    pub(crate) fn taken(self: &Arc<Self>, job: &mut Job, core: usize, taken: Taken) {
        let Taken { occasion, before, through, part } = taken;
        let id = job.id;
        let Checkpoints { collecting, passed, .. } = &mut job.checkpoints;
        if let (Some(through), Err(why)) = (through, &part) {
            passed.insert(core, before..=through);
            for place in (0..collecting.len()).rev() {
                if is_due_in(job.checkpoints.collecting[place].occasion, &(before..=through)) {
                    self.answered(job, place, core, Err(why.clone()));
                }
            }
            return;
        }
        let place = collecting.iter().position(|one| one.occasion == occasion).unwrap_or_else(|| {
            let mut one = self.collecting(id, occasion, before, None);
            // Cores that have passed it say nothing more of it.
            one.answers = passed.values().filter(|rounds| is_due_in(occasion, rounds)).count();
            one.refused = (one.answers > 0).then(|| "another core has passed it".to_owned());
            collecting.push(one);
            collecting.len() - 1
        });
        self.answered(job, place, core, part);
    }

    /// A core has answered for the snapshot at this place of the list.
    fn answered(
        self: &Arc<Self>,
        job: &mut Job,
        place: usize,
        core: usize,
        part: Result<SnapshotPart, String>,
    ) {
        let collecting = &mut job.checkpoints.collecting;
        let before = collecting[place].collected.before;
        let one = &mut collecting[place];
        one.answers += 1;
        match part {
            Ok(part) => {
                one.collected.cores.push(core);
                one.collected.parts.push(part);
            }
            Err(why) => one.refused = Some(why),
        }
        if one.answers < job.cores.owners {
            return;
        }
        let Collecting { collected, refused, done, .. } = collecting.swap_remove(place);
        match (refused, done) {
            (None, None) => {
                let registry = Arc::clone(self);
                // Errors are kept, and in the log.
                tokio::spawn(async move { registry.save_everywhere(collected, None).await });
            }
            (None, Some(done)) => drop(done.send(Ok(collected))), // nobody waits any more if the client is gone
            (Some(why), done) => {
                drop(collected);
                if done.is_none() {
                    job.checkpoints.part.send_replace((before, PartState::Failed(why.clone())));
                }
                let asked = done.is_some_and(|done| done.send(Err(why.clone())).is_ok());
                if !asked {
                    if let Some(times) = job.checkpoints.failures.count() {
                        tracing::warn!(job = job.name, round = before.0, times, why, "checkpoint skipped");
                    }
                    let skipped = format!("the checkpoint before round {} was skipped: {why}", before.0);
                    job.checkpoints.error = Some(skipped);
                }
            }
        }
    }

    fn collecting(
        &self,
        job: JobId,
        occasion: Occasion,
        before: Round,
        done: Option<oneshot::Sender<Result<Collected, String>>>,
    ) -> Collecting {
        let (cores_of_hub, freed) = (Arc::downgrade(&self.cores), Arc::clone(&self.freed));
        let (cores, parts) = (Vec::new(), Vec::new());
        let collected = Collected { cores_of_hub, freed, job, before, cores, parts };
        Collecting { occasion, collected, answers: 0, refused: None, done }
    }

    /// Asks the cores of a held job for its state.
    pub(crate) fn take_snapshot(
        &self,
        job: &mut Job,
        before: Round,
        done: Option<oneshot::Sender<Result<Collected, String>>>,
    ) {
        job.checkpoints.asked += 1;
        let occasion = Occasion::Asked(job.checkpoints.asked);
        job.checkpoints.collecting.push(self.collecting(job.id, occasion, before, done));
        self.command(job, || Command::TakeSnapshot { job: job.id, occasion, before });
    }

    /// A job's state before the round that is furthest ahead.
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
        let (name, layout, pieces, optimizer, numbers) = self.of_job(collected.job, |state, job| {
            let numbers = state.numbers().changes_from(before);
            let layout = Arc::clone(job.wire.layout());
            (job.name.clone(), layout, state.hubs().pieces.clone(), state.terms().optimizer, numbers)
        })?;
        let snapshot = Snapshot::of_share(layout, pieces, optimizer, before, numbers, parts);
        Ok((name, snapshot.map_err(|error| error.to_string())?))
    }
}

/// Whether a snapshot is due before one of these rounds.
fn is_due_in(occasion: Occasion, rounds: &RangeInclusive<Round>) -> bool {
    matches!(occasion, Occasion::Due(round) if rounds.contains(&round))
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
    use pbox_core::{ChunkId, Notice};

    use pbox_core::control::CheckpointReply;

    use super::*;
    use crate::cores::CoreThread;
    use crate::registry::test_bed;

    /// A hub without a directory for checkpoints, with one job.
    fn registry() -> (Arc<Registry>, CoreThread) {
        let (registry, mut core) = test_bed::registry();
        test_bed::runtime().block_on(registry.join("job".into(), test_bed::request())).unwrap();
        core.obey();
        (registry, core)
    }

    /// The core's part of a snapshot that it takes now.
    fn part(core: &mut CoreThread) -> Result<SnapshotPart, String> {
        core.core.take_snapshot(JobId(0), Occasion::Asked(1), Round(0), &mut core.notices);
        match core.notices.pop() {
            Some(Notice::Snapshot { taken, .. }) => taken.part,
            other => panic!("{other:?}"),
        }
    }

    /// A snapshot that is not done. Until its end the core cannot take another one.
    fn collected(registry: &Arc<Registry>, core: &mut CoreThread) -> Collected {
        let mut collected = registry.collecting(JobId(0), Occasion::Asked(1), Round(1), None).collected;
        collected.cores.push(0);
        collected.parts.push(part(core).unwrap());
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
        let error = registry.of_job(JobId(0), |_, job| job.checkpoints.error.clone());
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
        registry.of_job(JobId(0), |_, job| registry.taken(job, 0, skipped)).unwrap();
        let error = registry.describe().jobs.remove(0).checkpoint_error.unwrap();
        assert!(error.contains("before round 7 was skipped: not written yet"), "{error}");
    }
    #[test]
    fn a_core_that_has_passed_rounds_is_not_waited_for() {
        let (registry, _core) = registry();
        let _in_runtime = test_bed::runtime().enter();
        let taken = |core, before, through, part: Result<SnapshotPart, String>| {
            let (occasion, through) = (Occasion::Due(Round(before)), Option::<u32>::map(through, Round));
            let taken = Taken { occasion, before: Round(before), through, part };
            registry.of_job(JobId(0), |_, job| registry.taken(job, core, taken)).unwrap();
        };
        let part = || {
            let values = fabric::Slab::zeroed("test", 16).unwrap();
            Ok(SnapshotPart { chunks: vec![ChunkId(0)], values, steps: vec![0] })
        };
        let collecting = || {
            let at = |one: &Collecting| (one.collected.before.0, one.answers);
            registry
                .of_job(JobId(0), |_, job| job.checkpoints.collecting.iter().map(at).collect::<Vec<_>>())
                .unwrap()
        };
        // As if the job had two cores.
        registry.of_job(JobId(0), |_, job| Arc::get_mut(&mut job.cores).unwrap().owners = 2).unwrap();
        taken(0, 20, None, part());
        assert_eq!(collecting(), [(20, 1)]);
        taken(1, 10, Some(4_000_000_000), Err("passed".into()));
        assert_eq!(collecting(), [], "the core has answered for each of these rounds");
        taken(0, 30, None, part());
        assert_eq!(collecting(), [], "and for those that another core comes to later");
    }
}
