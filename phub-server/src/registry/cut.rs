//! Cuts: a running job is stopped between two rounds, for new workers and for checkpoints.
//!
//! ```text
//!   hold ----> every core: finish no round, say which are in flight
//!        <---- fronts: chunk a is in round 7, chunk b in round 8: the cut is before round 8
//!   release -> every core: admitted workers take part from round 8 on, and get the weights of round 7:
//!              the chunks that have them are sent now, the others when they do; likewise a snapshot
//! ```
//!
//! A job over several hubs is cut by hub 0, which asks the others to hold and to release in the same way
//! ([`peers`](super::hubs) answers). A hold lasts as long as two messages to each core, and two to each hub; nobody waits
//! for a worker in it.

use std::sync::Arc;

use coordinator::{Blame, Cause};
use pbox_core::control::{HoldReply, HoldRequest, ReleaseRequest};
use pbox_core::{JobId, Round};
use tokio::sync::{OwnedMutexGuard, oneshot};

use super::Registry;
use super::hubs::Peers;
use super::job::Job;
use crate::cores::{Command, Reply};

/// The job ended meanwhile. Its workers have been told why.
#[derive(Debug)]
pub(crate) struct JobEnded;

impl From<JobEnded> for String {
    fn from(JobEnded: JobEnded) -> Self {
        "the job ended meanwhile".to_owned()
    }
}

/// Why a job is cut.
#[derive(Clone, Debug)]
pub(super) enum Purpose {
    /// For nothing: another hub does not hold.
    Nothing,
    /// These ranks take part from the cut on.
    Admit(Arc<[u32]>),
    /// The other hubs write their part of a checkpoint of the state at the cut.
    Snapshot,
    /// The same, and the job ends there: no chunk goes further at any hub.
    LastSnapshot,
}

/// Where a job is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CutAt {
    /// At all its hubs before the same round: hub 0 leads.
    AllHubs,
    /// At this hub, before its own round. The others do not hear of it.
    ThisHub,
    /// At all its hubs, as the job is about to end: its workers make no round beyond, which would be lost with the job.
    LastRound,
}

impl Purpose {
    fn admitted(&self) -> Arc<[u32]> {
        match self {
            Purpose::Admit(ranks) => Arc::clone(ranks),
            Purpose::Nothing | Purpose::Snapshot | Purpose::LastSnapshot => Arc::new([]),
        }
    }
}

/// A job that is held at all its hubs.
#[derive(Debug)]
pub(super) struct Held {
    /// The round of the chunk that is furthest ahead.
    pub front: Option<Round>,
    /// The other hubs, and the number of the cut there.
    others: Option<(Arc<Peers>, u64)>,
    _cutting: OwnedMutexGuard<()>,
}

impl Registry {
    /// Lets workers take part: all workers of a job that begins, or a newcomer. All cores of all hubs have their links.
    /// Returns at once; the work is done on the control thread's runtime.
    pub(super) fn admit(self: &Arc<Self>, id: JobId, ranks: Arc<[u32]>) {
        let registry = Arc::clone(self);
        tokio::spawn(async move {
            if let Err(why) = registry.admit_at_cut(id, &ranks).await {
                let mut inner = registry.lock();
                for &rank in ranks.iter() {
                    let reason = format!("worker {rank} could not be let in: {why}");
                    registry.lose(&mut inner, id, rank, Cause::Other, &reason);
                }
            }
        });
    }

    async fn admit_at_cut(self: &Arc<Self>, id: JobId, ranks: &Arc<[u32]>) -> Result<(), String> {
        let begins = |job: &mut Job| (job.first_round, job.gathers());
        let (mut first_round, begins) = self.of_job(id, begins)?;
        if begins && let Some(first) = self.takes_part_above(id).await? {
            self.ask(id, |reply| Command::BeginBelow { job: id, first, reply }).await?;
            self.of_job(id, |job| job.first_round = first)?;
            first_round = first;
        }
        // All hubs begin with the same round, and no worker pushes before it takes part at all hubs.
        let held = if begins { self.hold_here(id).await? } else { self.hold_everywhere(id).await? };
        let from = held.front.unwrap_or(first_round).max(first_round);
        self.release_everywhere(id, held, from, &Purpose::Admit(Arc::clone(ranks))).await?;
        self.take_part(id, ranks, from)?;
        Ok(())
    }

    /// Workers take part now.
    pub(super) fn take_part(&self, id: JobId, ranks: &[u32], from: Round) -> Result<(), JobEnded> {
        self.of_job(id, |job| {
            job.take_part(ranks, from);
            let ranks: Vec<String> = ranks.iter().map(u32::to_string).collect();
            tracing::info!(job = job.name, ranks = ranks.join(","), from = from.0, "workers take part");
        })
    }

    /// Holds a job at all its hubs. Where this hub leads several, and another one does not hold, nothing is held.
    pub(super) async fn hold_everywhere(self: &Arc<Self>, id: JobId) -> Result<Held, String> {
        let mut held = self.hold_here(id).await?;
        let others = self.of_job(id, |job| (Arc::clone(&job.peers), job.hubs.next_cut()))?;
        let (peers, cut) = held.others.insert(others);
        let request = HoldRequest { secret: peers.secret.show(), cut: *cut };
        let fronts = peers.ask_all::<HoldReply>("hold", "hold the job's rounds", request).await;
        let fronts = fronts.into_iter().collect::<Result<Vec<HoldReply>, String>>();
        match fronts.and_then(|fronts| highest(fronts.iter().map(|reply| reply.front).chain([held.front]))) {
            Ok(front) => {
                held.front = front;
                Ok(held)
            }
            Err(why) => {
                // The hub that did not answer may hold the job all the same, so it is released with the others.
                let from = held.front.unwrap_or_default();
                self.release_others(id, &held, from, &Purpose::Nothing).await;
                self.release(id, from, Arc::new([])).await?;
                Err(why)
            }
        }
    }

    /// Holds a job at this hub alone.
    pub(super) async fn hold_here(&self, id: JobId) -> Result<Held, JobEnded> {
        let cutting = self.of_job(id, |job| Arc::clone(&job.cutting))?;
        let cutting = cutting.lock_owned().await;
        let front = self.hold(id).await?;
        Ok(Held { front, others: None, _cutting: cutting })
    }

    /// Ends a cut before round `from` at all hubs. If a hub does not answer, the job fails, because its workers would wait
    /// for each other.
    pub(super) async fn release_everywhere(
        &self,
        id: JobId,
        held: Held,
        from: Round,
        purpose: &Purpose,
    ) -> Result<(), String> {
        let released = self.release_others(id, &held, from, purpose).await;
        self.release(id, from, purpose.admitted()).await?;
        let refused = released.into_iter().find_map(Result::err);
        let Some(why) = refused else { return Ok(()) };
        self.fail_by(&mut self.lock(), id, &format!("a cut did not end: {why}"), Blame::Hub);
        Err(why)
    }

    async fn release_others(
        &self,
        id: JobId,
        held: &Held,
        from: Round,
        purpose: &Purpose,
    ) -> Vec<Result<serde_json::Value, String>> {
        let Some((peers, cut)) = &held.others else { return Vec::new() };
        let ranks = purpose.admitted();
        let workers = |job: &mut Job| ranks.iter().filter_map(|&rank| job.worker(rank)).collect();
        let admitted = self.of_job(id, workers).unwrap_or_default();
        let snapshot = matches!(purpose, Purpose::Snapshot | Purpose::LastSnapshot);
        let ends = matches!(purpose, Purpose::LastSnapshot);
        let request =
            ReleaseRequest { secret: peers.secret.show(), cut: *cut, from, admitted, snapshot, ends };
        peers.ask_all("release", "let the job's rounds go on", request).await
    }

    /// Holds a job on this hub's cores. Returns the highest round of its chunks here.
    pub(super) async fn hold(&self, id: JobId) -> Result<Option<Round>, JobEnded> {
        let fronts = self.ask(id, |reply| Command::Hold { job: id, reply }).await?;
        Ok(fronts.into_iter().flatten().map(|front| front.highest).max())
    }

    /// Releases a job on this hub's cores.
    pub(super) async fn release(&self, id: JobId, from: Round, admitted: Arc<[u32]>) -> Result<(), JobEnded> {
        let ahead: Arc<[u32]> = self.of_job(id, |job| job.ahead().into())?;
        let release = |reply| {
            let (admitted, ahead) = (Arc::clone(&admitted), Arc::clone(&ahead));
            Command::Release { job: id, from, admitted, ahead, reply }
        };
        self.ask(id, release).await.map(|_| ())
    }

    /// Asks every core of a job, and waits for all answers.
    pub(super) async fn ask<T>(
        &self,
        id: JobId,
        command: impl Fn(Reply<T>) -> Command,
    ) -> Result<Vec<T>, JobEnded> {
        let asked = self.of_job(id, |job| self.ask_cores(&job.cores.numbers, command))?;
        answers(asked).await
    }

    /// Asks cores, by their numbers.
    pub(super) fn ask_cores<T>(
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

    pub(super) fn of_job<T>(&self, id: JobId, look: impl FnOnce(&mut Job) -> T) -> Result<T, JobEnded> {
        self.lock().jobs.get_mut(&id).filter(|job| !job.failed()).map(look).ok_or(JobEnded)
    }
}

/// The highest round of the chunks of all hubs.
fn highest(fronts: impl Iterator<Item = Option<Round>> + Clone) -> Result<Option<Round>, String> {
    let (lowest, highest) = (fronts.clone().flatten().min(), fronts.flatten().max());
    match lowest.zip(highest) {
        Some((lowest, highest)) if !highest.is_near(lowest) => Err(format!(
            "one hub's chunks are in round {}, another's in round {}: those of all hubs are at most {} rounds apart",
            lowest.0,
            highest.0,
            Round::APART
        )),
        _ => Ok(highest),
    }
}

/// The answers of all cores that were asked. A core that stops gives none.
pub(super) async fn answers<T>(asked: Vec<oneshot::Receiver<T>>) -> Result<Vec<T>, JobEnded> {
    let mut answers = Vec::with_capacity(asked.len());
    for answer in asked {
        answers.push(answer.await.map_err(|_| JobEnded)?);
    }
    Ok(answers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hubs_whose_chunks_are_far_apart_are_not_believed() {
        let highest = |fronts: &[Option<u32>]| highest(fronts.iter().map(|front| front.map(Round)));
        assert_eq!(highest(&[Some(7), None, Some(8)]), Ok(Some(Round(8))));
        assert_eq!(highest(&[None]), Ok(None));
        assert!(highest(&[Some(7), Some(72)]).unwrap_err().contains("round 7, another's in round 72"));
    }
}
