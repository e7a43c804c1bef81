//! Checkpoints of a job over several hubs: hub 0 has the others write their parts, and hears what became of these.
//!
//! A checkpoint that is due needs no word from hub to hub before it is written: all cores know the round. One that is
//! asked for is taken at a cut of all hubs.

use std::sync::Arc;
use std::time::Duration;

use pbox_core::control::{
    CheckpointReply, CheckpointRequest, PartState, WholeRounds, WrittenReply, WrittenRequest,
};
use pbox_core::{JobId, Round, Share, Snapshot};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::agreement;
use super::{Hubs, Peers};
use crate::checkpoint::CheckpointStore;
use crate::registry::Registry;
use crate::registry::checkpoint::overdue;
use crate::registry::cut::JobEnded;

/// How long another hub waits for hub 0 to have a checkpoint written: a terabyte takes this long on a slow disk.
const WRITE_LIMIT: Duration = Duration::from_secs(3600);

/// Where a hub's part of a checkpoint goes.
#[derive(Debug)]
pub(crate) struct PartFiles {
    share: Share,
    /// The rounds that are there.
    rounds: Vec<Round>,
    whole: WholeRounds,
}

impl PartFiles {
    /// As they are now.
    pub fn of(hubs: &Hubs) -> Self {
        PartFiles { share: hubs.share, rounds: hubs.rounds.clone(), whole: hubs.whole() }
    }

    /// Writes one more, and removes those that are not needed; its bytes, and the rounds that are there then.
    pub fn write(
        &self,
        store: &CheckpointStore,
        job: &str,
        snapshot: &Snapshot,
    ) -> Result<(u64, Vec<Round>), String> {
        let PartFiles { share, rounds, whole } = self;
        if !agreement::may_write(whole, rounds) {
            return Err(format!(
                "another hub of the job has not written its part of the rounds {:?}, which wait here for it; see the log \
                 of hub 0",
                rounds.iter().map(|round| round.0).collect::<Vec<_>>()
            ));
        }
        let bytes = store.save_part(job, *share, snapshot).map_err(|error| error.to_string())?;
        let kept = store.keep_parts(job, *share, |round| agreement::is_needed(whole, round));
        Ok((bytes, kept.map_err(|error| error.to_string())?))
    }
}

impl Registry {
    /// Has hub 0 write a checkpoint of a job over several hubs, where this is another one of them.
    pub(crate) async fn checkpoint_at_lead(
        &self,
        id: JobId,
        limit: Duration,
    ) -> Option<Result<CheckpointReply, String>> {
        let lead = self.of_job(id, |job| {
            let hubs = job.hubs.as_ref().filter(|hubs| !hubs.leads())?;
            Some(hubs.peers(&job.name, limit + WRITE_LIMIT))
        });
        let lead = lead.ok().flatten()?;
        let request = CheckpointRequest { secret: lead.secret(), round_limit_ms: limit.as_millis() as u64 };
        Some(lead.ask(0, "checkpoint", "write a checkpoint", &request).await)
    }

    /// Hub 0 of several waits until the others have written their parts, or cannot; the bytes of these parts. Until the
    /// deadline their chunks must have come to the round.
    pub(crate) async fn follow_parts(
        self: &Arc<Self>,
        id: JobId,
        before: Round,
        deadline: Option<Instant>,
    ) -> Result<u64, String> {
        let peers = self.of_job(id, |job| {
            let hubs = job.hubs.as_ref().filter(|hubs| hubs.leads())?;
            Some(hubs.peers(&job.name, self.heartbeat_limit))
        });
        let Some(peers) = peers.map_err(ended)? else { return Ok(0) };
        let mut asked = JoinSet::new();
        for hub in peers.other_owners() {
            asked.spawn(Arc::clone(self).follow_part(id, peers.clone(), hub, before, deadline));
        }
        let written: Result<u64, String> = asked.join_all().await.into_iter().sum();
        let (job, round) = (&peers.job, before.0);
        match &written {
            Ok(_) => tracing::info!(job, round, "checkpoint is whole: all hubs have written their parts"),
            Err(why) => {
                tracing::warn!(job, round, why, "checkpoint is not whole");
                let _ = self.of_job(id, |job| job.checkpoints.error = Some(why.clone()));
            }
        }
        written
    }

    /// Hub 0 of several waits until no other hub is writing a part: a hub skips a checkpoint while it writes the one
    /// before.
    pub(crate) async fn wait_for_parts(self: &Arc<Self>, id: JobId, deadline: Instant) {
        let peers = self.of_job(id, |job| {
            let hubs = job.hubs.as_ref().filter(|hubs| hubs.leads())?;
            Some(hubs.peers(&job.name, self.heartbeat_limit))
        });
        let Ok(Some(peers)) = peers else { return };
        let mut asked = JoinSet::new();
        for hub in peers.other_owners() {
            asked.spawn(Arc::clone(self).follow_part(id, peers.clone(), hub, Round(0), Some(deadline)));
        }
        // What is wrong shows at the cut.
        asked.join_all().await;
    }

    async fn follow_part(
        self: Arc<Self>,
        id: JobId,
        peers: Peers,
        hub: u32,
        before: Round,
        deadline: Option<Instant>,
    ) -> Result<u64, String> {
        let wait_ms = (peers.limit / 3).as_millis() as u64;
        let failed = |why: String| {
            Err(format!("hub {hub} of the job, at {}, has no part of it: {why}", peers.name(hub)))
        };
        loop {
            let whole = self.of_job(id, |job| job.hubs.as_ref().map(Hubs::whole).unwrap_or_default());
            let request =
                WrittenRequest { secret: peers.secret(), before, whole: whole.map_err(ended)?, wait_ms };
            let what = "write its part of a checkpoint";
            let reply: WrittenReply = peers.ask(hub, "written", what, &request).await?;
            let _ = self.of_job(id, |job| {
                job.hubs.iter_mut().for_each(|hubs| hubs.hears_of_files(hub, reply.rounds.clone()));
            });
            match reply.part {
                PartState::Written(bytes) => return Ok(bytes),
                PartState::Failed(why) => return failed(why),
                PartState::Collecting if deadline.is_some_and(|limit| limit < Instant::now()) => {
                    return failed(overdue(before));
                }
                PartState::Collecting | PartState::Writing => {}
            }
        }
    }

    /// Hub 0 has cut the job before a round, and wants this hub's part of the state there.
    pub(crate) fn begin_part(self: &Arc<Self>, id: JobId, before: Round) -> Result<(), JobEnded> {
        self.of_job(id, |job| {
            job.checkpoints.part.send_replace((before, PartState::Collecting));
            self.take_snapshot(job, before, None);
        })
    }
}

fn ended(JobEnded: JobEnded) -> String {
    "the job ended meanwhile".to_owned()
}
