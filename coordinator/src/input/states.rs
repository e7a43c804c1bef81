//! Requests for states: a state that rank 0 brings, wanted states, files of states, and the last state of a failed job.

use std::time::{Duration, Instant};

use pbox_core::control::{CheckpointReply, LastRequest, WholeRounds};
use pbox_core::{JobId, NumbersByRound, Occasion, Round};
use serde::{Deserialize, Serialize};

use super::Request;
use crate::hub::{Hub, JobEnded};
use crate::job::{AskedId, CutAt, Effect, Job, Saving, Use, WantId};

/// An offer of a state by rank 0, with the number of steps of each key. The answer is whether the job waits for the
/// offered state, because it has no state of its own. If the offer comes too late, the answer is the reason.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Offer {
    /// The job.
    pub job: JobId,
    /// The number of steps of each key, if rank 0 reports it.
    pub steps: Vec<Option<u32>>,
}

impl Request for Offer {
    type Answer = Result<bool, String>;

    fn apply(self, hub: &mut Hub, _: Instant) -> Self::Answer {
        hub.job_mut(self.job).map_or(Ok(false), |job| job.note_state_offered(self.steps))
    }
}

/// A report whether the offered state is wanted. If so, the report has the state's round and its length in bytes.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wanted {
    /// The job.
    pub job: JobId,
    /// The first round after the weights in the state.
    pub before: Round,
    /// The length in bytes, if the state is wanted.
    pub bytes: Option<u64>,
}

impl Request for Wanted {
    type Answer = Result<Vec<Effect>, JobEnded>;

    fn apply(self, hub: &mut Hub, now: Instant) -> Self::Answer {
        let job = hub.running(self.job)?;
        let arrival = job.life.note_state_wanted((self.before, self.bytes), &job.members, &mut job.news);
        let effects = job.follows(arrival, now);
        Ok(hub.noted(self.job, effects, now))
    }
}

/// A report that the first bytes of the offered state have arrived. If the job waits for the state, the answer is the
/// state's round and its length in bytes.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Comes {
    /// The job.
    pub job: JobId,
}

impl Request for Comes {
    type Answer = Option<(Round, u64)>;

    fn apply(self, hub: &mut Hub, _: Instant) -> Self::Answer {
        hub.job_mut(self.job).and_then(|job| job.life.note_state_arriving())
    }
}

/// A report that the offered state has arrived completely, at this hub or at the hubs above.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BeginWith {
    /// The job.
    pub job: JobId,
    /// The round and the hyperparameters of the state, if this hub keeps the state.
    pub restored: Option<(Round, NumbersByRound)>,
}

impl Request for BeginWith {
    type Answer = Result<Vec<Effect>, JobEnded>;

    fn apply(self, hub: &mut Hub, now: Instant) -> Self::Answer {
        let job = hub.running(self.job)?;
        let arrival = job.begin_with(self.restored);
        let effects = job.follows(arrival, now);
        Ok(hub.noted(self.job, effects, now))
    }
}

/// A report that all workers have joined this hub. It names the machines that are missing at the hubs above.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MissMachines {
    /// The job.
    pub job: JobId,
    /// The machines.
    pub machines: Vec<u32>,
}

impl Request for MissMachines {
    type Answer = Result<(), JobEnded>;

    fn apply(self, hub: &mut Hub, _: Instant) -> Self::Answer {
        hub.running(self.job).map(|job| job.life.wait_for_machines(self.machines, &mut job.news))
    }
}

/// A report that a worker of some machine had reached this round when it lost a hub.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MachinesReached {
    /// The job.
    pub job: JobId,
    /// The round.
    pub round: Round,
}

impl Request for MachinesReached {
    type Answer = Result<(), JobEnded>;

    fn apply(self, hub: &mut Hub, _: Instant) -> Self::Answer {
        let Job { life, spec, news, .. } = hub.running(self.job)?;
        life.note_machine_reached(self.round, spec, news);
        Ok(())
    }
}

/// A report of the rounds of a hub's files.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HasFiles {
    /// The job.
    pub job: JobId,
    /// The hub.
    pub hub: u32,
    /// The rounds of which the hub has a checkpoint file.
    pub rounds: Vec<Round>,
}

impl Request for HasFiles {
    type Answer = ();

    fn apply(self, hub: &mut Hub, _: Instant) {
        if let Ok(job) = hub.running(self.job) {
            job.hubs.note_files(self.hub, self.rounds);
        }
    }
}

/// A request for a job's state. The answer has the request's number.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WantState {
    /// The job.
    pub job: JobId,
    /// The use of the state.
    pub purpose: Use,
    /// The round of the cut, and the hubs that take part in the cut.
    pub at: CutAt,
    /// The time limit for the round in flight to end.
    pub limit: Duration,
}

impl Request for WantState {
    type Answer = Result<(WantId, Vec<Effect>), JobEnded>;

    fn apply(self, hub: &mut Hub, now: Instant) -> Self::Answer {
        let job = hub.running(self.job)?;
        let (want, effects) = Saving { job, now }.want(self.purpose, self.at, self.limit);
        Ok((want, hub.noted(self.job, effects, now)))
    }
}

/// A question of hub 0 about this hub's part of a checkpoint. Hub 0 also sends the rounds of complete checkpoints. The
/// answer has the question's number.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AskForWritten {
    /// The job.
    pub job: JobId,
    /// The first round after the state in the part. Round 0 stands for the part that is being written now.
    pub before: Round,
    /// The rounds of complete checkpoints.
    pub whole: WholeRounds,
    /// The time for which the answer may wait.
    pub wait: Duration,
}

impl Request for AskForWritten {
    type Answer = Result<(AskedId, Vec<Effect>), JobEnded>;

    fn apply(self, hub: &mut Hub, now: Instant) -> Self::Answer {
        let job = hub.running(self.job)?;
        let (asked, effects) = Saving { job, now }.asked_for(self.before, self.whole, self.wait);
        Ok((asked, hub.noted(self.job, effects, now)))
    }
}

/// A request to write a file. The answer has the rounds of complete checkpoints. Files of other rounds are no longer
/// needed. If this hub has too many files, the answer is a refusal, in words.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BeginFile {
    /// The job.
    pub job: JobId,
    /// The first round after the state in the file.
    pub before: Round,
}

impl Request for BeginFile {
    type Answer = Result<Result<WholeRounds, String>, JobEnded>;

    fn apply(self, hub: &mut Hub, _: Instant) -> Self::Answer {
        hub.running(self.job).map(|job| job.checkpoints.begin_file(self.before, &job.hubs))
    }
}

/// A report that the file of a snapshot is written, or has failed. If the previous attempt failed, the answer has the
/// reason.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EndFile {
    /// The job.
    pub job: JobId,
    /// The snapshot.
    pub occasion: Occasion,
    /// The first round after the state in the file.
    pub before: Round,
    /// The file, or the reason why there is no file.
    pub written: Result<CheckpointReply, String>,
}

impl Request for EndFile {
    type Answer = Result<(Option<String>, Vec<Effect>), JobEnded>;

    fn apply(self, hub: &mut Hub, now: Instant) -> Self::Answer {
        let job = hub.running(self.job)?;
        let (error_before, effects) = Saving { job, now }.end_file(self.occasion, self.before, self.written);
        Ok((error_before, hub.noted(self.job, effects, now)))
    }
}

/// A question whether this hub still has a job. Another hub, at which the job has failed, asks it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AskToHold {
    /// The job.
    pub job: JobId,
}

impl Request for AskToHold {
    type Answer = Vec<Effect>;

    fn apply(self, hub: &mut Hub, now: Instant) -> Vec<Effect> {
        let job = hub.job_mut(self.job);
        let effects = job.map_or_else(Vec::new, |job| job.last.asked_to_hold(&job.hubs, now));
        hub.noted(self.job, effects, now)
    }
}

/// The decision of hub 0 about the last state of a failed job. There is no answer if this hub no longer has the state.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AskForPart {
    /// The job.
    pub job: JobId,
    /// The decision.
    pub request: LastRequest,
}

impl Request for AskForPart {
    type Answer = Option<Vec<Effect>>;

    fn apply(self, hub: &mut Hub, now: Instant) -> Self::Answer {
        let job = hub.job_mut(self.job)?;
        let effects = job.last.asked_for_part(&job.hubs, self.request)?;
        Some(hub.noted(self.job, effects, now))
    }
}
