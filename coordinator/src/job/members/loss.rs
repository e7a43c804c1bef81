//! The loss of members: the job fails, or continues without them.
//!
//! | the job | consequence |
//! | --- | --- |
//! | has not begun, or does not continue without lost members | it fails |
//! | continues without lost members, and no other member takes part | it fails, because no worker is left |
//! | continues, and another member takes part | cores remove the member, other hubs are notified, and its tokens give the reason |
//! | has failed | nothing happens |
//!
//! A member that has left closes its links, and does not count as lost. A member whose client hung up before the answer to its
//! join is lost only if its job runs or has no other member. Otherwise the job continues to wait for members, as if nobody had
//! joined.

use crate::job::{Cause, Effect, Job};

impl Job {
    /// Loses a member, unless it has left or the job has failed. Returns the effects, in order.
    pub(crate) fn lose(&mut self, rank: u32, cause: Cause, reason: &str) -> Vec<Effect> {
        let member =
            self.members.get(rank).filter(|member| member.standing.is_member() && !self.life.failed());
        let Some(worker) = member.map(|member| member.worker) else { return Vec::new() };
        let goes_on = self.spec.goes_on() && self.life.runs();
        let lost = |goes_on| Effect::Lost { rank, cause, reason: reason.to_owned(), goes_on };
        if !goes_on || !self.members.has_others(rank) {
            let last = if goes_on { "; no worker is left" } else { "" };
            return vec![lost(false), Effect::Fail(format!("{reason}{last}"), self.spec.blame(cause))];
        }
        self.members.lose(rank);
        self.hubs.arrivals.forget(worker);
        let why = format!(
            "job {:?} continues without this worker: {reason}; join again to take part",
            self.spec.name
        );
        vec![
            lost(true),
            Effect::RemoveWorker(rank),
            Effect::TellLost(worker, reason.to_owned()),
            Effect::Forget(rank, why),
            // A request of the lost worker for new links may be waiting. That request then fails.
            Effect::Wake,
        ]
    }

    /// Loses several members, one after another. Stops if the job fails.
    pub(crate) fn lose_all(&mut self, lost: Vec<(u32, Cause, String)>) -> Vec<Effect> {
        let mut effects = Vec::new();
        for (rank, cause, reason) in lost {
            effects.extend(self.lose(rank, cause, &reason));
            if matches!(effects.last(), Some(Effect::Fail(..))) {
                break;
            }
        }
        effects
    }
}

/// Cancels a join whose client hung up before it had the answer. Returns the effects, in order. If the job has not begun, the
/// rank is free at once, because no core and no other hub knows the member.
pub(crate) fn undo_join(job: &mut Job, rank: u32) -> Vec<Effect> {
    let has_others = job.members.present().any(|(other, _)| other != rank);
    match job.life.gathering_mut().filter(|_| has_others) {
        None => {
            let who = job.spec.spoken(rank);
            let why = format!("{who} is gone: its client hung up before it had the answer to its join");
            job.lose(rank, Cause::Link, &why)
        }
        Some(gathering) => {
            gathering.reached[rank as usize] = None;
            job.members.free(rank);
            Vec::new()
        }
    }
}
