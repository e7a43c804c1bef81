//! Checkpoints of a job over several hubs: hub 0 has the others write their parts, and hears what became of these.
//!
//! A checkpoint that is due needs no word from hub to hub before it is written: all cores know the round. One that is
//! asked for is taken at a cut of all hubs.

use std::sync::Arc;

use coordinator::input::HasFiles;
use pbox_core::control::{PartState, WrittenReply, WrittenRequest};
use pbox_core::{JobId, Round};
use tokio::time::Instant;

use super::Peers;
use crate::registry::Registry;
use crate::registry::saved::snapshot::overdue;

impl Registry {
    /// Waits at hub 0 until the other hubs have written their parts, or cannot. Returns the bytes of these parts. Their
    /// chunks must come to the round before the deadline. Round 0 has no checkpoint: it stands for the parts that are
    /// being written now. Any other hub has nothing to wait for.
    pub(crate) async fn follow_parts(
        self: &Arc<Self>,
        id: JobId,
        before: Round,
        deadline: Option<Instant>,
    ) -> Result<u64, String> {
        let (leads, peers) = self.of_job(id, |state, job| (state.hubs.leads(), Arc::clone(&job.peers)))?;
        if !leads {
            return Ok(0);
        }
        let owners = peers.others().filter(|&hub| peers.owners[hub as usize]);
        let follow = |peers, hub| Arc::clone(self).follow_part(id, peers, hub, before, deadline);
        peers.at_once(owners, follow).await.into_iter().sum()
    }

    async fn follow_part(
        self: Arc<Self>,
        id: JobId,
        peers: Arc<Peers>,
        hub: u32,
        before: Round,
        deadline: Option<Instant>,
    ) -> Result<u64, String> {
        let wait_ms = (peers.limit / 3).as_millis() as u64;
        let failed = |why: String| {
            Err(format!("hub {hub} of the job, at {}, has no part of it: {why}", peers.name(hub)))
        };
        loop {
            let whole = self.of_job(id, |state, _| state.hubs.whole.clone())?;
            let request = WrittenRequest { secret: peers.secret.show(), before, whole, wait_ms };
            let what = "write its part of a checkpoint";
            let reply: WrittenReply = peers.ask(hub, "written", what, &request).await?;
            self.lock().ask(HasFiles { job: id, hub, rounds: reply.rounds });
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
}
