//! The requests between this hub and the other hubs of a job. Each request proves that a hub sends it, and
//! that the hub has the job's secret.
//!
//! | request | from | to |
//! | --- | --- | --- |
//! | hold, release: a cut, which is a pause between two rounds | hub 0 | other hubs |
//! | written: is your part of a checkpoint on the disk? | hub 0 | other hubs |
//! | arrived: a newcomer's links are here | other hubs | hub 0 |
//! | begins: does the job begin with this round? | other hubs | hub 0 |
//! | lost: the job continues without a worker | any hub, then hub 0 | hub 0, then all other hubs |
//! | checkpoint: cut the job, and make all hubs write | other hubs | hub 0 |
//! | failed: the job has failed | any hub, then hub 0 | hub 0, then all other hubs (`last`) |
//! | last: save the job's last state | hub 0 | other hubs (`last`) |
//!
//! Runs on the control thread. A request is carried out even if the client hangs up meanwhile. Otherwise a
//! job could stay paused forever.

use std::sync::Arc;
use std::time::Duration;

use coordinator::input::{Arrived, AskForWritten, ReleasedByLead};
use coordinator::{Cause, CutAt, JobEnded, NotCut, NotReleased};
use pbox_core::control::{
    ArrivedRequest, BeginsRequest, CheckpointReply, CheckpointRequest, HoldReply, HoldRequest, LostRequest,
    PartsReply, RefusalCode, ReleaseRequest, WrittenReply, WrittenRequest, check_job_name,
};
use pbox_core::job::MAX_HUBS;
use pbox_core::{JobId, Round, Share};
use serde_json::Value;

use super::last::unknown;
use crate::checkpoint::CheckpointError;
use crate::registry::job::Job;
use crate::registry::saved::collected::ROUND_LIMIT;
use crate::registry::{Because, Refusal, Registry, on_thread};

fn not_cut(why: NotCut) -> Refusal {
    let code = if matches!(why, NotCut::Stale(_)) { RefusalCode::CutStale } else { RefusalCode::NoState };
    code.because(why.to_string())
}

fn not_released(why: NotReleased) -> Refusal {
    match why {
        NotReleased::Stale(stale) => RefusalCode::CutStale.because(stale.to_string()),
        NotReleased::Wrong(why) => Refusal::bad(why),
    }
}

/// Returns the error that hub 0 has kept a job paused for too long.
pub(crate) fn held_too_long(job: &Job, limit: Duration) -> String {
    format!(
        "hub 0 of the job, at {}, paused the job and did not let it continue within {:.1} s: hub 0 hangs, was stopped, or was \
         cut off",
        job.peers.name(0),
        limit.as_secs_f64()
    )
}

impl Registry {
    /// Returns the job of this name, if the request shows the job's secret. A stranger does not learn which
    /// jobs this hub has.
    pub fn of_peer(&self, name: &str, secret: &str) -> Result<JobId, Refusal> {
        let inner = self.lock();
        let job = inner.hub().named(name).filter(|job| job.hubs.secret.is(secret));
        job.map(|job| job.spec.id).ok_or_else(|| unknown(name))
    }

    /// Returns which checkpoints this hub has of its share of a job, and whether its part of the round to
    /// check is undamaged.
    pub async fn parts(
        self: &Arc<Self>,
        name: String,
        share: Share,
        check: Option<Round>,
    ) -> Result<PartsReply, Refusal> {
        check_job_name(&name).map_err(Refusal::bad)?;
        if share.hub >= share.hubs || share.hubs > MAX_HUBS {
            return Err(Refusal::bad(format!("{share}: expected 1 to {MAX_HUBS} hubs, numbered from 0")));
        }
        let registry = Arc::clone(self);
        // A thread for joins must not do this work: at each hub, all such threads may be busy with joins that wait
        // for this answer.
        let look = move || {
            let Some(store) = &registry.store else { return Ok((None, None)) };
            let rounds = store.rounds(&name, share)?;
            let check = check.filter(|round| rounds.contains(round));
            let damage = check.map(|round| store.damage(&name, share, round)).transpose()?;
            Ok((Some(rounds), damage.flatten()))
        };
        let looked = on_thread("phub-parts", look).await?;
        let (rounds, damage) = looked
            .map_err(|error: CheckpointError| RefusalCode::CheckpointUnusable.because(error.to_string()))?;
        let every = self.checkpoint_every.map(std::num::NonZeroU32::get);
        Ok(PartsReply { keeps: rounds.is_some(), every, rounds: rounds.unwrap_or_default(), damage })
    }

    /// Begins a cut that hub 0 has ordered.
    pub async fn held_by_lead(
        self: Arc<Self>,
        id: JobId,
        request: HoldRequest,
    ) -> Result<HoldReply, Refusal> {
        let front = self.cut_for_lead(id, request.cut).await?.map_err(not_cut)?;
        Ok(HoldReply { front })
    }

    /// Ends a cut that hub 0 has ordered.
    pub async fn released_by_lead(
        self: Arc<Self>,
        id: JobId,
        request: ReleaseRequest,
    ) -> Result<(), Refusal> {
        let over = {
            let mut inner = self.lock();
            let released = inner.ask(ReleasedByLead { job: id, request })?;
            let (cut, effects) = released.map_err(not_released)?;
            let over = inner.running(id)?.1.wait_for_cuts.wait_for(cut);
            self.carry_out(&mut inner, id, effects);
            over
        };
        over.await.map_err(|_| JobEnded)?.map_err(not_cut)?;
        Ok(())
    }

    /// Reports this hub's part of a checkpoint to hub 0, once the part is written.
    pub async fn written(&self, id: JobId, request: WrittenRequest) -> Result<WrittenReply, Refusal> {
        let WrittenRequest { before, whole, wait_ms, .. } = request;
        let wait = Duration::from_millis(wait_ms).min(self.heartbeat_hold());
        let part = {
            let mut inner = self.lock();
            let (asked, effects) = inner.ask(AskForWritten { job: id, before, whole, wait })?;
            let part = inner.running(id)?.1.checkpoints.asked.wait_for(asked);
            self.carry_out(&mut inner, id, effects);
            part
        };
        Ok(part.await.map_err(|_| JobEnded)?)
    }

    /// Notes that another hub has all links of a newcomer. Hub 0 lets the newcomer take part once all hubs
    /// have its links.
    pub fn arrived(self: &Arc<Self>, id: JobId, request: ArrivedRequest) -> Result<(), Refusal> {
        let ArrivedRequest { hub, worker, .. } = request;
        let mut inner = self.lock();
        let effects = inner.ask(Arrived { job: id, hub, worker })?;
        self.carry_out(&mut inner, id, effects);
        Ok(())
    }

    /// Confirms, at hub 0, the round with which a job begins. Returns an error if the job begins with another round, or
    /// has already begun.
    pub fn begins(&self, id: JobId, request: BeginsRequest) -> Result<(), Refusal> {
        let first_round = self.of_job(id, |state, _| {
            let begins = state.hubs.leads() && state.life.gathers();
            begins.then_some(state.hubs.first_round)
        })?;
        match first_round {
            Some(round) if round == request.first_round => Ok(()),
            Some(round) => {
                Err(RefusalCode::NoState.because(format!("the job begins with round {}", round.0)))
            }
            None => Err(RefusalCode::NoState
                .because("the job has already begun, or this hub is not hub 0 of the job")),
        }
    }

    /// Notifies hub 0 that this hub has all links of a newcomer.
    pub(crate) fn tell_arrived(&self, job: &Job, request: ArrivedRequest) {
        let Some(registry) = self.me.upgrade() else { return };
        let (id, peers) = (job.id, Arc::clone(&job.peers));
        self.runtime.spawn(async move {
            let told = peers.ask::<Value>(0, "arrived", "let a newcomer take part", &request).await;
            if let Err(why) = told {
                let reason = |rank| format!("worker {rank} could not be admitted: {why}");
                registry.lose_worker(id, request.worker, reason);
            }
        });
    }

    /// Removes a worker, because another hub has lost it.
    pub fn lost_elsewhere(self: &Arc<Self>, id: JobId, request: LostRequest) -> Result<(), Refusal> {
        self.lose_worker(id, request.worker, |_| request.reason);
        Ok(())
    }

    fn lose_worker(self: &Arc<Self>, id: JobId, worker: u64, reason: impl FnOnce(u32) -> String) {
        let mut inner = self.lock();
        if let Some(rank) = inner.hub().job(id).and_then(|job| job.members.rank(worker)) {
            self.lose(&mut inner, id, rank, Cause::Other, &reason(rank));
        }
    }

    /// Notifies the other hubs that a worker is lost. Hub 0 notifies all other hubs, and any other hub
    /// notifies hub 0. Nothing waits for the answers: a hub that gets no notice detects the loss itself a
    /// little later.
    pub(crate) fn tell_lost(&self, job: &Job, worker: u64, reason: &str) {
        let peers = Arc::clone(&job.peers);
        let request = LostRequest { secret: peers.secret.show(), worker, reason: reason.to_owned() };
        self.runtime.spawn(async move {
            let what = "continue without a worker";
            let told = match peers.own {
                0 => peers.ask_all::<Value>("lost", what, request).await,
                _ => vec![peers.ask::<Value>(0, "lost", what, &request).await],
            };
            for why in told.into_iter().filter_map(Result::err) {
                tracing::warn!(job = peers.job, why, "cannot report a lost worker to another hub of the job");
            }
        });
    }

    /// Makes a checkpoint that another hub of a job has asked for.
    pub async fn checkpoint_for_peer(
        self: &Arc<Self>,
        id: JobId,
        request: CheckpointRequest,
    ) -> Result<CheckpointReply, Refusal> {
        let limit = Duration::from_millis(request.round_limit_ms).min(ROUND_LIMIT);
        let at = if request.ends { CutAt::LastRound } else { CutAt::AllHubs };
        let written = self.checkpoint_at(id, at, limit).await;
        written.map_err(|why| RefusalCode::NotSaved.because(why.to_string()))
    }
}
