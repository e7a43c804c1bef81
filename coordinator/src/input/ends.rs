//! Requests for the end of a hub: it takes no more jobs, admits no worker, stops, and its members are
//! notified.

use std::time::Instant;

use pbox_core::JobId;
use serde::{Deserialize, Serialize};

use super::{MemberOf, Request};
use crate::hub::Hub;

/// The hub takes no more jobs. The answer is the names of the jobs that it has, in order.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Drain;

impl Request for Drain {
    type Answer = Vec<String>;

    fn apply(self, hub: &mut Hub, _: Instant) -> Vec<String> {
        hub.end.draining = true;
        hub.names.all()
    }
}

/// The hub admits no worker any more.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Close;

impl Request for Close {
    type Answer = ();

    fn apply(self, hub: &mut Hub, _: Instant) {
        hub.end.closed = true;
    }
}

/// The hub stops. The answer is the jobs that fail for it; the driver has to notify their members.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Stop;

impl Request for Stop {
    type Answer = Vec<JobId>;

    fn apply(self, hub: &mut Hub, _: Instant) -> Vec<JobId> {
        hub.stop()
    }
}

/// A member is being notified that its job failed.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Told {
    /// The member.
    pub member: MemberOf,
}

impl Request for Told {
    type Answer = ();

    fn apply(self, hub: &mut Hub, _: Instant) {
        hub.end.untold.remove(&(self.member.job, self.member.rank));
    }
}

/// The hubs above have to be notified why a job failed.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TellAbove {
    /// The job.
    pub job: JobId,
}

impl Request for TellAbove {
    type Answer = ();

    fn apply(self, hub: &mut Hub, _: Instant) {
        hub.end.untold_above.insert(self.job);
    }
}

/// The hubs above have been notified, or cannot be notified.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToldAbove {
    /// The job.
    pub job: JobId,
}

impl Request for ToldAbove {
    type Answer = ();

    fn apply(self, hub: &mut Hub, _: Instant) {
        hub.end.untold_above.remove(&self.job);
    }
}
