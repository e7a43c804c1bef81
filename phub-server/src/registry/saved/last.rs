//! The last state of a job that failed: it is saved before the cores forget the job.
//!
//! ```text
//!   a worker is lost --> hold --> the job fails, its workers are notified
//!                         |--> fronts: the state before the highest round --> earlier rounds end with the pushes
//!                              that have arrived --> parts --> file --> the job's memory goes, its name is free again
//! ```
//!
//! The [coordinator](coordinator::LastStep) decides on the steps. This module carries out the steps: it asks cores and
//! other hubs, and writes files.

use std::sync::Arc;
use std::time::Instant;

use coordinator::{Event, LastStep, LastStepped, SAVED_WITHIN, Saved, is_needed};
use hub_threads::Command;
use pbox_core::control::{CheckpointReply, LastRequest};
use pbox_core::{JobId, Selection, Snapshot, SnapshotPart};

use crate::registry::hubs::Peers;
use crate::registry::job::Job;
use crate::registry::rounds::waits::answers;
use crate::registry::{Registry, on_thread};

impl Registry {
    /// Carries out a step of saving a last state. The result of the step is an event of the job.
    pub(crate) fn last_step(&self, state: &coordinator::Job, job: &Job, step: LastStep) {
        let (id, peers) = (job.id, Arc::clone(&job.peers));
        match step {
            LastStep::Hold => {
                let asked = self.ask_job(job, |reply| Command::Hold { job: id, reply });
                self.tell_last(id, async {
                    let fronts = answers(asked).await.map(|fronts| fronts.into_iter().flatten().collect());
                    LastStepped::Held(fronts.map_err(String::from))
                });
            }
            LastStep::TellOthers(request) => self.tell_last(id, async move {
                LastStepped::OthersTold(peers.ask_all("failed", "end the job", request).await)
            }),
            LastStep::TellLead(request) => self.tell_last(id, async move {
                LastStepped::LeadTold(peers.ask(0, "failed", "save the job's last state", &request).await)
            }),
            LastStep::HaveWritten(hubs, request) => {
                let others = Arc::new(Peers { limit: SAVED_WITHIN, ..(*peers).clone() });
                let ask = move |peers: Arc<Peers>, hub| {
                    let request = request.clone();
                    async move { peers.ask(hub, "last", "save its part of the job's last state", &request).await }
                };
                self.tell_last(id, async move {
                    LastStepped::OthersWritten(others.at_once(hubs.into_iter(), ask).await)
                });
            }
            LastStep::Write(request) => {
                let Some(registry) = self.me.upgrade() else { return };
                let written = registry.write_last(state, job, request);
                self.tell_last(id, async { LastStepped::Written(written.await) });
            }
        }
    }

    fn tell_last(&self, id: JobId, step: impl Future<Output = LastStepped> + Send + 'static) {
        let Some(registry) = self.me.upgrade() else { return };
        self.runtime.spawn(async move {
            let stepped = step.await;
            registry.happens(&mut registry.lock(), id, Event::Last(stepped));
        });
    }

    /// Writes this hub's part of the last state, or the whole file in a job over one hub.
    fn write_last(
        self: Arc<Self>,
        state: &coordinator::Job,
        job: &Job,
        LastRequest { before, ended, whole, .. }: LastRequest,
    ) -> impl Future<Output = Result<CheckpointReply, String>> + Send + use<> {
        let id = job.id;
        let asked = self.ask_job(job, |reply| Command::LastState { job: id, before, reply });
        let (layout, share, pieces) =
            (Arc::clone(job.wire.layout()), state.hubs.share, state.hubs.pieces.clone());
        let (tensors, numbers) = (state.spec.terms.tensors(), state.numbers.changes_from(before));
        let (name, writing) = (job.name.clone(), Arc::clone(&job.checkpoints.writing));
        async move {
            let parts = answers(asked).await?.into_iter().flatten();
            let parts = parts.collect::<Result<Vec<SnapshotPart>, String>>()?;
            let of = (tensors, Selection::All);
            let snapshot = Snapshot::of_share(layout, pieces, of, before, numbers, parts);
            let snapshot = snapshot.map_err(|error| error.to_string())?.with_end(ended);
            let write = move || {
                let _writing = writing.lock();
                let start = Instant::now();
                let store =
                    self.store.as_ref().expect("only a hub with a checkpoint directory saves a last state");
                let bytes = store.save(&name, share, &snapshot)?;
                if !share.is_whole() {
                    store.keep_parts(&name, share, |round| round == before || is_needed(&whole, round))?;
                }
                let milliseconds = start.elapsed().as_millis() as u64;
                Ok(CheckpointReply { round: before, bytes, milliseconds, error_before: None })
            };
            on_thread("phub-checkpoint", write).await?
        }
    }

    /// Ends a job on its cores, whether its last state was saved or not. Returns at once.
    pub(crate) fn last_is_over(&self, job: &Job, saved: Saved) {
        let Some(registry) = self.me.upgrade() else { return };
        let (id, name, cores) = (job.id, job.name.clone(), Arc::clone(&job.cores));
        let (writing, file) = (Arc::clone(&job.checkpoints.writing), self.file_of(job));
        self.runtime.spawn(async move {
            // Waits until this job has stopped writing files. Only then may a new job of the same name continue from this
            // job's state.
            let _ = on_thread("phub-checkpoint", move || drop(writing.lock())).await;
            for &core in &cores.numbers {
                registry.cores[core].tell(Command::RemoveJob { job: id });
            }
            if let Err(why) = &saved {
                registry.is_unsaved(&name, file, why);
            }
            let mut inner = registry.lock();
            inner.release(&name);
            registry.tell_unsaved(&inner);
            match saved {
                Ok(Some(reply)) => {
                    tracing::info!(job = name, round = reply.round.0, "the failed job's last state is saved");
                }
                Ok(None) => {}
                Err(why) => tracing::warn!(job = name, why, "the failed job's last state is not saved"),
            }
        });
    }
}
