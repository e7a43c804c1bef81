//! The messages between the hubs of one job. A worker carries some of these messages from the first hub to the other hubs.
//! Hubs send all other messages to each other. `docs/protocol/hub-to-hub.md` has the list of requests.
//!
//! Hub 0 leads. It gives each worker a [`Pass`], and the worker shows this pass to the other hubs. So all hubs of a job
//! know the job's secret, and refuse requests without this secret.

use serde::{Deserialize, Serialize};

use crate::layout::Round;

/// The field `peers` of a join: the job's hubs, as the worker knows them. Only in a job over several hubs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Peers {
    /// The control port of each hub, `host:port`, in the order of the shares. Hubs reach each other at these addresses.
    pub hubs: Vec<String>,
    /// The pass from hub 0's reply to this worker's join. A join at hub 0 itself has no pass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pass: Option<Pass>,
}

/// A pass that hub 0 gives to a worker, for the other hubs of the job.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pass {
    /// The job's secret: 32 hexadecimal digits. Hubs show it to each other in requests.
    pub secret: String,
    /// The number of the worker at all hubs. It is never used again, so that no hub mistakes a new worker for an
    /// earlier worker of the same rank.
    pub worker: u64,
    /// The round with which the job began: 0, or the latest round of which all hubs had a checkpoint.
    pub first_round: Round,
    /// Whether hub 0 writes checkpoints. Either all hubs of a job write checkpoints, or no hub does.
    pub checkpoints: bool,
}

impl std::fmt::Debug for Pass {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The secret must not appear in a log.
        let Pass { worker, first_round, .. } = self;
        f.debug_struct("Pass")
            .field("worker", worker)
            .field("first_round", first_round)
            .finish_non_exhaustive()
    }
}

/// The reply to `GET /v1/jobs/{job}/parts/{hub}/{hubs}`: the checkpoints that a hub has of its share. If the path ends with
/// `/{round}`, the hub first reads its part of this round.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartsReply {
    /// Whether the hub writes checkpoints at all.
    pub keeps: bool,
    /// The interval of checkpoints, in rounds.
    pub every: Option<u32>,
    /// The rounds of the hub's files, ascending.
    pub rounds: Vec<Round>,
    /// The damage that the hub found in the part that it read, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub damage: Option<String>,
}

/// `POST /v1/jobs/{job}/peers/hold`: the hub must finish no round until the release.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HoldRequest {
    /// The job's secret.
    pub secret: String,
    /// The number of the cut (a pause between two rounds), which this hold begins and a release ends. It is greater than
    /// every earlier number.
    pub cut: u64,
}

/// The reply to a hold: the hub finishes no round now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldReply {
    /// The highest round of the hub's chunks; `None` if the hub owns no chunk.
    pub front: Option<Round>,
}

/// `POST /v1/jobs/{job}/peers/release`: the hub must continue after a hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReleaseRequest {
    /// The job's secret.
    pub secret: String,
    /// The number of the cut.
    pub cut: u64,
    /// The first round after the cut.
    pub from: Round,
    /// The workers that take part from that round on. Each worker is given by the `worker` of its pass.
    #[serde(default)]
    pub admitted: Vec<u64>,
    /// Whether the hub must write a checkpoint of the state before that round.
    #[serde(default)]
    pub snapshot: bool,
    /// Whether the job ends at the cut. Then no chunk finishes round `from`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ends: bool,
}

impl ReleaseRequest {
    /// Whether the release changes nothing: the job continues as before the cut.
    pub fn asks_for_nothing(&self) -> bool {
        !self.snapshot && !self.ends && self.admitted.is_empty()
    }
}

/// `POST /v1/jobs/{job}/peers/written`: asks a hub how far it has written its part of a checkpoint. The hub replies when
/// the part is written or has failed, or after `wait_ms`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WrittenRequest {
    /// The job's secret.
    pub secret: String,
    /// The round of the checkpoint, which has the state before this round. 0 stands for the part that is in progress, if
    /// there is one.
    pub before: Round,
    /// The rounds for which all hubs are known to have their part of the checkpoint.
    pub whole: WholeRounds,
    /// The time in milliseconds after which the hub replies even if the part is not written yet.
    pub wait_ms: u64,
}

/// The reply to [`WrittenRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrittenReply {
    /// The rounds of the hub's files, ascending.
    pub rounds: Vec<Round>,
    /// The state of the part.
    pub part: PartState,
}

/// The progress of a part of a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PartState {
    /// Some chunks have not reached the part's round.
    #[default]
    Collecting,
    /// The part is being written to disk.
    Writing,
    /// The part is on disk, with this length in bytes.
    Written(u64),
    /// There is no part, for this reason.
    Failed(String),
}

/// The rounds for which all hubs have their part of the checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WholeRounds {
    /// The latest of these rounds, ascending; at most two.
    pub rounds: Vec<Round>,
    /// The last round that is decided: up to this round, no hub will write a further part.
    pub decided: Option<Round>,
}

/// `POST /v1/jobs/{job}/peers/arrived`, to hub 0: a worker's links have reached all cores of a hub.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ArrivedRequest {
    /// The job's secret.
    pub secret: String,
    /// The hub that sends the request.
    pub hub: u32,
    /// The worker's number: the `worker` of its pass.
    pub worker: u64,
}

/// `POST /v1/jobs/{job}/peers/begins`, to hub 0: asks whether the job has not begun yet, and will begin with this round.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BeginsRequest {
    /// The job's secret.
    pub secret: String,
    /// The round, from a worker's pass.
    pub first_round: Round,
}

/// `POST /v1/jobs/{job}/peers/lost`: a hub has lost a worker, and the job continues without it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LostRequest {
    /// The job's secret.
    pub secret: String,
    /// The worker's number: the `worker` of its pass.
    pub worker: u64,
    /// The reason.
    pub reason: String,
}

/// `POST /v1/jobs/{job}/peers/checkpoint`, to hub 0: all hubs of the job must write a checkpoint now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckpointRequest {
    /// The job's secret.
    pub secret: String,
    /// The time limit for the round in flight, in milliseconds.
    pub round_limit_ms: u64,
    /// Whether the job ends at this checkpoint, because a hub stops.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ends: bool,
}

/// `POST /v1/jobs/{job}/peers/failed`: the job has failed at the sending hub, so it fails at the receiving hub, too.
/// A hub sends this request to hub 0, and hub 0 sends it to all other hubs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FailedRequest {
    /// The job's secret.
    pub secret: String,
    /// The reason, for the workers.
    pub reason: String,
    /// Whether the job failed because a hub stops or is lost.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hub_stops: bool,
}

/// The reply to [`FailedRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedReply {
    /// Whether this hub may still save the job's last state, because its cores have paused the job and finish no round.
    pub saves: bool,
    /// The rounds of the hub's chunks. `None` from hub 0, and from a hub without chunks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rounds: Option<RoundsInFlight>,
}

/// The rounds in flight of a hub's chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoundsInFlight {
    /// The round of the slowest chunk.
    pub lowest: Round,
    /// The round of the fastest chunk.
    pub highest: Round,
}

/// `POST /v1/jobs/{job}/peers/last`: the hub must save the last state of a job that has [failed](FailedRequest), and forget
/// the job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LastRequest {
    /// The job's secret.
    pub secret: String,
    /// The round before which the state is saved. No chunk of any hub is past this round. 0 if nothing is saved.
    pub before: Round,
    /// A description of the job's end, for people.
    pub ended: String,
    /// The rounds for which all hubs are known to have their part of the checkpoint.
    pub whole: WholeRounds,
}

/// The reply to [`LastRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastReply {
    /// The length of the part on disk, in bytes. 0 if the hub owns no chunk, or nothing is saved.
    pub bytes: u64,
}
