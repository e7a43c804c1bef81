//! What the other hubs of a job ask of this one, and what this one tells them. Each request shows the job's secret.
//!
//! | request | from | to |
//! | --- | --- | --- |
//! | hold, release: a cut | hub 0 | the others |
//! | written: is your part of a checkpoint on the disk? | hub 0 | the others |
//! | arrived: a newcomer's links are here | the others | hub 0 |
//! | lost: the job goes on without a worker | any hub, hub 0 tells all | hub 0, then the others |
//! | checkpoint: cut the job and have all write | the others | hub 0 |
//!
//! On the control thread. A request is carried out also when whoever asked hangs up meanwhile: a job must not stay held.

use std::sync::Arc;
use std::time::Duration;

use pbox_core::control::{
    ArrivedRequest, CheckpointReply, CheckpointRequest, HoldReply, HoldRequest, LostRequest, PartState,
    PartsReply, ReleaseRequest, WrittenReply, WrittenRequest, check_job_name,
};
use pbox_core::job::MAX_HUBS;
use pbox_core::{JobId, Round, Share};

use super::{Peers, Role};
use crate::registry::cut::JobEnded;
use crate::registry::{Refusal, Registry};

fn ended(JobEnded: JobEnded) -> Refusal {
    Refusal::Gone("the job has ended here".into())
}

impl Registry {
    /// The job of this name, if the request shows its secret. A stranger learns nothing of what is here.
    fn of_peer(&self, name: &str, secret: &str) -> Result<JobId, Refusal> {
        let inner = self.lock();
        let id = inner.names.get(name).copied();
        let hubs = id.and_then(|id| inner.jobs[&id].hubs.as_ref());
        match hubs.is_some_and(|hubs| hubs.secret.is(secret)) {
            true => Ok(id.expect("it has hubs")),
            false => Err(Refusal::Gone(format!("no job {name:?} over several hubs here has this secret"))),
        }
    }

    /// Which checkpoints this hub has of a share of a job.
    pub async fn parts(self: &Arc<Self>, name: String, share: Share) -> Result<PartsReply, Refusal> {
        check_job_name(&name).map_err(|error| Refusal::Bad(error.to_string()))?;
        if share.hub >= share.hubs || share.hubs > MAX_HUBS {
            return Err(Refusal::Bad(format!("{share}: expected 1 to {MAX_HUBS} hubs, numbered from 0")));
        }
        let (tell, told) = tokio::sync::oneshot::channel();
        let registry = Arc::clone(self);
        // Not on the threads for joins: they may wait for this answer of each other's hubs.
        let look = move || {
            let every = registry.checkpoint_every.map(std::num::NonZeroU32::get);
            let rounds = registry.store.as_ref().map(|store| store.rounds(&name, share)).transpose();
            drop(registry);
            let reply = rounds.map(|rounds| PartsReply {
                keeps: rounds.is_some(),
                every,
                rounds: rounds.unwrap_or_default(),
            });
            let _ = tell.send(reply.map_err(|error| Refusal::Conflict(error.to_string())));
        };
        let spawned = std::thread::Builder::new().name("phub-parts".into()).spawn(look);
        spawned.map_err(|error| Refusal::Exhausted(format!("no thread to look for checkpoints: {error}")))?;
        told.await.map_err(|_| Refusal::Exhausted("looking for checkpoints failed; see the log".into()))?
    }

    /// Hub 0 begins a cut.
    pub async fn held_by_lead(
        self: Arc<Self>,
        name: String,
        request: HoldRequest,
    ) -> Result<HoldReply, Refusal> {
        let HoldRequest { secret, cut } = request;
        let id = self.of_peer(&name, &secret)?;
        let cutting = self.of_job(id, |job| Arc::clone(&job.cutting)).map_err(ended)?;
        let lease = cutting.lock_owned().await;
        let begun =
            self.of_job(id, |job| job.hubs.as_mut().map(|hubs| hubs.hold(cut, lease))).map_err(ended)?;
        begun.transpose().map_err(|error| Refusal::Conflict(error.to_string()))?;
        let front = self.hold(id).await.map_err(ended)?;
        tokio::spawn(Arc::clone(&self).end_overdue(id, cut));
        Ok(HoldReply { front })
    }

    /// Fails a job that hub 0 holds and does not release.
    async fn end_overdue(self: Arc<Self>, id: JobId, cut: u64) {
        // Hub 0 asks all hubs to hold, then to release, and waits so long for each.
        let limit = 3 * self.heartbeat_limit;
        tokio::time::sleep(limit).await;
        let overdue = self.of_job(id, |job| {
            let hubs = job.hubs.as_ref().filter(|hubs| hubs.is_held_by(cut))?;
            Some(hubs.peers(&job.name, limit).name(0).to_owned())
        });
        if let Ok(Some(lead)) = overdue {
            let reason = format!(
                "hub 0 of the job, at {lead}, holds its rounds and did not let them go on within {:.1} s: it hangs, was \
                 stopped, or was cut off",
                limit.as_secs_f64()
            );
            self.fail(&mut self.lock(), id, &reason);
        }
    }

    /// Hub 0 ends a cut.
    pub async fn released_by_lead(
        self: Arc<Self>,
        name: String,
        request: ReleaseRequest,
    ) -> Result<(), Refusal> {
        let ReleaseRequest { secret, cut, from, admitted, snapshot } = request;
        let id = self.of_peer(&name, &secret)?;
        let begun = self.of_job(id, |job| {
            let lease = job.hubs.as_mut().map(|hubs| hubs.release(cut)).transpose();
            lease.map(|lease| (lease, admitted.iter().filter_map(|&worker| job.rank(worker)).collect()))
        });
        let (lease, ranks): (_, Arc<[u32]>) =
            begun.map_err(ended)?.map_err(|error| Refusal::Conflict(error.to_string()))?;
        if snapshot {
            self.begin_part(id, from).map_err(ended)?;
        }
        self.release(id, from, Arc::clone(&ranks)).await.map_err(ended)?;
        if !ranks.is_empty() {
            self.take_part(id, &ranks, from).map_err(ended)?;
        }
        drop(lease);
        Ok(())
    }

    /// Hub 0 asks for this hub's part of a checkpoint.
    pub async fn written(&self, name: &str, request: WrittenRequest) -> Result<WrittenReply, Refusal> {
        let WrittenRequest { secret, before, whole: of_all, wait_ms } = request;
        let id = self.of_peer(name, &secret)?;
        let mut part = self
            .of_job(id, |job| {
                if let Some(Role::Follower { whole, .. }) = job.hubs.as_mut().map(|hubs| &mut hubs.role) {
                    *whole = of_all;
                }
                job.checkpoints.part.subscribe()
            })
            .map_err(ended)?;
        let wait = Duration::from_millis(wait_ms).min(self.heartbeat_hold());
        let is_under_way = |part: &(Round, PartState)| {
            part.0 > Round(0) && matches!(part.1, PartState::Collecting | PartState::Writing)
        };
        // Round 0 has no checkpoint: it stands for the part that is under way now, if there is one.
        let is_done = |part: &(Round, PartState)| match before {
            Round(0) => !is_under_way(part),
            _ => part.0 > before || part.0 == before && !is_under_way(part),
        };
        // Ends early when the job does.
        let _ = tokio::time::timeout(wait, part.wait_for(is_done)).await.is_ok();
        let part = match &*part.borrow() {
            now if before == Round(0) && !is_under_way(now) => PartState::Written(0),
            (_, state) if before == Round(0) => state.clone(),
            (round, state) if *round == before => state.clone(),
            (round, _) if *round > before => PartState::Failed(format!("it is at round {} by now", round.0)),
            _ => PartState::Collecting,
        };
        let rounds =
            self.of_job(id, |job| job.hubs.as_ref().map(|hubs| hubs.rounds.clone())).map_err(ended)?;
        Ok(WrittenReply { rounds: rounds.unwrap_or_default(), part })
    }

    /// A newcomer's links are at another hub.
    pub fn arrived_at(self: &Arc<Self>, name: &str, request: ArrivedRequest) -> Result<(), Refusal> {
        let ArrivedRequest { secret, hub, worker } = request;
        let id = self.of_peer(name, &secret)?;
        self.arrived(id, hub, worker)
    }

    /// A newcomer's links are at a hub: hub 0 lets it take part once they are at all of them.
    pub(crate) fn arrived(self: &Arc<Self>, id: JobId, hub: u32, worker: u64) -> Result<(), Refusal> {
        let complete = self.of_job(id, |job| {
            let rank = job.rank(worker)?;
            match &mut job.hubs.as_mut()?.role {
                Role::Lead(lead) => lead.arrivals.note(worker, hub, job.terms.hubs).then_some(rank),
                Role::Follower { .. } => None,
            }
        });
        if let Some(rank) = complete.map_err(ended)? {
            self.admit(id, Arc::new([rank]));
        }
        Ok(())
    }

    /// This hub has all links of a newcomer of a job over several hubs.
    pub(crate) fn tell_arrived(self: &Arc<Self>, id: JobId, peers: Peers, own: u32, worker: u64) {
        let registry = Arc::clone(self);
        tokio::spawn(async move {
            let told = if own == 0 {
                registry.arrived(id, own, worker).map_err(|_| "the job has ended".to_owned())
            } else {
                let request = ArrivedRequest { secret: peers.secret(), hub: own, worker };
                let told = peers.ask::<serde_json::Value>(0, "arrived", "let a newcomer take part", &request);
                told.await.map(|_| ())
            };
            let Err(why) = told else { return };
            let mut inner = registry.lock();
            if let Some(rank) = inner.jobs.get(&id).and_then(|job| job.rank(worker)) {
                let reason = format!("worker {rank} could not be let in: {why}");
                registry.lose(&mut inner, id, rank, &reason);
            }
        });
    }

    /// Another hub has lost a worker: so has this one.
    pub fn lost_elsewhere(&self, name: &str, request: LostRequest) -> Result<(), Refusal> {
        let LostRequest { secret, worker, reason } = request;
        let id = self.of_peer(name, &secret)?;
        let mut inner = self.lock();
        if let Some(rank) = inner.jobs.get(&id).and_then(|job| job.rank(worker)) {
            self.lose(&mut inner, id, rank, &reason);
        }
        Ok(())
    }

    /// Tells the other hubs that a worker is lost: hub 0 all of them, another hub hub 0. Nobody waits for it: what is not
    /// told, each hub sees itself a little later.
    pub(crate) fn tell_lost(&self, peers: Peers, own: u32, worker: u64, reason: &str) {
        let Some(runtime) = self.runtime.get() else { return };
        let request = LostRequest { secret: peers.secret(), worker, reason: reason.to_owned() };
        let others: Vec<u32> = if own == 0 { peers.others().collect() } else { vec![0] };
        for hub in others {
            let (peers, request) = (peers.clone(), request.clone());
            runtime.spawn(async move {
                let told = peers.ask::<serde_json::Value>(hub, "lost", "go on without a worker", &request);
                if let Err(why) = told.await {
                    tracing::warn!(job = peers.job, why, "another hub does not know that a worker is lost");
                }
            });
        }
    }

    /// Another hub of a job wants a checkpoint.
    pub async fn checkpoint_for_peer(
        self: &Arc<Self>,
        name: &str,
        request: CheckpointRequest,
    ) -> Result<CheckpointReply, Refusal> {
        let CheckpointRequest { secret, round_limit_ms } = request;
        let id = self.of_peer(name, &secret)?;
        let limit = Duration::from_millis(round_limit_ms).min(crate::registry::checkpoint::ROUND_LIMIT);
        let written = self.checkpoint_job(id, limit).await;
        written.map_err(|why| Refusal::Exhausted(format!("job {name:?}: {why}")))
    }
}
