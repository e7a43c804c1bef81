//! The last state of a failed job over several hubs: all hubs save the same round, or none does.
//!
//! ```text
//!   hub 1 --failed: why--> hub 0                the job fails there, too
//!   hub 0 --failed: why--> hub 1, hub 2, ...    each holds its cores, and answers with the rounds of its chunks
//!   hub 0 --last: the highest round--> hub 1, hub 2, ...   each ends its rounds before it, and writes its part
//! ```
//!
//! Here is what a hub answers; `registry/saved/last.rs` asks.

use coordinator::Blame;
use pbox_core::JobId;
use pbox_core::control::{FailedReply, FailedRequest, LastReply, LastRequest, RefusalCode, RoundsInFlight};
use tokio::sync::{mpsc, oneshot};

use crate::registry::{Because, Refusal, Registry};

/// How the hub of a failed job takes part in saving its last state.
#[derive(Clone, Debug)]
pub(crate) enum Ending {
    /// As hub 0, which asks the others.
    Leads,
    /// As another hub, which carries out what hub 0 asks.
    Follows(mpsc::Sender<Order>),
}

/// What hub 0 asks of another hub that holds a failed job.
#[derive(Debug)]
pub(crate) enum Order {
    /// Say the rounds of your chunks.
    Rounds(oneshot::Sender<Option<RoundsInFlight>>),
    /// Save the state, and say how many bytes are on the disk.
    Save(LastRequest, oneshot::Sender<Result<u64, String>>),
}

impl Registry {
    /// As [`of_peer`](Self::of_peer), also of a job that has failed.
    pub fn of_peer_at_end(&self, name: &str, secret: &str) -> Result<JobId, Refusal> {
        let inner = self.lock();
        let mut jobs = inner.jobs();
        let job = jobs.find(|job| job.name == name && job.hubs.secret.is(secret));
        job.map(|job| job.id).ok_or_else(|| unknown(name))
    }

    /// The job has failed at another hub.
    pub async fn failed_elsewhere(&self, id: JobId, request: FailedRequest) -> Result<FailedReply, Refusal> {
        let blame = if request.hub_stops { Blame::Hub } else { Blame::Job };
        self.fail_by(&mut self.lock(), id, &request.reason, blame);
        let ending = self.ending(id);
        let (done, rounds) = oneshot::channel();
        let rounds = match &ending {
            Some(Ending::Follows(orders)) if orders.send(Order::Rounds(done)).await.is_ok() => {
                rounds.await.ok().flatten()
            }
            _ => None,
        };
        Ok(FailedReply { saves: ending.is_some(), rounds })
    }

    /// Hub 0 has decided what the last state is.
    pub async fn save_part(&self, id: JobId, request: LastRequest) -> Result<LastReply, Refusal> {
        let (done, saved) = oneshot::channel();
        if let Some(Ending::Follows(orders)) = self.ending(id)
            && orders.send(Order::Save(request, done)).await.is_ok()
            && let Ok(saved) = saved.await
        {
            return saved.map(|bytes| LastReply { bytes }).map_err(|why| RefusalCode::NotSaved.because(why));
        }
        Err(RefusalCode::NoState.because("the failed job's last state is not here any more"))
    }

    fn ending(&self, id: JobId) -> Option<Ending> {
        self.lock().job(id)?.ending.clone()
    }
}

pub(super) fn unknown(name: &str) -> Refusal {
    RefusalCode::JobUnknown.because(format!("no job {name:?} over several hubs here has this secret"))
}
