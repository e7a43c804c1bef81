//! The last state of a failed job over several hubs: this hub's answers to the other hubs. The
//! [coordinator](coordinator::LastStep) decides on the state, and `registry/saved/last.rs` asks the other
//! hubs.

use coordinator::Blame;
use coordinator::input::{AskForPart, AskToHold};
use pbox_core::JobId;
use pbox_core::control::{FailedReply, FailedRequest, LastReply, LastRequest, RefusalCode};
use tokio::sync::oneshot;

use crate::registry::{Because, Refusal, Registry};

impl Registry {
    /// Works like [`of_peer`](Self::of_peer), but also finds a job that has failed.
    pub fn of_peer_at_end(&self, name: &str, secret: &str) -> Result<JobId, Refusal> {
        let inner = self.lock();
        let mut jobs = inner.hub().jobs();
        let job = jobs.find(|job| job.spec.name == name && job.hubs.secret.is(secret));
        job.map(|job| job.spec.id).ok_or_else(|| unknown(name))
    }

    /// Notes that the job has failed at another hub.
    pub async fn failed_elsewhere(&self, id: JobId, request: FailedRequest) -> Result<FailedReply, Refusal> {
        let blame = if request.hub_stops { Blame::Hub } else { Blame::Job };
        let (done, holds) = oneshot::channel();
        {
            let mut inner = self.lock();
            self.fail_by(&mut inner, id, &request.reason, blame);
            if let Some((_, job)) = inner.job(id) {
                job.wait_for_last.holds.push(done);
                let effects = inner.ask(AskToHold { job: id });
                self.carry_out(&mut inner, id, effects);
            }
        }
        Ok(holds.await.unwrap_or(FailedReply { saves: false, rounds: None }))
    }

    /// Saves this hub's part of the last state that hub 0 has decided on.
    pub async fn save_part(&self, id: JobId, request: LastRequest) -> Result<LastReply, Refusal> {
        let (done, part) = oneshot::channel();
        {
            let mut inner = self.lock();
            let effects = inner.ask(AskForPart { job: id, request });
            if let Some((effects, (_, job))) = effects.zip(inner.job(id)) {
                job.wait_for_last.part = Some(done);
                self.carry_out(&mut inner, id, effects);
            }
        }
        match part.await {
            Ok(part) => part.map_err(|why| RefusalCode::NotSaved.because(why)),
            Err(_) => Err(RefusalCode::NoState.because("this hub no longer has the failed job's last state")),
        }
    }
}

pub(super) fn unknown(name: &str) -> Refusal {
    RefusalCode::JobUnknown
        .because(format!("this hub has no job {name:?} over several hubs with this secret"))
}
