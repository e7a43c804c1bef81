//! Checkpoints: when they are taken, and how they are written. `snapshot` puts the cores' parts together.
//!
//! ```text
//!   due every so many rounds --+
//!   asked for ---- hold, cut --+--> cores copy chunk by chunk --> parts --> file --> memory goes back
//!   the job's or hub's end ----+
//! ```

use std::sync::Arc;
use std::time::{Duration, Instant};

use coordinator::input::HasFiles;
use coordinator::{CutAt, is_needed, may_write};
use pbox_core::control::{CheckpointReply, CheckpointRequest, PartState, RefusalCode};
use pbox_core::{JobId, Round, Snapshot};
use tokio::task::JoinSet;

use super::collected::{Collected, DISK_LIMIT, NoSnapshot, ROUND_LIMIT, ROUND_LIMIT_AT_STOP};
use crate::registry::hubs::Peers;
use crate::registry::{Because, Both, Refusal, Registry, on_thread};

impl Registry {
    /// Whether this hub writes checkpoints of a job that has no hubs above.
    pub(crate) fn saves(&self, job: &coordinator::Job) -> bool {
        self.store.is_some() && !job.made().trial
    }

    /// Writes a checkpoint of a job now: its state before the round that is furthest ahead.
    pub async fn checkpoint(self: &Arc<Self>, name: &str) -> Result<CheckpointReply, Refusal> {
        let id = self.lock().hub().id(name);
        let above = |id| Some((id, self.of_job(id, |_, job| job.above.clone()).ok()??));
        if let Some((id, above)) = id.as_ref().ok().and_then(|&id| above(id)) {
            let written = on_thread("phub-above", move || above.checkpoint()).await;
            return self.passed_on(id, written);
        }
        if self.store.is_none() {
            return Err(RefusalCode::NoCheckpoints
                .because("this hub writes no checkpoints: start it with --checkpoints DIRECTORY"));
        }
        let id = id?;
        if self.of_job(id, |state, _| state.made().trial).is_ok_and(|is_trial| is_trial) {
            return Err(RefusalCode::NoCheckpoints
                .because(format!("job {name:?} is a trial, which has no checkpoints")));
        }
        let written = self.checkpoint_job(id, ROUND_LIMIT).await;
        written.map_err(|why| RefusalCode::NotSaved.because(format!("job {name:?}: {why}")))
    }

    /// Writes the checkpoints that can be written before the hub stops. Not on the control thread.
    pub fn save_all(self: &Arc<Self>, reason: &str) {
        let why = format!("its hub stops: {reason}");
        let save = async { tokio::time::timeout(DISK_LIMIT, self.checkpoint_all(&why)).await };
        if self.runtime.block_on(save).is_err() {
            tracing::warn!("checkpoints were not written within {DISK_LIMIT:?}");
        }
    }

    async fn checkpoint_all(self: &Arc<Self>, why: &str) {
        // Of a mesh, the job above is here, too.
        let is_saved = |(state, job): &Both| match &job.above {
            Some(_) => state.made().mesh.is_none() && !state.goes_on(),
            None => self.saves(state),
        };
        let running = |both: &Both| both.0.runs() && is_saved(both);
        let named = |(_, job): Both| (job.id, job.name.clone());
        let jobs: Vec<(JobId, String)> = self.lock().jobs().filter(running).map(named).collect();
        self.unsaved.send_replace(jobs.iter().map(|(_, name)| name.clone()).collect());
        let mut saves = JoinSet::new();
        for (id, job) in jobs {
            let (registry, why) = (Arc::clone(self), why.to_owned());
            saves.spawn(async move {
                match registry.end_at_cut(id, &why).await {
                    Ok(()) => registry.unsaved.send_modify(|names| names.retain(|name| *name != job)),
                    Err(why) => tracing::warn!(job, why, "no checkpoint at the stop"),
                }
            });
        }
        saves.join_all().await;
    }

    /// Ends a job between two rounds, before it fails because a hub stops. The hubs above save it, where there are some.
    pub(crate) async fn end_at_cut(self: &Arc<Self>, id: JobId, why: &str) -> Result<(), String> {
        let Some(above) = self.of_job(id, |_, job| job.above.clone())? else {
            return if self.of_job(id, |state, _| self.saves(state))? {
                Ok(self.checkpoint_at_stop(id).await.map(drop)?)
            } else {
                Ok(())
            };
        };
        // If the disk takes longer, the state is at the cut all the same.
        let (why, limit) = (why.to_owned(), ROUND_LIMIT_AT_STOP + self.up.limit);
        let ended = on_thread("phub-above", move || above.stop(&why, limit)).await?;
        ended.map_err(|error| error.to_string())
    }

    /// Writes the checkpoint of a job that is then ended. The job makes no round after it, so that nothing is lost.
    pub(crate) async fn checkpoint_at_stop(self: &Arc<Self>, id: JobId) -> Result<CheckpointReply, String> {
        Ok(self.checkpoint_at(id, CutAt::LastRound, ROUND_LIMIT_AT_STOP).await?)
    }

    /// As [`checkpoint`](Self::checkpoint). `limit` is the time limit for the round in flight.
    pub(crate) async fn checkpoint_job(
        self: &Arc<Self>,
        id: JobId,
        limit: Duration,
    ) -> Result<CheckpointReply, NoSnapshot> {
        self.checkpoint_at(id, CutAt::AllHubs, limit).await
    }

    pub(crate) async fn checkpoint_at(
        self: &Arc<Self>,
        id: JobId,
        at: CutAt,
        limit: Duration,
    ) -> Result<CheckpointReply, NoSnapshot> {
        let (leads, peers) = self.of_job(id, |state, job| (state.hubs().leads(), Arc::clone(&job.peers)))?;
        if !leads {
            let lead = Peers { limit: limit + DISK_LIMIT, ..(*peers).clone() };
            let (secret, round_limit_ms) = (lead.secret.show(), limit.as_millis() as u64);
            let request = CheckpointRequest { secret, round_limit_ms, ends: at == CutAt::LastRound };
            return Ok(lead.ask(0, "checkpoint", "write a checkpoint", &request).await?);
        }
        let deadline = tokio::time::Instant::now() + limit;
        let collected = self.collect(id, at, limit).await?;
        Ok(self.save_everywhere(collected, Some(deadline)).await?)
    }

    /// Writes a snapshot to the job's file. Where this hub leads several, the others have written their parts, too, whose
    /// chunks must have come to the round until the deadline.
    pub(crate) async fn save_everywhere(
        self: &Arc<Self>,
        collected: Collected,
        deadline: Option<tokio::time::Instant>,
    ) -> Result<CheckpointReply, String> {
        let (id, before) = (collected.job, collected.before);
        let mut reply = self.save(collected).await?;
        let of_others = self.follow_parts(id, before, deadline).await.inspect_err(|why| {
            let _ = self.of_job(id, |_, job| {
                tracing::warn!(job = job.name, round = before.0, why, "checkpoint is not whole");
                job.checkpoints.error = Some(why.clone());
            });
        })?;
        reply.bytes += of_others;
        Ok(reply)
    }

    /// Writes a snapshot to the job's file, even if nobody waits for it any more.
    pub(crate) async fn save(self: &Arc<Self>, mut collected: Collected) -> Result<CheckpointReply, String> {
        let (id, before) = (collected.job, collected.before);
        let (name, snapshot) = self.snapshot(&mut collected)?;
        self.of_job(id, |_, job| job.checkpoints.part.send_replace((before, PartState::Writing)))?;
        let registry = Arc::clone(self);
        let write = move || {
            let result = registry.write(id, &name, &snapshot);
            // The memory goes back first: a client that sees the result may ask for the next checkpoint at once.
            collected.give_back(snapshot);
            result
        };
        let mut result = on_thread("phub-checkpoint", write).await.unwrap_or_else(|error| Err(error.into()));
        self.note(id, before, &mut result);
        result
    }

    /// Writes the file. On its own thread, because it waits for the disk.
    fn write(&self, id: JobId, name: &str, snapshot: &Snapshot) -> Result<CheckpointReply, String> {
        let store = self.store.as_ref().expect("snapshots are taken where there is a store");
        let writing = self.of_job(id, |_, job| Arc::clone(&job.checkpoints.writing))?;
        let _writing = writing.lock();
        let (share, rounds, whole) = self.of_job(id, |state, _| {
            let hubs = state.hubs();
            (hubs.share, hubs.rounds.clone(), hubs.whole.clone())
        })?;
        if !share.is_whole() && !may_write(&whole, &rounds) {
            return Err(format!(
                "another hub of the job has not written its part of the rounds {:?}, which wait here for it; see the log \
                 of hub 0",
                rounds.iter().map(|round| round.0).collect::<Vec<_>>()
            ));
        }
        let start = Instant::now();
        let bytes = store.save(name, share, snapshot)?;
        if !share.is_whole() {
            let kept = store.keep_parts(name, share, |round| is_needed(&whole, round))?;
            self.lock().ask(HasFiles { job: id, hub: share.hub, rounds: kept });
        }
        let milliseconds = start.elapsed().as_millis() as u64;
        Ok(CheckpointReply { round: snapshot.round(), bytes, milliseconds, error_before: None })
    }

    /// Keeps the result of a snapshot, for `GET /v1/hub` and for other hubs. A good one says why the one before failed.
    fn note(&self, id: JobId, round: Round, result: &mut Result<CheckpointReply, String>) {
        let _ = self.of_job(id, |_, job| match result {
            Ok(written) => {
                written.error_before = job.checkpoints.error.take();
                job.checkpoints.has_failed = false;
                let CheckpointReply { bytes, milliseconds, .. } = &*written;
                tracing::info!(job = job.name, round = round.0, bytes, milliseconds, "checkpoint written");
                job.checkpoints.last = Some(written.clone());
                job.checkpoints.part.send_replace((round, PartState::Written(*bytes)));
            }
            Err(error) => {
                // A disk that is full is full for the next one, too.
                if let Some(times) = job.checkpoints.failures.count() {
                    tracing::warn!(job = job.name, round = round.0, times, error, "checkpoint failed");
                }
                job.checkpoints.has_failed = true;
                job.checkpoints.error = Some(error.clone());
                job.checkpoints.part.send_replace((round, PartState::Failed(error.clone())));
            }
        });
    }
}
