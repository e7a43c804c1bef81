//! Requests for the end of a hub: it takes no more jobs, it stops, and its members are notified.

use std::time::Instant;

use pbox_core::JobId;
use serde::{Deserialize, Serialize};

use super::{MemberOf, Request};
use crate::hub::{Hub, StopStep, Stopping};

/// A request to take no more jobs. The answer has the names of the jobs that the hub has, in order.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Drain;

impl Request for Drain {
    type Answer = Vec<String>;

    fn apply(self, hub: &mut Hub, _: Instant) -> Vec<String> {
        hub.end.draining = true;
        hub.names.all()
    }
}

/// A request to begin the stop of the hub, unless the stop has already begun. The hub admits no more workers, and saves
/// its jobs.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BeginStop {
    /// The reason, for the members.
    pub reason: String,
    /// Whether the hub writes checkpoints.
    pub has_files: bool,
}

impl Request for BeginStop {
    type Answer = Vec<StopStep>;

    fn apply(self, hub: &mut Hub, now: Instant) -> Vec<StopStep> {
        Stopping { hub, now }.begin(self.reason, self.has_files)
    }
}

/// A report, while the hub stops, that a job has been saved at a cut (a pause between two rounds) or cannot be saved.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedAtStop {
    /// The job.
    pub job: JobId,
    /// Whether the job is saved.
    pub is_saved: bool,
}

impl Request for SavedAtStop {
    type Answer = Vec<StopStep>;

    fn apply(self, hub: &mut Hub, now: Instant) -> Vec<StopStep> {
        Stopping { hub, now }.answered(self.job, self.is_saved)
    }
}

/// A request to stop at once, without saving jobs at cuts.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stop {
    /// The reason, for the members.
    pub reason: String,
}

impl Request for Stop {
    type Answer = Vec<StopStep>;

    fn apply(self, hub: &mut Hub, now: Instant) -> Vec<StopStep> {
        Stopping { hub, now }.at_once(self.reason)
    }
}

/// A report that a member is being notified that its job failed.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Told {
    /// The member.
    pub member: MemberOf,
}

impl Request for Told {
    type Answer = ();

    fn apply(self, hub: &mut Hub, _: Instant) {
        hub.end.unnotified.remove(&(self.member.job, self.member.rank));
    }
}

/// A report that the hubs above must be notified why a job failed.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TellAbove {
    /// The job.
    pub job: JobId,
}

impl Request for TellAbove {
    type Answer = ();

    fn apply(self, hub: &mut Hub, _: Instant) {
        hub.end.unnotified_above.insert(self.job);
    }
}

/// A report that the hubs above have been notified, or cannot be notified.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToldAbove {
    /// The job.
    pub job: JobId,
}

impl Request for ToldAbove {
    type Answer = ();

    fn apply(self, hub: &mut Hub, _: Instant) {
        hub.end.unnotified_above.remove(&self.job);
    }
}
