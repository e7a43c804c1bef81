//! Requests for jobs: reserve a name, promise memory, begin a job, fail it, end it.

use std::fmt;
use std::net::IpAddr;
use std::time::Instant;

use pbox_core::control::RefusalCode;
use pbox_core::{JobId, NumbersByRound, Piece, Round, Share};
use serde::{Deserialize, Serialize};

use super::Request;
use crate::hub::{Failed, Found, Hub, Memory, Promise, StopStep};
use crate::hubs::{Files, Hubs, Secret};
use crate::job::{Blame, Job, JobSpec, Model};
use crate::refused::Refused;

/// A request to look up a job's name for a worker. If the name is free, it is reserved for this worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Find {
    /// The name.
    pub name: String,
    /// The address of the worker.
    pub owner: Option<IpAddr>,
}

impl Request for Find {
    type Answer = Result<Found, Refused>;

    fn apply(self, hub: &mut Hub, _: Instant) -> Self::Answer {
        hub.find_or_reserve(&self.name, self.owner)
    }
}

/// A request to reserve a free name for a new job. The answer has the job's number.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reserve {
    /// The name.
    pub name: String,
}

impl Request for Reserve {
    type Answer = JobId;

    fn apply(self, hub: &mut Hub, _: Instant) -> JobId {
        hub.names.reserve(&self.name, None)
    }
}

/// A request to free a reserved name.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Release {
    /// The name.
    pub name: String,
}

impl Request for Release {
    type Answer = ();

    fn apply(self, hub: &mut Hub, _: Instant) {
        hub.names.release(&self.name);
    }
}

impl Request for Promise {
    type Answer = Result<(), Refused>;

    fn apply(self, hub: &mut Hub, _: Instant) -> Self::Answer {
        hub.promise(self)
    }
}

/// A request for the memory of a join whose body is being read.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PromiseJoin {
    /// The memory that reading the join needs, in bytes.
    pub bytes: u64,
    /// The memory of this process, if it is known.
    pub memory: Option<Memory>,
}

impl Request for PromiseJoin {
    type Answer = Result<(), Refused>;

    fn apply(self, hub: &mut Hub, _: Instant) -> Self::Answer {
        hub.check_room(self.bytes, self.memory).map_err(|why| {
            let why = format!("the hub cannot read this join, which needs {why}; try again later");
            Refused::new(RefusalCode::NoMemory, why)
        })?;
        hub.joins_bytes += self.bytes;
        Ok(())
    }
}

/// A report that the body of a join was read. Its memory is free again.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EndJoin {
    /// The bytes that were promised to the join.
    pub bytes: u64,
}

impl Request for EndJoin {
    type Answer = ();

    fn apply(self, hub: &mut Hub, _: Instant) {
        hub.joins_bytes -= self.bytes;
    }
}

/// A request to begin a job under its reserved name. The reservation ends.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Begin {
    /// The job, with the number for which its name was reserved.
    pub spec: JobSpec,
    /// This hub's number and share, among the job's hubs.
    pub hub: HubOf,
    /// The round that the job begins with, and the optimizer's hyperparameters at that round.
    pub from: (Round, NumbersByRound),
}

/// This hub's number and share, among the hubs of a job that begins.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HubOf {
    /// The number of this hub, and the number of hubs.
    pub share: Share,
    /// The names of all hubs, if there are several.
    pub names: Vec<String>,
    /// The pieces of keys that this hub owns.
    pub pieces: Vec<Piece>,
    /// The number that distinguishes this job from other jobs with the same name.
    pub secret: Secret,
    /// The round of the checkpoint that the job continues from, or 0.
    pub first_round: Round,
    /// The rounds of the files of each hub that owns chunks. At hubs other than hub 0, only the rounds of the hub's own files.
    pub files: Files,
}

impl Request for Begin {
    type Answer = ();

    fn apply(self, hub: &mut Hub, now: Instant) {
        let Begin { spec, hub: HubOf { share, names, pieces, secret, first_round, files }, from } = self;
        let hubs = Hubs::new((share, names), pieces, secret, first_round, files);
        let job = Job::new(spec, hubs, from, now);
        hub.names.give(&job.spec.name, job.spec.id);
        hub.jobs.insert(job.spec.id, job);
    }
}

/// A request to fail a job, unless it has failed or ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fail {
    /// The job.
    pub job: JobId,
    /// The reason.
    pub reason: String,
    /// The party that caused the failure.
    pub blame: Blame,
    /// Whether this hub saves the job's last state.
    pub saves: bool,
}

impl Request for Fail {
    type Answer = Option<Failed>;

    fn apply(self, hub: &mut Hub, now: Instant) -> Option<Failed> {
        hub.fail(self.job, &self.reason, self.blame, self.saves, now)
    }
}

/// A request to end a job, because all workers have left it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct End {
    /// The job.
    pub job: JobId,
}

impl Request for End {
    type Answer = Option<Ended>;

    fn apply(self, hub: &mut Hub, now: Instant) -> Option<Ended> {
        let job = hub.jobs.remove(&self.job)?;
        hub.names.take(&job.spec.name, self.job);
        hub.end.forget(self.job);
        // A worker may have connected after the last leave. The token of that worker is no longer valid.
        hub.tokens.sweep(|job| job != self.job, now);
        Some(Ended(Box::new(job)))
    }
}

/// A job that has ended. It may be large, so another thread frees it.
pub struct Ended(pub Box<Job>);

impl fmt::Debug for Ended {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_tuple("Ended").field(&self.0.spec.name).finish()
    }
}

/// A report that time has passed. Failed jobs that are too old or too many are forgotten, and the waits of the hub's stop end
/// at their time limits.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sweep;

impl Request for Sweep {
    type Answer = Forgotten;

    fn apply(self, hub: &mut Hub, now: Instant) -> Forgotten {
        let (models, stop) = hub.sweep(now);
        Forgotten { models, stop }
    }
}

/// The result of a sweep.
pub struct Forgotten {
    /// The models of failed jobs. Another thread frees them.
    pub models: Vec<Model>,
    /// The next steps of the hub's stop.
    pub stop: Vec<StopStep>,
}

impl fmt::Debug for Forgotten {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_tuple("Forgotten").field(&self.models.len()).field(&self.stop).finish()
    }
}
