//! Requests for cuts that hub 0 of a job leads. A cut is a pause of the job between two rounds.

use std::time::Instant;

use pbox_core::JobId;
use pbox_core::control::ReleaseRequest;
use serde::{Deserialize, Serialize};

use super::Request;
use crate::hub::{Hub, JobEnded};
use crate::job::{CutId, Effect, NotReleased, Purpose};

/// A request from hub 0 to this hub: pause a running job for a cut. Cuts that already wait at this hub are made first. The
/// answer has the cut's number at this hub.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeldByLead {
    /// The job.
    pub job: JobId,
    /// Hub 0's number of the cut.
    pub cut: u64,
}

impl Request for HeldByLead {
    type Answer = Result<(CutId, Vec<Effect>), JobEnded>;

    fn apply(self, hub: &mut Hub, now: Instant) -> Self::Answer {
        let (cut, effects) = hub.running(self.job)?.cut(Purpose::Follow(self.cut), now);
        Ok((cut, hub.noted(self.job, effects, now)))
    }
}

/// A request of hub 0 to let a job continue after a cut. The answer has the cut's number at this hub.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReleasedByLead {
    /// The job.
    pub job: JobId,
    /// The release.
    pub request: ReleaseRequest,
}

impl Request for ReleasedByLead {
    type Answer = Result<Result<(CutId, Vec<Effect>), NotReleased>, JobEnded>;

    fn apply(self, hub: &mut Hub, now: Instant) -> Self::Answer {
        let released = hub.running(self.job)?.released_by_lead(self.request);
        Ok(released.map(|(cut, effects)| (cut, hub.noted(self.job, effects, now))))
    }
}

/// A report of a hub to hub 0: the hub has all links of a newcomer.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Arrived {
    /// The job.
    pub job: JobId,
    /// The hub.
    pub hub: u32,
    /// The newcomer, by its number at all hubs.
    pub worker: u64,
}

impl Request for Arrived {
    type Answer = Result<Vec<Effect>, JobEnded>;

    fn apply(self, hub: &mut Hub, now: Instant) -> Self::Answer {
        let effects = hub.running(self.job)?.arrived_at(self.hub, self.worker, now);
        Ok(hub.noted(self.job, effects, now))
    }
}
