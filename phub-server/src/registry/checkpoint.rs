//! Checkpoints: when they are taken, how the cores' parts come together, and what becomes of them.
//!
//! ```text
//!   due every so many rounds --+
//!   asked for ---- hold, cut --+--> cores copy chunk by chunk --> parts --> file --> memory goes back
//!   the job's or hub's end ----+
//! ```
//!
//! No core waits for the disk: while a part is being written, the next one is skipped. So the cores must
//! hear of the end of every snapshot, however it ends: a [`Collected`] that is dropped tells them.

#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use pbox_core::control::{CheckpointReply, JobState};
use pbox_core::{JobId, Occasion, Round, Snapshot, SnapshotPart, Taken};
use tokio::sync::oneshot;

use super::job::Job;
use super::{Refusal, Registry};
use crate::cores::Command;

/// How long whoever asks waits for the round in flight: workers compute in between.
pub(super) const ROUND_LIMIT: Duration = Duration::from_secs(30);
/// The same at a stop of the hub, when nobody may push any more.
const ROUND_LIMIT_AT_STOP: Duration = Duration::from_secs(2);

/// The checkpoints of one job.
#[derive(Debug, Default)]
pub(crate) struct Checkpoints {
    collecting: Vec<Collecting>,
    asked: u64,
    /// The last one that was written.
    pub last: Option<CheckpointReply>,
    /// Why the last attempt failed.
    pub error: Option<String>,
}

/// Jobs whose checkpoint at the hub's stop is not written: not yet, or because it cannot be.
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

/// A snapshot whose parts come in.
#[derive(Debug)]
struct Collecting {
    occasion: Occasion,
    collected: Collected,
    /// Cores that have answered.
    answers: usize,
    refused: Option<String>,
    /// Who asked for it.
    done: Option<oneshot::Sender<Result<Collected, String>>>,
}

/// The parts of a snapshot, with the hub's core that each came from. When this goes, so that nobody will
/// write it any more, the cores get what is there of their parts.
#[derive(Debug)]
pub(super) struct Collected {
    registry: Weak<Registry>,
    job: JobId,
    before: Round,
    cores: Vec<usize>,
    parts: Vec<SnapshotPart>,
}

impl Collected {
    /// What was made of the parts is not needed any more.
    pub(super) fn give_back(mut self, snapshot: Snapshot) {
        self.parts = snapshot.into_parts();
    }
}

impl Drop for Collected {
    fn drop(&mut self) {
        let Some(registry) = self.registry.upgrade() else { return }; // and no core
        let mut parts = self.parts.drain(..);
        for &core in &self.cores {
            let values = parts.next().map(|part| part.values);
            registry.cores[core].send(Command::GiveBack { job: self.job, values });
        }
        registry.freed.notify_waiters();
    }
}

impl Registry {
    /// A core has its part of a snapshot, or none.
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
                tokio::spawn(async move {
                    let _ = registry.save(collected).await; // its error is kept, and in the log
                });
            }
            (None, Some(done)) => drop(done.send(Ok(collected))), // perhaps nobody waits any more
            (Some(why), done) => {
                drop(collected);
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

    /// Writes a checkpoint of a job now: as it was before the round that is furthest ahead.
    pub async fn checkpoint(self: &Arc<Self>, name: &str) -> Result<CheckpointReply, Refusal> {
        if self.store.is_none() {
            return Err(Refusal::Conflict(
                "this hub writes no checkpoints: start it with --checkpoints DIRECTORY".into(),
            ));
        }
        let id = self.lock().names.get(name).copied();
        let id =
            id.ok_or_else(|| Refusal::Gone(format!("no job {name:?} is here; GET /v1/hub lists them")))?;
        self.checkpoint_job(id, ROUND_LIMIT)
            .await
            .map_err(|why| Refusal::Exhausted(format!("job {name:?}: {why}")))
    }

    /// Writes what can be written before the hub stops.
    pub async fn checkpoint_all(self: &Arc<Self>) {
        if self.store.is_none() {
            return;
        }
        let running = |job: &&Job| job.state() == JobState::Running && job.terms.optimizer.keeps_weights();
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

    /// As [`checkpoint`](Self::checkpoint); `limit` is for the round in flight.
    pub(super) async fn checkpoint_job(
        self: &Arc<Self>,
        id: JobId,
        limit: Duration,
    ) -> Result<CheckpointReply, String> {
        let collected = self.collect(id, limit).await?;
        self.save(collected).await
    }

    /// A job's state, as it is before the round that is furthest ahead.
    pub(super) async fn collect(self: &Arc<Self>, id: JobId, limit: Duration) -> Result<Collected, String> {
        let deadline = tokio::time::Instant::now() + limit;
        loop {
            let saved = self.freed.notified();
            tokio::pin!(saved);
            saved.as_mut().enable(); // before the look, so that none is missed
            let (before, parts) = self.ask_for_snapshot(id).await?;
            let overdue = || {
                format!(
                    "its state cannot be had: round {} did not end within {limit:?}, because not all workers have pushed all of it",
                    before.0.saturating_sub(1)
                )
            };
            let collected = tokio::time::timeout_at(deadline, parts).await.map_err(|_| overdue())?;
            match collected.map_err(|_| "the job ended meanwhile".to_owned())? {
                Ok(collected) => return Ok(collected),
                // Another one is being written: after it.
                Err(why) => tokio::time::timeout_at(deadline, saved).await.map_err(|_| why)?,
            }
        }
    }

    /// Cuts the job before the round that is furthest ahead, and asks the cores for its state there.
    async fn ask_for_snapshot(
        self: &Arc<Self>,
        id: JobId,
    ) -> Result<(Round, oneshot::Receiver<Result<Collected, String>>), String> {
        let ended = |_| "the job ended meanwhile".to_owned();
        let cutting = self.of_job(id, |job| Arc::clone(&job.cutting)).map_err(ended)?;
        let _cutting = cutting.lock().await;
        let before = self.hold(id).await.map_err(ended)?.unwrap_or_default();
        let (done, parts) = oneshot::channel();
        let asked = self.of_job(id, |job| {
            if before == Round(0) || !job.terms.optimizer.keeps_weights() {
                return Err(
                    "its state cannot be had: it has no weights yet, or its optimizer keeps none".to_owned()
                );
            }
            job.checkpoints.asked += 1;
            let occasion = Occasion::Asked(job.checkpoints.asked);
            job.checkpoints.collecting.push(self.collecting(id, occasion, before, Some(done)));
            self.command(job, |job| Command::TakeSnapshot { job, occasion, before });
            Ok(())
        });
        self.release(id, before, Arc::new([])).await.map_err(ended)?;
        asked.map_err(ended)?.map(|()| (before, parts))
    }

    /// Writes a snapshot to the job's file, also if whoever waits for it does so no more.
    async fn save(self: &Arc<Self>, mut collected: Collected) -> Result<CheckpointReply, String> {
        let (id, before) = (collected.job, collected.before);
        let (name, snapshot) = self.snapshot(&mut collected)?;
        let registry = Arc::clone(self);
        let (done, written) = oneshot::channel();
        let write = move || {
            let result = registry.write(&name, &snapshot);
            // Whoever reads that it is written may count on the next one being taken: memory first.
            collected.give_back(snapshot);
            registry.note(id, before, &result);
            drop(registry); // before the hub that waits for this looks who else has it
            let _ = done.send(result);
        };
        let spawned = std::thread::Builder::new().name("phub-checkpoint".into()).spawn(write);
        let failed = match spawned {
            Ok(_) => match written.await {
                Ok(result) => return result,
                Err(_) => "writing it failed; see the log".to_owned(),
            },
            Err(error) => format!("no thread to write the checkpoint: {error}"),
        };
        self.note(id, before, &Err(failed.clone()));
        Err(failed)
    }

    /// The parts put together, and the job's name. The parts are to be given back.
    pub(super) fn snapshot(&self, collected: &mut Collected) -> Result<(String, Snapshot), String> {
        let (before, parts) = (collected.before, std::mem::take(&mut collected.parts));
        let about = self.of_job(collected.job, |job| {
            let rates = job.learning_rates.changes_from(before);
            (job.name.clone(), Arc::clone(job.wire.layout()), job.terms.optimizer, rates)
        });
        let (name, layout, optimizer, rates) = about.map_err(|_| "the job ended meanwhile".to_owned())?;
        let snapshot = Snapshot::new(layout, optimizer, before, rates, parts);
        Ok((name, snapshot.map_err(|error| error.to_string())?))
    }

    /// On a thread of its own: it waits for the disk.
    fn write(&self, name: &str, snapshot: &Snapshot) -> Result<CheckpointReply, String> {
        let store = self.store.as_ref().expect("snapshots are taken where there is a store");
        let start = Instant::now();
        let bytes = store.save(name, snapshot).map_err(|error| error.to_string())?;
        let milliseconds = start.elapsed().as_millis() as u64;
        Ok(CheckpointReply { round: snapshot.round(), bytes, milliseconds })
    }

    /// Keeps what became of a snapshot for those who ask.
    fn note(&self, id: JobId, round: Round, result: &Result<CheckpointReply, String>) {
        let _ = self.of_job(id, |job| match result {
            Ok(written) => {
                let CheckpointReply { bytes, milliseconds, .. } = written;
                tracing::info!(job = job.name, round = round.0, bytes, milliseconds, "checkpoint written");
                (job.checkpoints.last, job.checkpoints.error) = (Some(written.clone()), None);
            }
            Err(error) => {
                tracing::warn!(job = job.name, round = round.0, error, "checkpoint failed");
                job.checkpoints.error = Some(error.clone());
            }
        });
    }
}
