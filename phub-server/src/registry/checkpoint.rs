//! Checkpoints: when they are taken, how the cores' parts are put together, and how they are written.
//!
//! ```text
//!   due every so many rounds --+
//!   asked for ---- hold, cut --+--> cores copy chunk by chunk --> parts --> file --> memory goes back
//!   the job's or hub's end ----+
//! ```
//!
//! No core waits for the disk: while a part is being written, the next one is skipped. So the cores must
//! hear of the end of every snapshot, however it ends: a [`Collected`] that is dropped tells them.

use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use pbox_core::control::{CheckpointReply, JobState, PartState};
use pbox_core::{JobId, Occasion, Round, Snapshot, SnapshotPart, Taken};
use tokio::sync::{oneshot, watch};

use super::cut::{JobEnded, Purpose};
use super::hubs::agreement::{is_needed, may_write};
use super::job::Job;
use super::{Refusal, Registry, on_thread};

/// How long a request waits for the round in flight, while workers compute.
pub(super) const ROUND_LIMIT: Duration = Duration::from_secs(30);
/// The same at a stop of the hub: perhaps nobody pushes any more.
const ROUND_LIMIT_AT_STOP: Duration = Duration::from_secs(2);

/// The checkpoints of one job.
#[derive(Debug, Default)]
pub(crate) struct Checkpoints {
    collecting: Vec<Collecting>,
    asked: u64,
    /// The last checkpoint that was written.
    pub last: Option<CheckpointReply>,
    /// Why the last attempt failed.
    pub error: Option<String>,
    /// The last one that was begun here, by its round, and how it is: other hubs of the job ask.
    pub part: watch::Sender<(Round, PartState)>,
}

/// Jobs whose checkpoint at the hub's stop is not written yet, or cannot be written.
#[derive(Clone, Debug, Default)]
pub struct Unsaved(Arc<Mutex<Vec<String>>>);

impl Unsaved {
    /// Their names.
    pub fn names(&self) -> Vec<String> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<String>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// A snapshot whose parts are still coming in.
#[derive(Debug)]
struct Collecting {
    occasion: Occasion,
    collected: Collected,
    /// Cores that have answered.
    answers: usize,
    refused: Option<String>,
    /// The request that waits for it.
    done: Option<oneshot::Sender<Result<Collected, String>>>,
}

/// The parts of a snapshot, each with its core. When this is dropped, nobody will write the snapshot any more, and the cores
/// get the memory of their parts back.
#[derive(Debug)]
pub(super) struct Collected {
    registry: Weak<Registry>,
    job: JobId,
    before: Round,
    cores: Vec<usize>,
    parts: Vec<SnapshotPart>,
}

impl Collected {
    /// The snapshot that was made of the parts is not needed any more.
    pub(super) fn give_back(mut self, snapshot: Snapshot) {
        self.parts = snapshot.into_parts();
    }
}

impl Drop for Collected {
    fn drop(&mut self) {
        let Some(registry) = self.registry.upgrade() else { return }; // the cores are gone, too
        let mut parts = self.parts.drain(..);
        for &core in &self.cores {
            let (job, values) = (self.job, parts.next().map(|part| part.values));
            registry.cores[core].tell(move |thread| thread.core.give_back(job, values));
        }
        registry.freed.notify_waiters();
    }
}

impl Registry {
    /// A core has taken its part of a snapshot, or cannot take it.
    pub(super) fn taken(self: &Arc<Self>, job: &mut Job, core: usize, taken: Taken) {
        let Taken { occasion, before, part } = taken;
        let (id, collecting) = (job.id, &mut job.checkpoints.collecting);
        let place = collecting.iter().position(|one| one.occasion == occasion).unwrap_or_else(|| {
            collecting.push(self.collecting(id, occasion, before, None));
            collecting.len() - 1
        });
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
                job.checkpoints.part.send_replace((before, PartState::Failed(why.clone())));
                let asked = done.is_some_and(|done| done.send(Err(why.clone())).is_ok());
                if !asked {
                    tracing::warn!(job = job.name, round = before.0, why, "checkpoint skipped");
                }
            }
        }
    }

    fn collecting(
        self: &Arc<Self>,
        job: JobId,
        occasion: Occasion,
        before: Round,
        done: Option<oneshot::Sender<Result<Collected, String>>>,
    ) -> Collecting {
        let registry = Arc::downgrade(self); // which has it among its jobs
        let collected = Collected { registry, job, before, cores: Vec::new(), parts: Vec::new() };
        Collecting { occasion, collected, answers: 0, refused: None, done }
    }

    /// Writes a checkpoint of a job now: its state before the round that is furthest ahead.
    pub async fn checkpoint(self: &Arc<Self>, name: &str) -> Result<CheckpointReply, Refusal> {
        if self.store.is_none() {
            return Err(Refusal::Conflict(
                "this hub writes no checkpoints: start it with --checkpoints DIRECTORY".into(),
            ));
        }
        let id = self.lock().named(name)?;
        let written = self.checkpoint_job(id, ROUND_LIMIT).await;
        written.map_err(|why| Refusal::Exhausted(format!("job {name:?}: {why}")))
    }

    /// Writes the checkpoints that can be written before the hub stops.
    pub async fn checkpoint_all(self: &Arc<Self>) {
        if self.store.is_none() {
            return;
        }
        let running = |job: &&Job| job.state() == JobState::Running;
        let named = |job: &Job| (job.id, job.name.clone());
        let jobs: Vec<(JobId, String)> = self.lock().jobs.values().filter(running).map(named).collect();
        *self.unsaved.lock() = jobs.iter().map(|(_, name)| name.clone()).collect();
        for (id, job) in jobs {
            match self.checkpoint_job(id, ROUND_LIMIT_AT_STOP).await {
                Ok(_) => self.unsaved.lock().retain(|name| *name != job),
                Err(why) => tracing::warn!(job, why, "no checkpoint at the stop"),
            }
        }
    }

    /// As [`checkpoint`](Self::checkpoint). `limit` is the time limit for the round in flight.
    pub(super) async fn checkpoint_job(
        self: &Arc<Self>,
        id: JobId,
        limit: Duration,
    ) -> Result<CheckpointReply, String> {
        let (leads, peers) = self.of_job(id, |job| (job.hubs.leads(), Arc::clone(&job.hubs.peers)))?;
        if !leads {
            return self.checkpoint_at_lead(&peers, limit).await;
        }
        let deadline = tokio::time::Instant::now() + limit;
        let collected = self.collect(id, limit).await?;
        self.save_everywhere(collected, Some(deadline)).await
    }

    /// Writes a snapshot to the job's file. Where this hub leads several, the others have written their parts, too, whose
    /// chunks must have come to the round until the deadline.
    async fn save_everywhere(
        self: &Arc<Self>,
        collected: Collected,
        deadline: Option<tokio::time::Instant>,
    ) -> Result<CheckpointReply, String> {
        let (id, before) = (collected.job, collected.before);
        let mut reply = self.save(collected).await?;
        let of_others = self.follow_parts(id, before, deadline).await.inspect_err(|why| {
            let _ = self.of_job(id, |job| {
                tracing::warn!(job = job.name, round = before.0, why, "checkpoint is not whole");
                job.checkpoints.error = Some(why.clone());
            });
        })?;
        reply.bytes += of_others;
        Ok(reply)
    }

    /// Asks the cores of a held job for its state.
    pub(super) fn take_snapshot(
        self: &Arc<Self>,
        job: &mut Job,
        before: Round,
        done: Option<oneshot::Sender<Result<Collected, String>>>,
    ) {
        job.checkpoints.asked += 1;
        let occasion = Occasion::Asked(job.checkpoints.asked);
        job.checkpoints.collecting.push(self.collecting(job.id, occasion, before, done));
        let id = job.id;
        self.command(job, move |thread| {
            thread.core.take_snapshot(id, occasion, before, &mut thread.notices);
        });
    }

    /// A job's state before the round that is furthest ahead.
    pub(super) async fn collect(self: &Arc<Self>, id: JobId, limit: Duration) -> Result<Collected, String> {
        let deadline = tokio::time::Instant::now() + limit;
        loop {
            let saved = self.freed.notified();
            tokio::pin!(saved);
            saved.as_mut().enable(); // before the request, so that no wake-up is missed
            // A hub skips a checkpoint while it writes the one before. What is wrong with a hub shows at the cut.
            let _ = self.follow_parts(id, Round(0), Some(deadline)).await;
            let (before, parts) = self.ask_for_snapshot(id).await?;
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
    ) -> Result<(Round, oneshot::Receiver<Result<Collected, String>>), String> {
        let held = self.hold_everywhere(id).await?;
        let before = held.front.unwrap_or_default();
        let (done, parts) = oneshot::channel();
        let has_state = before > Round(0);
        if has_state {
            // A job that ended meanwhile says so at its release.
            let _ = self.of_job(id, |job| self.take_snapshot(job, before, Some(done)));
        }
        let purpose = if has_state { Purpose::Snapshot } else { Purpose::Nothing };
        self.release_everywhere(id, held, before, &purpose).await?;
        match has_state {
            true => Ok((before, parts)),
            false => {
                Err("its state cannot be had: it has no weights yet, because no round is over".to_owned())
            }
        }
    }

    /// Writes a snapshot to the job's file, even if nobody waits for it any more.
    async fn save(self: &Arc<Self>, mut collected: Collected) -> Result<CheckpointReply, String> {
        let (id, before) = (collected.job, collected.before);
        let (name, snapshot) = self.snapshot(&mut collected)?;
        self.of_job(id, |job| job.checkpoints.part.send_replace((before, PartState::Writing)))?;
        let registry = Arc::clone(self);
        let write = move || {
            let result = registry.write(id, &name, &snapshot);
            // The memory goes back first: a client that sees the result may ask for the next checkpoint at once.
            collected.give_back(snapshot);
            result
        };
        let result = on_thread("phub-checkpoint", write).await.unwrap_or_else(Err);
        self.note(id, before, &result);
        result
    }

    /// Puts the parts together. Returns the job's name, too. The caller gives the parts back.
    pub(super) fn snapshot(&self, collected: &mut Collected) -> Result<(String, Snapshot), String> {
        let (before, parts) = (collected.before, std::mem::take(&mut collected.parts));
        let (name, layout, pieces, optimizer, rates) = self.of_job(collected.job, |job| {
            let rates = job.learning_rates.changes_from(before);
            let layout = Arc::clone(job.wire.layout());
            (job.name.clone(), layout, job.hubs.pieces.clone(), job.terms.optimizer, rates)
        })?;
        let snapshot = Snapshot::of_share(layout, pieces, optimizer, before, rates, parts);
        Ok((name, snapshot.map_err(|error| error.to_string())?))
    }

    /// Writes the file. On its own thread, because it waits for the disk.
    fn write(&self, id: JobId, name: &str, snapshot: &Snapshot) -> Result<CheckpointReply, String> {
        let store = self.store.as_ref().expect("snapshots are taken where there is a store");
        let (share, rounds, whole) =
            self.of_job(id, |job| (job.hubs.share, job.hubs.rounds.clone(), job.hubs.whole.clone()))?;
        let start = Instant::now();
        let bytes = if share.is_whole() {
            store.save(name, snapshot)?
        } else if may_write(&whole, &rounds) {
            let bytes = store.save_part(name, share, snapshot)?;
            let kept = store.keep_parts(name, share, |round| is_needed(&whole, round))?;
            let _ = self.of_job(id, |job| job.hubs.has_files(share.hub, kept));
            bytes
        } else {
            return Err(format!(
                "another hub of the job has not written its part of the rounds {:?}, which wait here for it; see the log \
                 of hub 0",
                rounds.iter().map(|round| round.0).collect::<Vec<_>>()
            ));
        };
        let milliseconds = start.elapsed().as_millis() as u64;
        Ok(CheckpointReply { round: snapshot.round(), bytes, milliseconds })
    }

    /// Keeps the result of a snapshot, for `GET /v1/hub` and for other hubs.
    fn note(&self, id: JobId, round: Round, result: &Result<CheckpointReply, String>) {
        let _ = self.of_job(id, |job| match result {
            Ok(written) => {
                let CheckpointReply { bytes, milliseconds, .. } = written;
                tracing::info!(job = job.name, round = round.0, bytes, milliseconds, "checkpoint written");
                (job.checkpoints.last, job.checkpoints.error) = (Some(written.clone()), None);
                job.checkpoints.part.send_replace((round, PartState::Written(*bytes)));
            }
            Err(error) => {
                tracing::warn!(job = job.name, round = round.0, error, "checkpoint failed");
                job.checkpoints.error = Some(error.clone());
                job.checkpoints.part.send_replace((round, PartState::Failed(error.clone())));
            }
        });
    }
}

pub(super) fn overdue(before: Round) -> String {
    let round = before.0.saturating_sub(1);
    format!(
        "its state cannot be had: round {round} did not end in time, because not all workers have pushed all of it"
    )
}

/// However a snapshot ends, the cores hear of it: they can take the next one.
#[cfg(test)]
mod tests {
    use pbox_core::Notice;

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

    /// A snapshot that is not done: the core can take no other one.
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
        let error = registry.of_job(JobId(0), |job| job.checkpoints.error.clone());
        assert_eq!(error.unwrap(), Some(why));
    }
}
