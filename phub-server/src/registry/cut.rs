//! Cuts: how a running job is stopped between two rounds, for workers that come in and for checkpoints.
//!
//! ```text
//!   hold ----> every core: finish no round, say which are in flight
//!        <---- fronts: chunk a is in round 7, chunk b in round 8: the cut is before round 8
//!   release -> every core: whoever is admitted takes part from round 8 on, and gets the weights of
//!              round 7, of those chunks that have them now, of the others when they do; likewise a
//!              snapshot
//! ```
//!
//! A hold lasts as long as two messages to each core; nobody waits for a worker in it.

use std::sync::Arc;

use pbox_core::{JobId, Round};
use tokio::sync::oneshot;

use super::Registry;
use super::job::Job;
use crate::cores::Command;

/// The job ended meanwhile.
#[derive(Debug)]
pub(super) struct JobEnded;

impl Registry {
    /// Lets workers take part whose links are at all cores: all of a job that begins, or one that
    /// comes back. On the control thread's runtime; returns at once.
    pub(super) fn admit(self: &Arc<Self>, id: JobId, ranks: Arc<[u32]>) {
        let registry = Arc::clone(self);
        tokio::spawn(async move {
            // A job that ended has told its workers why.
            let _ = registry.admit_at_cut(id, ranks).await;
        });
    }

    async fn admit_at_cut(&self, id: JobId, ranks: Arc<[u32]>) -> Result<(), JobEnded> {
        let (cutting, first_round) = self.of_job(id, |job| (Arc::clone(&job.cutting), job.first_round))?;
        let _cutting = cutting.lock().await;
        let from = self.hold(id).await?.unwrap_or(first_round).max(first_round);
        self.release(id, from, Arc::clone(&ranks)).await?;
        self.of_job(id, |job| {
            job.take_part(&ranks, from);
            tracing::info!(job = job.name, ?ranks, from = from.0, "workers take part");
        })
    }

    /// Holds a job; the cut is before the round that is returned, which no chunk is past.
    pub(super) async fn hold(&self, id: JobId) -> Result<Option<Round>, JobEnded> {
        let fronts = self.ask(id, |job, done| Command::Hold { job, done }).await?;
        Ok(fronts.into_iter().flatten().map(|front| front.highest).max())
    }

    pub(super) async fn release(&self, id: JobId, from: Round, admitted: Arc<[u32]>) -> Result<(), JobEnded> {
        let command = |job, done| Command::Release { job, from, admitted: Arc::clone(&admitted), done };
        self.ask(id, command).await.map(|_| ())
    }

    /// Asks every core of a job, and waits for all answers.
    async fn ask<T>(
        &self,
        id: JobId,
        command: impl Fn(JobId, oneshot::Sender<T>) -> Command<fabric::any::Endpoint>,
    ) -> Result<Vec<T>, JobEnded> {
        let asked: Vec<oneshot::Receiver<T>> = self.of_job(id, |job| {
            let ask = |&core: &usize| {
                let (done, answer) = oneshot::channel();
                self.cores[core].send(command(id, done));
                answer
            };
            job.cores.numbers.iter().map(ask).collect()
        })?;
        let mut answers = Vec::with_capacity(asked.len());
        for answer in asked {
            answers.push(answer.await.map_err(|_| JobEnded)?);
        }
        Ok(answers)
    }

    pub(super) fn of_job<T>(&self, id: JobId, look: impl FnOnce(&mut Job) -> T) -> Result<T, JobEnded> {
        self.lock().jobs.get_mut(&id).filter(|job| !job.failed()).map(look).ok_or(JobEnded)
    }
}
