//! The last state of a job that failed: it is saved before its cores forget it.
//!
//! ```text
//!   a worker is lost --> hold --> the job fails, its workers are told
//!                         |--> fronts: the state before the highest round --> rounds behind end with the pushes
//!                              that are in --> parts --> file --> the job's memory goes, its name is free again
//! ```
//!
//! Of a job over one hub, in which workers step together and nothing is compressed. Any other job goes on from its last
//! checkpoint.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use pbox_core::control::{CheckpointReply, JobState};
use pbox_core::{
    Consistency, Front, JobId, Layout, LearningRates, Optimizer, Piece, Round, Share, Snapshot, SnapshotPart,
};
use tokio::sync::oneshot;

use super::checkpoint::WRITE_LIMIT;
use super::cut::answers;
use super::job::Job;
use super::{Registry, on_thread};

/// A job that has failed, and whose cores hold it.
pub(super) struct Last {
    id: JobId,
    name: String,
    reason: String,
    cores: Vec<usize>,
    fronts: Vec<oneshot::Receiver<Option<Front>>>,
    layout: Arc<Layout>,
    pieces: Vec<Piece>,
    optimizer: Optimizer,
    rates: LearningRates,
    /// The round of its last checkpoint.
    saved: Round,
    writing: Arc<Mutex<()>>,
}

impl Registry {
    /// Holds a job that is about to fail, if its state can be saved. Under the lock.
    pub(super) fn hold_last(&self, job: &Job, reason: &str) -> Option<Last> {
        let level = &job.terms.level;
        let can_end = level.consistency == Consistency::Bsp && level.compression.is_none();
        let is_alone = job.hubs.share.is_whole() && job.above.is_none();
        let id = job.id;
        if self.store.is_none() || job.state() != JobState::Running || !can_end || !is_alone {
            return None;
        }
        Some(Last {
            id,
            name: job.name.clone(),
            reason: reason.to_owned(),
            cores: job.cores.numbers.clone(),
            fronts: self.ask_cores(job, move |thread| thread.core.hold(id)),
            layout: Arc::clone(job.wire.layout()),
            pieces: job.hubs.pieces.clone(),
            optimizer: job.terms.optimizer,
            rates: job.learning_rates.clone(),
            saved: job.checkpoints.last.as_ref().map_or(job.first_round, |last| last.round),
            writing: Arc::clone(&job.checkpoints.writing),
        })
    }

    /// Saves the state, and then ends the job on its cores. Returns at once.
    pub(super) fn save_last(&self, last: Last) {
        let Some(registry) = self.me.upgrade() else { return };
        self.runtime.spawn(async move {
            let (id, name, cores) = (last.id, last.name.clone(), last.cores.clone());
            let saved = registry.write_last(last).await;
            for core in cores {
                registry.cores[core].tell(move |thread| thread.remove_job(id));
            }
            let mut inner = registry.lock();
            inner.making.remove(&name);
            registry.freed.notify_waiters();
            let checkpoints = inner.jobs.get_mut(&id).map(|job| &mut job.checkpoints);
            match (saved, checkpoints) {
                (Ok(Some(reply)), checkpoints) => {
                    tracing::info!(job = name, round = reply.round.0, "the failed job's last state is saved");
                    checkpoints.into_iter().for_each(|kept| kept.last = Some(reply.clone()));
                    registry.unsaved.send_modify(|names| names.retain(|unsaved| *unsaved != name));
                }
                (Ok(None), _) => {}
                (Err(why), checkpoints) => {
                    tracing::warn!(job = name, why, "the failed job's last state is not saved");
                    checkpoints.into_iter().for_each(|kept| kept.error = Some(why.clone()));
                }
            }
        });
    }

    /// Waits until the last states of failed jobs are saved. Not on the control thread.
    pub fn wait_until_saved(&self) {
        let saved = async {
            loop {
                let freed = self.freed.notified();
                tokio::pin!(freed);
                freed.as_mut().enable(); // before the look, so that no end is missed
                if self.lock().making.is_empty() {
                    return;
                }
                freed.await;
            }
        };
        let in_time = async { tokio::time::timeout(WRITE_LIMIT, saved).await };
        if self.runtime.block_on(in_time).is_err() {
            tracing::warn!("the last states of jobs were not saved within {WRITE_LIMIT:?}");
        }
    }

    /// Nothing where there is nothing new.
    async fn write_last(self: &Arc<Self>, last: Last) -> Result<Option<CheckpointReply>, String> {
        let fronts: Vec<Front> = answers(last.fronts).await?.into_iter().flatten().collect();
        let lowest = fronts.iter().map(|front| front.lowest).min().unwrap_or_default();
        let before = fronts.iter().map(|front| front.highest).max().unwrap_or_default();
        if lowest == Round(0) || before <= last.saved {
            return Ok(None);
        }
        let id = last.id;
        let ask = |&core: &usize| {
            let (done, answer) = oneshot::channel();
            self.cores[core].tell(move |thread| drop(done.send(thread.core.last_state(id, before))));
            answer
        };
        let parts = answers(last.cores.iter().map(ask).collect()).await?;
        let parts = parts.into_iter().flatten().collect::<Result<Vec<SnapshotPart>, String>>()?;
        let rates = last.rates.changes_from(before);
        let snapshot = Snapshot::of_share(last.layout, last.pieces, last.optimizer, before, rates, parts);
        let mut ended = format!("failed: {}", last.reason);
        if lowest < before {
            let round = before.0 - 1;
            ended = format!("{ended}; round {round} was ended with the gradients that had come");
        }
        let snapshot = snapshot.map_err(|error| error.to_string())?.with_end(ended);
        let (registry, name, writing) = (Arc::clone(self), last.name, last.writing);
        let write = move || {
            let _writing = writing.lock();
            let start = Instant::now();
            let store = registry.store.as_ref().expect("looked at before the hold");
            let bytes = store.save(&name, Share::WHOLE, &snapshot)?;
            let milliseconds = start.elapsed().as_millis() as u64;
            Ok(CheckpointReply { round: before, bytes, milliseconds, error_before: None })
        };
        on_thread("phub-checkpoint", write).await?.map(Some)
    }
}
