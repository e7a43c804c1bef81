//! Cuts. A cut stops a running job between two rounds, for new workers and for checkpoints.
//!
//! The [coordinator](coordinator::Job::cut) decides on the steps of a cut. This module carries them out: it
//! asks cores and other hubs, and notifies all requests that wait for the cut.

use std::sync::Arc;

use coordinator::input::HeldByLead;
use coordinator::{CutId, Event, JobEnded, Step, Stepped};
use hub_threads::{Command, Reply};
use pbox_core::control::HoldReply;
use pbox_core::{JobId, later_lines};
use serde_json::Value;
use tokio::sync::oneshot;

use crate::registry::Registry;
use crate::registry::job::Job;
use crate::registry::rounds::waits::{CutResult, answers};

impl Registry {
    /// Begins the cut that hub 0 has ordered. Waits until the job is paused, or until the cut is over.
    pub(in crate::registry) async fn cut_for_lead(&self, id: JobId, cut: u64) -> Result<CutResult, JobEnded> {
        let came = {
            let mut inner = self.lock();
            let (cut, effects) = inner.ask(HeldByLead { job: id, cut })?;
            let came = inner.running(id)?.1.wait_for_cuts.wait_for(cut);
            self.carry_out(&mut inner, id, effects);
            came
        };
        came.await.map_err(|_| JobEnded)
    }

    /// Carries out a step of a cut. The result of the step is an event of the job, unless the job ends
    /// meanwhile.
    pub(in crate::registry) fn step(&self, job: &mut Job, cut: CutId, step: Step) {
        let (id, peers) = (job.id, Arc::clone(&job.peers));
        match step {
            Step::BeginAbove => {
                let Some(registry) = self.me.upgrade() else { return };
                let begin = async move { Ok(Stepped::Above(registry.takes_part_above(id).await)) };
                self.tell_step(id, cut, begin);
            }
            Step::BeginBelow(first) => {
                let asked = self.ask_job(job, |reply| Command::BeginBelow { job: id, first, reply });
                self.tell_step(id, cut, async { answers(asked).await.map(|_| Stepped::Below) });
            }
            Step::Hold => {
                let asked = self.ask_job(job, |reply| Command::Hold { job: id, reply });
                self.tell_step(id, cut, async {
                    let fronts = answers(asked).await?.into_iter().flatten();
                    Ok(Stepped::Held(fronts.map(|front| front.highest).max()))
                });
            }
            Step::HoldOthers(request) => self.tell_step(id, cut, async move {
                let fronts = peers.ask_all::<HoldReply>("hold", "hold the job's rounds", request).await;
                let fronts = fronts.into_iter().map(|reply| reply.map(|reply| reply.front)).collect();
                Ok(Stepped::OthersHeld(fronts))
            }),
            Step::Lines => {
                let asked = self.ask_job(job, |reply| Command::Lines { job: id, reply });
                self.tell_step(id, cut, async {
                    let lines = answers(asked).await?.into_iter().reduce(later_lines);
                    Ok(Stepped::Lines(lines.unwrap_or_default().into()))
                });
            }
            Step::EndBefore(before, lines) => {
                let lines = || Arc::clone(&lines);
                let end = |reply| Command::EndBefore { job: id, before, lines: lines(), reply };
                let asked = self.ask_job(job, end);
                self.tell_step(id, cut, async { answers(asked).await.map(|_| Stepped::Ends) });
            }
            Step::TakeSnapshot(occasion, before) => {
                self.command(job, || Command::TakeSnapshot { job: id, occasion, before });
            }
            Step::ReleaseOthers(request) => self.tell_step(id, cut, async move {
                let released =
                    peers.ask_all::<Value>("release", "let the job's rounds continue", request).await;
                Ok(Stepped::OthersReleased(released.into_iter().try_for_each(|released| released.map(drop))))
            }),
            Step::Release { from, admitted, ahead } => {
                let of_core = || (Arc::clone(&admitted), Arc::clone(&ahead));
                let asked = self.ask_job(job, |reply| {
                    let (admitted, ahead) = of_core();
                    Command::Release { job: id, from, admitted, ahead, reply }
                });
                self.tell_step(id, cut, async { answers(asked).await.map(|_| Stepped::Released) });
            }
        }
    }

    /// Waits for the result of a step, and passes it to the job as an event.
    fn tell_step(
        &self,
        id: JobId,
        cut: CutId,
        step: impl Future<Output = Result<Stepped, JobEnded>> + Send + 'static,
    ) {
        let Some(registry) = self.me.upgrade() else { return };
        self.runtime.spawn(async move {
            if let Ok(stepped) = step.await {
                registry.happens(&mut registry.lock(), id, Event::Cut(cut, stepped));
            }
        });
    }

    /// Sends a question to every core of a job, and returns the channels of the answers.
    pub(in crate::registry) fn ask_job<T>(
        &self,
        job: &Job,
        command: impl Fn(Reply<T>) -> Command,
    ) -> Vec<oneshot::Receiver<T>> {
        self.ask_cores(&job.cores.numbers, command)
    }

    /// Sends a question to every core of a job, and waits for all answers.
    pub(in crate::registry) async fn ask<T>(
        &self,
        id: JobId,
        command: impl Fn(Reply<T>) -> Command,
    ) -> Result<Vec<T>, JobEnded> {
        let asked = self.of_job(id, |_, job| self.ask_cores(&job.cores.numbers, command))?;
        answers(asked).await
    }

    pub(in crate::registry) fn ask_cores<T>(
        &self,
        cores: &[usize],
        command: impl Fn(Reply<T>) -> Command,
    ) -> Vec<oneshot::Receiver<T>> {
        let ask = |&core: &usize| {
            let (reply, answer) = Reply::new();
            self.cores[core].tell(command(reply));
            answer
        };
        cores.iter().map(ask).collect()
    }

    /// Calls `look` with a job that has not failed.
    pub(in crate::registry) fn of_job<T>(
        &self,
        id: JobId,
        look: impl FnOnce(&coordinator::Job, &mut Job) -> T,
    ) -> Result<T, JobEnded> {
        self.lock().running(id).map(|(state, job)| look(state, job))
    }
}
