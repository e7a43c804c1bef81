//! Checkpoints of a job over several hubs: hub 0 asks the other hubs for their parts. The
//! [coordinator](coordinator::Effect::FollowPart) decides how often.
//!
//! A checkpoint that is due at its round needs no message between hubs before it is written: all cores know
//! the round. A checkpoint on request is taken at a cut of all hubs.

use std::sync::Arc;

use coordinator::{Event, FollowId};
use pbox_core::Round;
use pbox_core::control::{WholeRounds, WrittenReply, WrittenRequest};

use crate::registry::Registry;
use crate::registry::job::Job;

impl Registry {
    /// Asks another hub for its part of a checkpoint before a round, and sends it the rounds of complete checkpoints. The
    /// answer is an event of the job.
    pub(in crate::registry) fn follow_part(
        &self,
        job: &Job,
        (follow, hub): (FollowId, u32),
        (before, whole): (Round, WholeRounds),
    ) {
        let Some(registry) = self.me.upgrade() else { return };
        let (id, peers) = (job.id, Arc::clone(&job.peers));
        let wait_ms = (peers.limit / 3).as_millis() as u64;
        let request = WrittenRequest { secret: peers.secret.show(), before, whole, wait_ms };
        self.runtime.spawn(async move {
            let what = "write its part of a checkpoint";
            let said = peers.ask(hub, "written", what, &request).await;
            let said = said.map(|WrittenReply { rounds, part }| (rounds, part));
            registry.happens(&mut registry.lock(), id, Event::Part { follow, hub, said });
        });
    }
}
