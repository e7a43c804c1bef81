//! Requests for cuts: of this hub, and of hub 0 of a job.

use std::time::Instant;

use pbox_core::JobId;
use pbox_core::control::ReleaseRequest;
use serde::{Deserialize, Serialize};

use super::Request;
use crate::hub::{Hub, JobEnded};
use crate::job::{CutId, Effect, NotReleased, Purpose};

/// Hub 0 cuts a running job, and gives its own number of the cut. This hub follows after the cuts that wait before it. The
/// answer has the number of this hub's cut.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeldByLead {
    /// The job.
    pub job: JobId,
    /// The cut of hub 0.
    pub cut: u64,
}

impl Request for HeldByLead {
    type Answer = Result<(CutId, Vec<Effect>), JobEnded>;

    fn apply(self, hub: &mut Hub, now: Instant) -> Self::Answer {
        let (cut, effects) = hub.running(self.job)?.cut(Purpose::Follow(self.cut), now);
        Ok((cut, hub.noted(self.job, effects, now)))
    }
}

/// Hub 0 ends a cut. The answer has the number of this hub's cut for it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReleasedByLead {
    /// The job.
    pub job: JobId,
    /// The end of the cut.
    pub request: ReleaseRequest,
}

impl Request for ReleasedByLead {
    type Answer = Result<Result<(CutId, Vec<Effect>), NotReleased>, JobEnded>;

    fn apply(self, hub: &mut Hub, now: Instant) -> Self::Answer {
        let released = hub.running(self.job)?.released_by_lead(self.request);
        Ok(released.map(|(cut, effects)| (cut, hub.noted(self.job, effects, now))))
    }
}

/// A hub reports to hub 0 that it has all links of a newcomer.
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
