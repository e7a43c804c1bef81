//! Checkpoints: when they are taken, and how they are written. `snapshot` puts the cores' parts together.
//!
//! ```text
//!   due after its interval ----+
//!   asked for ---- hold, cut --+--> cores copy chunk by chunk --> parts --> file --> memory goes back
//!   the job's or hub's end ----+
//! ```

use std::sync::Arc;
use std::time::{Duration, Instant};

use coordinator::input::{BeginFile, EndFile, HasFiles};
use coordinator::{CutAt, NoState, ROUND_AT_STOP, SAVED_WITHIN, Use, is_needed};
use pbox_core::control::{CheckpointReply, CheckpointRequest, RefusalCode};
use pbox_core::{JobId, Occasion, Round, Snapshot};

use super::collected::{Collected, Met, ROUND_LIMIT, ended};
use super::snapshot::met;
use crate::registry::hubs::Peers;
use crate::registry::{Because, Refusal, Registry, on_thread};

impl Registry {
    /// Whether this hub writes checkpoints of a job that has no hubs above.
    pub(crate) fn saves(&self, job: &coordinator::Job) -> bool {
        self.store.is_some() && !job.spec.made.trial
    }

    /// Writes a checkpoint of a job now: its state before the round of the furthest chunk.
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
        if self.of_job(id, |state, _| state.spec.made.trial).is_ok_and(|is_trial| is_trial) {
            return Err(RefusalCode::NoCheckpoints
                .because(format!("job {name:?} is a trial, which has no checkpoints")));
        }
        let written = self.checkpoint_job(id, ROUND_LIMIT).await;
        written.map_err(|why| RefusalCode::NotSaved.because(format!("job {name:?}: {why}")))
    }

    /// Ends a job between two rounds, before it fails because a hub stops. If there are hubs above, the hubs above save the
    /// job.
    pub(crate) async fn end_at_cut(self: &Arc<Self>, id: JobId, why: &str) -> Result<(), String> {
        let Some(above) = self.of_job(id, |_, job| job.above.clone())? else {
            return if self.of_job(id, |state, _| self.saves(state))? {
                self.checkpoint_at_stop(id).await.map(drop)
            } else {
                Ok(())
            };
        };
        // The disks of the hubs above may need longer than `limit`. The hubs above then still write the state at the cut.
        let (why, limit) = (why.to_owned(), ROUND_AT_STOP + self.up.limit);
        let ended = on_thread("phub-above", move || above.stop(&why, limit)).await?;
        ended.map_err(|error| error.to_string())
    }

    /// Writes the checkpoint of a job that is then ended. The job makes no round after the checkpoint, so that nothing is lost.
    pub(crate) async fn checkpoint_at_stop(self: &Arc<Self>, id: JobId) -> Result<CheckpointReply, String> {
        let written = self.checkpoint_at(id, CutAt::LastRound, ROUND_AT_STOP).await;
        written.map_err(|why| why.to_string())
    }

    /// Works like [`checkpoint`](Self::checkpoint). `limit` is the time limit for the round in flight.
    pub(crate) async fn checkpoint_job(
        self: &Arc<Self>,
        id: JobId,
        limit: Duration,
    ) -> Result<CheckpointReply, NoState> {
        self.checkpoint_at(id, CutAt::AllHubs, limit).await
    }

    pub(crate) async fn checkpoint_at(
        self: &Arc<Self>,
        id: JobId,
        at: CutAt,
        limit: Duration,
    ) -> Result<CheckpointReply, NoState> {
        let of_job = self.of_job(id, |state, job| (state.hubs.leads(), Arc::clone(&job.peers)));
        let (leads, peers) = of_job.map_err(ended)?;
        if !leads {
            let lead = Peers { limit: limit + SAVED_WITHIN, ..(*peers).clone() };
            let (secret, round_limit_ms) = (lead.secret.show(), limit.as_millis() as u64);
            let request = CheckpointRequest { secret, round_limit_ms, ends: at == CutAt::LastRound };
            let asked = lead.ask(0, "checkpoint", "write a checkpoint", &request).await;
            return asked.map_err(NoState::Other);
        }
        let (_, wanted) = self.want(&mut self.lock(), id, Use::File, at, limit).map_err(ended)?;
        match met(wanted).await? {
            Met::Written(reply) => Ok(reply),
            Met::State(_) => unreachable!("a file was wanted"),
        }
    }

    /// Writes a snapshot to the job's file, even if no request still waits for the file. The coordinator answers the requests
    /// for the file.
    pub(crate) async fn save(self: &Arc<Self>, mut collected: Collected) -> Result<CheckpointReply, String> {
        let of @ (id, ..) = (collected.job, collected.occasion, collected.before);
        let registry = Arc::clone(self);
        let write = move || {
            let (name, snapshot) = registry.snapshot(&mut collected)?;
            let result = registry.write(id, &name, &snapshot);
            // The memory is returned first: a client that sees the result may ask for the next checkpoint at once.
            collected.give_back(snapshot);
            result
        };
        let mut result = on_thread("phub-checkpoint", write).await.unwrap_or_else(|error| Err(error.into()));
        self.note(of, &mut result);
        result
    }

    /// Writes the file, on its own thread, because it waits for the disk.
    fn write(&self, id: JobId, name: &str, snapshot: &Snapshot) -> Result<CheckpointReply, String> {
        let store = self.store.as_ref().expect("only a hub with a checkpoint directory takes snapshots");
        let writing = self.of_job(id, |_, job| Arc::clone(&job.checkpoints.writing))?;
        let _writing = writing.lock();
        let whole = self.lock().ask(BeginFile { job: id, before: snapshot.round() })??;
        let share = self.of_job(id, |state, _| state.hubs.share)?;
        let start = Instant::now();
        let bytes = store.save(name, share, snapshot)?;
        if !share.is_whole() {
            let kept = store.keep_parts(name, share, |round| is_needed(&whole, round))?;
            self.lock().ask(HasFiles { job: id, hub: share.hub, rounds: kept });
        }
        let milliseconds = start.elapsed().as_millis() as u64;
        Ok(CheckpointReply { round: snapshot.round(), bytes, milliseconds, error_before: None })
    }

    /// Notes the result of a snapshot. If the checkpoint is good, also reports why the previous checkpoint failed.
    fn note(
        &self,
        (id, occasion, before): (JobId, Occasion, Round),
        result: &mut Result<CheckpointReply, String>,
    ) {
        let mut inner = self.lock();
        let Ok((error_before, effects)) =
            inner.ask(EndFile { job: id, occasion, before, written: result.clone() })
        else {
            return;
        };
        let Ok((_, job)) = inner.running(id) else { return };
        match result {
            Ok(written) => {
                written.error_before = error_before;
                let CheckpointReply { bytes, milliseconds, .. } = &*written;
                tracing::info!(job = job.name, round = before.0, bytes, milliseconds, "checkpoint written");
            }
            Err(error) => {
                // A full disk fails every checkpoint, so not every failure is logged.
                if let Some(times) = job.checkpoints.failures.count() {
                    tracing::warn!(job = job.name, round = before.0, times, error, "checkpoint failed");
                }
            }
        }
        self.carry_out(&mut inner, id, effects);
    }
}
