//! Checkpoints: when they are taken, how the cores' parts come together, and what becomes of them.
//!
//! ```text
//!   due every so many rounds --+
//!   asked for ---- hold, cut --+--> cores copy chunk by chunk --> parts --> file --> memory goes back
//!   the job's or hub's end ----+
//! ```
//!
//! No core waits for the disk: while a part is being written, the next one is skipped.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pbox_core::control::{CheckpointReply, JobState};
use pbox_core::{JobId, Occasion, Round, Snapshot, SnapshotPart, Taken};
use tokio::sync::oneshot;

use super::{Refusal, Registry};
use crate::core_thread::Command;
use crate::job::Job;

/// How long whoever asks waits for the round in flight: workers compute in between.
const ROUND_LIMIT: Duration = Duration::from_secs(30);
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

/// The parts of a snapshot, with the hub's core that each came from.
#[derive(Debug)]
struct Collected {
    before: Round,
    cores: Vec<usize>,
    parts: Vec<SnapshotPart>,
}

impl Collecting {
    fn new(
        occasion: Occasion,
        before: Round,
        done: Option<oneshot::Sender<Result<Collected, String>>>,
    ) -> Self {
        let collected = Collected { before, cores: Vec::new(), parts: Vec::new() };
        Collecting { occasion, collected, answers: 0, refused: None, done }
    }
}

impl Registry {
    /// A core has its part of a snapshot, or none.
    pub(super) fn taken(self: &Arc<Self>, job: &mut Job, core: usize, taken: Taken) {
        let Taken { occasion, before, part } = taken;
        let collecting = &mut job.checkpoints.collecting;
        let place = collecting.iter().position(|one| one.occasion == occasion).unwrap_or_else(|| {
            collecting.push(Collecting::new(occasion, before, None));
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
                let (registry, id) = (Arc::clone(self), job.id);
                tokio::spawn(async move {
                    let _ = registry.save(id, collected).await; // its error is kept, and in the log
                });
            }
            (None, Some(done)) => {
                if let Err(Ok(collected)) = done.send(Ok(collected)) {
                    self.give_back(job.id, collected.cores, collected.parts); // nobody waits any more
                }
            }
            (Some(why), done) => {
                self.give_back(job.id, collected.cores, collected.parts);
                let asked = done.is_some_and(|done| done.send(Err(why.clone())).is_ok());
                if !asked {
                    tracing::warn!(job = job.name, round = before.0, why, "checkpoint skipped");
                }
            }
        }
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
        let ids: Vec<JobId> = self.lock().jobs.values().filter(running).map(|job| job.id).collect();
        for id in ids {
            if let Err(why) = self.checkpoint_job(id, ROUND_LIMIT_AT_STOP).await {
                tracing::warn!(job = id.0, why, "no checkpoint at the stop");
            }
        }
    }

    /// As [`checkpoint`](Self::checkpoint); `limit` is for the round in flight.
    pub(super) async fn checkpoint_job(
        self: &Arc<Self>,
        id: JobId,
        limit: Duration,
    ) -> Result<CheckpointReply, String> {
        let deadline = tokio::time::Instant::now() + limit;
        loop {
            let saved = self.freed.notified();
            tokio::pin!(saved);
            saved.as_mut().enable(); // before the look, so that none is missed
            let (before, parts) = self.ask_for_snapshot(id).await?;
            let overdue = || {
                format!(
                    "no checkpoint: round {} did not end within {limit:?}, because not all workers have pushed all of it",
                    before.0.saturating_sub(1)
                )
            };
            let collected = tokio::time::timeout_at(deadline, parts).await.map_err(|_| overdue())?;
            match collected.map_err(|_| "the job ended meanwhile".to_owned())? {
                Ok(collected) => return self.save(id, collected).await,
                // Another one is being written: after it.
                Err(why) => tokio::time::timeout_at(deadline, saved).await.map_err(|_| why)?,
            }
        }
    }

    /// Cuts the job before the round that is furthest ahead, and asks the cores for its state there.
    async fn ask_for_snapshot(
        &self,
        id: JobId,
    ) -> Result<(Round, oneshot::Receiver<Result<Collected, String>>), String> {
        let ended = |_| "the job ended meanwhile".to_owned();
        let cutting = self.of_job(id, |job| Arc::clone(&job.cutting)).map_err(ended)?;
        let _cutting = cutting.lock().await;
        let before = self.hold(id).await.map_err(ended)?.unwrap_or_default();
        let (done, parts) = oneshot::channel();
        let asked = self.of_job(id, |job| {
            if before == Round(0) || !job.terms.optimizer.keeps_weights() {
                return Err("no checkpoint: it has no weights yet, or its optimizer keeps none".to_owned());
            }
            job.checkpoints.asked += 1;
            let occasion = Occasion::Asked(job.checkpoints.asked);
            job.checkpoints.collecting.push(Collecting::new(occasion, before, Some(done)));
            self.command(job, |job| Command::TakeSnapshot { job, occasion, before });
            Ok(())
        });
        self.release(id, before, Arc::new([])).await.map_err(ended)?;
        asked.map_err(ended)?.map(|()| (before, parts))
    }

    /// Writes a snapshot to the job's file, and gives the cores their memory back.
    async fn save(self: &Arc<Self>, id: JobId, collected: Collected) -> Result<CheckpointReply, String> {
        let Collected { before, cores, parts } = collected;
        let about = self.of_job(id, |job| {
            let rates = job.learning_rates.from(before);
            (job.name.clone(), Arc::clone(&job.layout), job.terms.optimizer, rates)
        });
        let Ok((name, layout, optimizer, rates)) = about else {
            return Err("the job ended meanwhile".into());
        };
        let snapshot =
            Snapshot::new(layout, optimizer, before, rates, parts).map_err(|error| error.to_string())?;
        let (registry, job) = (Arc::clone(self), name.clone());
        let (done, written) = oneshot::channel();
        let start = Instant::now();
        let write = move || {
            let store = registry.store.as_ref().expect("snapshots are taken where there is a store");
            let _ = done.send((store.save(&job, &snapshot), snapshot));
        };
        let spawned = std::thread::Builder::new().name("phub-checkpoint".into()).spawn(write);
        spawned.map_err(|error| format!("no thread to write the checkpoint: {error}"))?;
        let (result, snapshot) = written.await.map_err(|_| "writing it failed; see the log".to_owned())?;
        self.give_back(id, cores, snapshot.into_parts());
        let result = result.map_err(|error| error.to_string()).map(|bytes| CheckpointReply {
            round: before,
            bytes,
            milliseconds: start.elapsed().as_millis() as u64,
        });
        match &result {
            Ok(written) => {
                let CheckpointReply { bytes, milliseconds, .. } = written;
                tracing::info!(job = name, round = before.0, bytes, milliseconds, "checkpoint written");
            }
            Err(error) => tracing::warn!(job = name, round = before.0, error, "checkpoint failed"),
        }
        let _ = self.of_job(id, |job| match &result {
            Ok(written) => (job.checkpoints.last, job.checkpoints.error) = (Some(written.clone()), None),
            Err(error) => job.checkpoints.error = Some(error.clone()),
        });
        result
    }

    fn give_back(&self, id: JobId, cores: Vec<usize>, parts: Vec<SnapshotPart>) {
        for (core, part) in cores.into_iter().zip(parts) {
            self.cores[core].send(Command::GiveBack { job: id, values: part.values });
        }
        self.freed.notify_waiters();
    }
}
