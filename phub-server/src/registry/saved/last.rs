//! The last state of a job that failed: it is saved before its cores forget it.
//!
//! ```text
//!   a worker is lost --> hold --> the job fails, its workers are told
//!                         |--> fronts: the state before the highest round --> rounds behind end with the pushes
//!                              that are in --> parts --> file --> the job's memory goes, its name is free again
//! ```
//!
//! Of a job over several hubs, hub 0 decides on the round ([`hubs::last`](crate::registry::hubs)). A hub below other hubs has no state:
//! the hubs above save it.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use coordinator::{Blame, is_needed};
use pbox_core::control::{
    CheckpointReply, FailedReply, FailedRequest, LastReply, LastRequest, RoundsInFlight, WholeRounds,
};
use pbox_core::{
    Front, JobId, Layout, NumbersByRound, Optimizer, Piece, Round, Share, Snapshot, SnapshotPart,
};
use tokio::sync::{mpsc, oneshot};

use super::collected::DISK_LIMIT;
use crate::cores::Command;
use crate::registry::hubs::{Ending, Order, Peers};
use crate::registry::job::Job;
use crate::registry::waits::answers;
use crate::registry::{Registry, on_thread};

/// A job that has failed, and whose cores hold it.
pub(crate) struct Last {
    id: JobId,
    name: String,
    reason: String,
    blame: Blame,
    cores: Vec<usize>,
    fronts: Vec<oneshot::Receiver<Option<Front>>>,
    layout: Arc<Layout>,
    share: Share,
    pieces: Vec<Piece>,
    optimizer: Optimizer,
    numbers: NumbersByRound,
    peers: Arc<Peers>,
    /// The round of its last checkpoint. Of another hub than hub 0, that of its own part.
    saved: Round,
    /// Which rounds all hubs have.
    whole: WholeRounds,
    writing: Arc<Mutex<()>>,
    /// At another hub than hub 0: what hub 0 asks.
    orders: mpsc::Receiver<Order>,
}

impl Registry {
    /// Holds a job that is about to fail, if its state is saved here. Returns how this hub takes part in that, too. Under the lock.
    pub(crate) fn hold_last(&self, job: &Job, reason: &str, blame: Blame) -> Option<(Last, Ending)> {
        let id = job.id;
        if !self.saves(job) || !job.runs() || job.above.is_some() {
            return None;
        }
        let (order, orders) = mpsc::channel(1);
        let ending = if job.hubs.leads() { Ending::Leads } else { Ending::Follows(order) };
        let checkpoint = job.checkpoints.last.as_ref().map(|last| last.round);
        let hubs = &job.hubs;
        let newest = match (hubs.share.is_whole(), hubs.leads()) {
            (true, _) => checkpoint,
            (false, true) => hubs.whole.rounds.last().copied(),
            (false, false) => hubs.rounds.last().copied(),
        };
        let last = Last {
            id,
            name: job.name.clone(),
            reason: reason.to_owned(),
            blame,
            cores: job.cores.numbers.clone(),
            fronts: self.ask_cores(&job.cores.numbers, |reply| Command::Hold { job: id, reply }),
            layout: Arc::clone(job.wire.layout()),
            share: hubs.share,
            pieces: hubs.pieces.clone(),
            optimizer: job.terms.optimizer,
            numbers: job.numbers.clone(),
            peers: Arc::clone(&job.peers),
            saved: newest.unwrap_or(job.first_round),
            whole: hubs.whole.clone(),
            writing: Arc::clone(&job.checkpoints.writing),
            orders,
        };
        Some((last, ending))
    }

    /// Saves the state, and then ends the job on its cores. Returns at once.
    pub(crate) fn save_last(&self, last: Last) {
        let Some(registry) = self.me.upgrade() else { return };
        self.runtime.spawn(async move {
            let (id, name, cores) = (last.id, last.name.clone(), last.cores.clone());
            let writing = Arc::clone(&last.writing);
            let saved = match last.share.hub {
                0 => registry.lead_last(last).await,
                _ => registry.follow_last(last).await,
            };
            // No file of this job comes later, beside those of a job that goes on from here.
            let _ = on_thread("phub-checkpoint", move || drop(writing.lock())).await;
            for core in cores {
                registry.cores[core].tell(Command::RemoveJob { job: id });
            }
            let mut inner = registry.lock();
            inner.names.release(&name);
            registry.freed.notify_waiters();
            let checkpoints = inner.job_mut(id).map(|job| {
                job.ending = None;
                &mut job.checkpoints
            });
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
                let freed = self.freed.notified(); // before the look, so that no end is missed
                // Not for jobs that are made: they may wait for other hubs, or for a name server.
                if !self.lock().names.saves_any() {
                    return;
                }
                freed.await;
            }
        };
        let in_time = async { tokio::time::timeout(DISK_LIMIT, saved).await };
        if self.runtime.block_on(in_time).is_err() {
            tracing::warn!("the last states of jobs were not saved within {DISK_LIMIT:?}");
        }
    }

    /// Hub 0 has all hubs save the state before the highest round of any chunk; a job on one hub has no others. Nothing
    /// where there is nothing new.
    async fn lead_last(self: &Arc<Self>, mut last: Last) -> Result<Option<CheckpointReply>, String> {
        let own = last.rounds().await?;
        let is_saved = last.is_saved(own);
        let secret = last.peers.secret.show();
        let replies = last.peers.ask_all::<FailedReply>("failed", "end the job", self.failed(&last)).await;
        // A hub that is gone is not waited for once more.
        let there: Vec<u32> = last
            .peers
            .others()
            .zip(&replies)
            .filter(|(_, reply)| reply.is_ok())
            .map(|(hub, _)| hub)
            .collect();
        let rounds = last.of_all(own, replies);
        let before = match &rounds {
            Ok(Some(RoundsInFlight { lowest, highest })) if *lowest > Round(0) && *highest > last.saved => {
                *highest
            }
            _ => Round(0),
        };
        let mut ended = format!("failed: {}", last.reason);
        if let Ok(Some(RoundsInFlight { lowest, .. })) = rounds
            && lowest < before
        {
            let round = before.0 - 1;
            ended = format!("{ended}; round {round} was ended with the gradients that had come");
        }
        let request = LastRequest { secret, before, ended, whole: last.whole.clone() };
        let others = Arc::new(Peers { limit: DISK_LIMIT, ..(*last.peers).clone() });
        let ask = |peers: Arc<Peers>, hub| {
            let request = request.clone();
            async move { peers.ask(hub, "last", "save its part of the last state", &request).await }
        };
        let of_others = others.at_once(there.into_iter(), ask).await;
        match rounds {
            // A hub that stops has had all hubs write a checkpoint before, and may be gone.
            Err(_) if is_saved => return Ok(None),
            rounds => rounds?,
        };
        let of_others: Vec<LastReply> = of_others.into_iter().collect::<Result<_, _>>()?;
        // After the others: a job that has a part here alone, and no whole round before, could not be started again.
        let Some(mut reply) = self.write_last(last, &request).await? else { return Ok(None) };
        reply.bytes += of_others.iter().map(|part| part.bytes).sum::<u64>();
        Ok(Some(reply))
    }

    /// Another hub than hub 0 tells hub 0 that the job has failed, and does what hub 0 then asks.
    async fn follow_last(self: &Arc<Self>, mut last: Last) -> Result<Option<CheckpointReply>, String> {
        let own = last.rounds().await?;
        let is_saved = last.is_saved(own);
        let failed = self.failed(&last);
        let told: Result<FailedReply, String> =
            last.peers.ask(0, "failed", "save the job's last state", &failed).await;
        let lead = format!("hub 0 of the job, at {},", last.peers.name(0));
        match told {
            Ok(FailedReply { saves: true, .. }) => {}
            _ if is_saved => return Ok(None),
            Ok(_) => return Err(format!("{lead} saves no last state (its log says why)")),
            Err(why) => return Err(why),
        }
        // Hub 0 asks all hubs for their rounds, and waits for each at most for the limit.
        let limit = 3 * last.peers.limit;
        loop {
            match tokio::time::timeout(limit, last.orders.recv()).await {
                Ok(Some(Order::Rounds(done))) => drop(done.send(own)), // hub 0 may have hung up
                Ok(Some(Order::Save(request, done))) => {
                    let saved = match check_before(request.before, own) {
                        Ok(()) => self.write_last(last, &request).await,
                        Err(why) => Err(why),
                    };
                    let bytes = saved.as_ref().map(|saved| saved.as_ref().map_or(0, |reply| reply.bytes));
                    let _ = done.send(bytes.map_err(Clone::clone));
                    return saved;
                }
                Ok(None) | Err(_) if is_saved => return Ok(None),
                Ok(None) | Err(_) => {
                    let seconds = limit.as_secs_f64();
                    return Err(format!(
                        "{lead} did not say within {seconds:.1} s which round all hubs save"
                    ));
                }
            }
        }
    }

    /// What the other hubs hear of the failure.
    fn failed(&self, last: &Last) -> FailedRequest {
        let reason = match &*self.stops.borrow() {
            Some(_) if !last.share.is_whole() => {
                let own = last.peers.own;
                format!("hub {own} of the job, at {}, stops: {}", last.peers.name(own), last.reason)
            }
            _ => last.reason.clone(),
        };
        FailedRequest { secret: last.peers.secret.show(), reason, hub_stops: last.blame == Blame::Hub }
    }

    /// Writes this hub's part, or the whole, where there is one.
    async fn write_last(
        self: &Arc<Self>,
        last: Last,
        LastRequest { before, ended, whole, .. }: &LastRequest,
    ) -> Result<Option<CheckpointReply>, String> {
        let (id, before, share) = (last.id, *before, last.share);
        if before == Round(0) || last.pieces.is_empty() {
            return Ok(None);
        }
        let last_state = |reply| Command::LastState { job: id, before, reply };
        let parts = answers(self.ask_cores(&last.cores, last_state)).await?;
        let parts = parts.into_iter().flatten().collect::<Result<Vec<SnapshotPart>, String>>()?;
        let numbers = last.numbers.changes_from(before);
        let snapshot = Snapshot::of_share(last.layout, last.pieces, last.optimizer, before, numbers, parts);
        let snapshot = snapshot.map_err(|error| error.to_string())?.with_end(ended.clone());
        let (registry, name, writing, whole) = (Arc::clone(self), last.name, last.writing, whole.clone());
        let write = move || {
            let _writing = writing.lock();
            let start = Instant::now();
            let store = registry.store.as_ref().expect("looked at before the hold");
            let bytes = store.save(&name, share, &snapshot)?;
            if !share.is_whole() {
                store.keep_parts(&name, share, |round| round == before || is_needed(&whole, round))?;
            }
            let milliseconds = start.elapsed().as_millis() as u64;
            Ok(CheckpointReply { round: before, bytes, milliseconds, error_before: None })
        };
        on_thread("phub-checkpoint", write).await?.map(Some)
    }
}

impl Last {
    /// The rounds of this hub's chunks, which stand still; nothing without chunks.
    async fn rounds(&mut self) -> Result<Option<RoundsInFlight>, String> {
        let fronts = answers(std::mem::take(&mut self.fronts)).await?;
        let rounds = fronts.into_iter().flatten();
        Ok(rounds.map(|Front { lowest, highest }| RoundsInFlight { lowest, highest }).reduce(both))
    }

    /// Whether the state of this hub's chunks, which are in these rounds, is in its last checkpoint.
    fn is_saved(&self, own: Option<RoundsInFlight>) -> bool {
        own.is_none_or(|own| own.highest <= self.saved)
    }

    /// The rounds of the chunks of all hubs.
    fn of_all(
        &self,
        own: Option<RoundsInFlight>,
        others: Vec<Result<FailedReply, String>>,
    ) -> Result<Option<RoundsInFlight>, String> {
        let mut all = own;
        for (hub, reply) in self.peers.others().zip(others) {
            let FailedReply { saves, rounds } = reply?;
            if !saves {
                return Err(format!(
                    "hub {hub} of the job, at {}, has forgotten its part of the state (its log says why)",
                    self.peers.name(hub)
                ));
            }
            all = all.into_iter().chain(rounds).reduce(both);
        }
        all.map_or(Ok(()), |all| check_before(all.highest, own))?;
        Ok(all)
    }
}

/// Whether all hubs can save the state before this round; 0 is no state. `own` are the rounds of this hub's chunks.
fn check_before(before: Round, own: Option<RoundsInFlight>) -> Result<(), String> {
    match own {
        Some(own) if before > Round(0) && (before < own.highest || !before.is_near(own.highest)) => {
            Err(format!(
                "the state before round {} cannot be saved: this hub's chunks are in rounds {} to {}, and those of all hubs are at most {} \
             rounds apart",
                before.0,
                own.lowest.0,
                own.highest.0,
                Round::APART
            ))
        }
        _ => Ok(()),
    }
}

fn both(a: RoundsInFlight, b: RoundsInFlight) -> RoundsInFlight {
    RoundsInFlight { lowest: a.lowest.min(b.lowest), highest: a.highest.max(b.highest) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_last_state_is_near_the_rounds_that_are_here() {
        let own = Some(RoundsInFlight { lowest: Round(6), highest: Round(7) });
        for (before, is_right) in [(0, true), (6, false), (7, true), (8, true), (71, true), (72, false)] {
            assert_eq!(check_before(Round(before), own).is_ok(), is_right, "{before}");
        }
        assert!(check_before(Round::LIMIT, own).unwrap_err().contains("at most 64"));
        check_before(Round(72), None).unwrap();
    }
}
