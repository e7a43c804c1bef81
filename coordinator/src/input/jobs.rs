//! Requests for jobs: a name is reserved, memory is promised, a job begins, fails, ends.

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

/// Looks up a name for a worker at an address. A free name is reserved for it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Find {
    /// The name.
    pub name: String,
    /// The address.
    pub owner: Option<IpAddr>,
}

impl Request for Find {
    type Answer = Result<Found, Refused>;

    fn apply(self, hub: &mut Hub, _: Instant) -> Self::Answer {
        hub.find_or_reserve(&self.name, self.owner)
    }
}

/// A request for the job of a name. If no job has the name, the hub reserves it for a new job. The answer has the number
/// of the job.
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

/// A reserved name is free again.
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

/// A join whose body is being read needs memory.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PromiseJoin {
    /// The memory that the job needs at this hub, in bytes.
    pub bytes: u64,
    /// The memory of this process, if it is known.
    pub memory: Option<Memory>,
}

impl Request for PromiseJoin {
    type Answer = Result<(), Refused>;

    fn apply(self, hub: &mut Hub, _: Instant) -> Self::Answer {
        hub.check_room(self.bytes, self.memory).map_err(|why| {
            let why = format!("reading this join needs {why}; try again later");
            Refused::new(RefusalCode::NoMemory, why)
        })?;
        hub.joins_bytes += self.bytes;
        Ok(())
    }
}

/// The body of a join is read, and its memory is free again.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EndJoin {
    /// The bytes that it was promised.
    pub bytes: u64,
}

impl Request for EndJoin {
    type Answer = ();

    fn apply(self, hub: &mut Hub, _: Instant) {
        hub.joins_bytes -= self.bytes;
    }
}

/// A job begins under its reserved name. The reservation ends.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Begin {
    /// The job; its name was reserved for its number.
    pub spec: JobSpec,
    /// The place of this hub among its hubs.
    pub hub: HubOf,
    /// The round that the job begins with, and the optimizer's numbers at that round.
    pub from: (Round, NumbersByRound),
}

/// The place of a hub among the hubs of a job that begins.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HubOf {
    /// The number of this hub, and of all hubs.
    pub share: Share,
    /// The names of all hubs, if there are several.
    pub names: Vec<String>,
    /// The pieces of keys that this hub owns.
    pub pieces: Vec<Piece>,
    /// The secret that tells this job from other jobs that have had its name.
    pub secret: Secret,
    /// The round of the checkpoint that the job continues from, or 0.
    pub first_round: Round,
    /// The rounds of the files of each hub that owns chunks. At another hub than hub 0 they are only its own.
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

/// A job fails, unless it has failed or ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fail {
    /// The job.
    pub job: JobId,
    /// The reason.
    pub reason: String,
    /// The blame for the end.
    pub blame: Blame,
    /// Whether this hub saves its last state.
    pub saves: bool,
}

impl Request for Fail {
    type Answer = Option<Failed>;

    fn apply(self, hub: &mut Hub, now: Instant) -> Option<Failed> {
        hub.fail(self.job, &self.reason, self.blame, self.saves, now)
    }
}

/// A job ends that all workers have left.
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
        // Tokens of workers that connected after the last worker left are no longer valid.
        hub.tokens.sweep(|job| job != self.job, now);
        Some(Ended(Box::new(job)))
    }
}

/// A job that has ended. It may be large: another thread frees it.
pub struct Ended(pub Box<Job>);

impl fmt::Debug for Ended {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_tuple("Ended").field(&self.0.spec.name).finish()
    }
}

/// Time has passed: failed jobs that are old or too many are forgotten, and a stop ends waits that are too long.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sweep;

impl Request for Sweep {
    type Answer = Forgotten;

    fn apply(self, hub: &mut Hub, now: Instant) -> Forgotten {
        let (models, stop) = hub.sweep(now);
        Forgotten { models, stop }
    }
}

/// The consequence of the passing of time.
pub struct Forgotten {
    /// The models of failed jobs, which another thread frees.
    pub models: Vec<Model>,
    /// The steps of a stop.
    pub stop: Vec<StopStep>,
}

impl fmt::Debug for Forgotten {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_tuple("Forgotten").field(&self.models.len()).field(&self.stop).finish()
    }
}
