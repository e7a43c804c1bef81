//! The messages between hubs that share a job. A worker carries some from the first hub to the others, and hubs send
//! each other the rest. `docs/protocol/hub-to-hub.md` has the table of requests.
//!
//! Hub 0 leads. It gives each worker a [`Pass`], and the worker shows the pass at the other hubs. So all hubs of a
//! job know its secret. They refuse a request without it.

use serde::{Deserialize, Serialize};

use crate::layout::Round;

/// `peers` of a join: the job's hubs as the worker knows them. Only a job over several hubs has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Peers {
    /// `host:port` of each hub's control port, in the order of the shares. Hubs reach each other at these addresses.
    pub hubs: Vec<String>,
    /// The pass that hub 0 gave in its reply to this worker's join. A join to hub 0 itself has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pass: Option<Pass>,
}

/// Hub 0 gives this to a worker for the other hubs of the job.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pass {
    /// The job's secret: 32 hexadecimal digits. Hubs show it to each other.
    pub secret: String,
    /// The name of the worker at all hubs. It is never reused, so that no hub mistakes a new worker for a rank's former one.
    pub worker: u64,
    /// The round that the job began with: 0, or the latest round with a checkpoint at all hubs.
    pub first_round: Round,
    /// Whether hub 0 writes checkpoints: either all hubs of a job do, or none does.
    pub checkpoints: bool,
}

impl std::fmt::Debug for Pass {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The secret must not get into a log.
        let Pass { worker, first_round, .. } = self;
        f.debug_struct("Pass")
            .field("worker", worker)
            .field("first_round", first_round)
            .finish_non_exhaustive()
    }
}

/// `GET /v1/jobs/{job}/parts/{hub}/{hubs}`: the checkpoints that a hub has of its share. With `/{round}` after it, the hub
/// first reads its part of that round.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartsReply {
    /// Whether the hub writes checkpoints at all.
    pub keeps: bool,
    /// Rounds from one checkpoint to the next.
    pub every: Option<u32>,
    /// The rounds of its files, ascending.
    pub rounds: Vec<Round>,
    /// The damage of the part that the hub was asked to read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub damage: Option<String>,
}

/// `POST /v1/jobs/{job}/peers/hold`: finish no round until the release.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HoldRequest {
    /// The job's secret.
    pub secret: String,
    /// The number of the cut. It is greater than every earlier number.
    pub cut: u64,
}

/// The job is held.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldReply {
    /// The round of the hub's chunk that is furthest ahead; `None` if the hub owns no chunk.
    pub front: Option<Round>,
}

/// `POST /v1/jobs/{job}/peers/release`: continue after a hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReleaseRequest {
    /// The job's secret.
    pub secret: String,
    /// Number of the cut.
    pub cut: u64,
    /// The cut is before this round.
    pub from: Round,
    /// Workers that take part from that round on, by `worker` of their pass.
    #[serde(default)]
    pub admitted: Vec<u64>,
    /// Whether to write a checkpoint of the state before that round.
    #[serde(default)]
    pub snapshot: bool,
    /// Whether the job ends at the cut: chunks reach that round, and go no further.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ends: bool,
}

impl ReleaseRequest {
    /// Whether the release asks for nothing: the job continues as before the cut.
    pub fn asks_for_nothing(&self) -> bool {
        !self.snapshot && !self.ends && self.admitted.is_empty()
    }
}

/// `POST /v1/jobs/{job}/peers/written`: the hub replies when it has written its part of a checkpoint, or cannot write
/// it. It replies after `wait_ms` at the latest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WrittenRequest {
    /// The job's secret.
    pub secret: String,
    /// The checkpoint is of the state before this round. 0 means the part that is being taken now, if there is one.
    pub before: Round,
    /// The rounds that all hubs are known to have.
    pub whole: WholeRounds,
    /// The time that the hub may wait before it replies that the part is still being written.
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

/// The state of a part of a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PartState {
    /// Some chunks have not reached the part's round.
    #[default]
    Collecting,
    /// The part is being written to the disk.
    Writing,
    /// The part is on the disk, with this many bytes.
    Written(u64),
    /// There is no part, for this reason.
    Failed(String),
}

/// The rounds for which all hubs have a part.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WholeRounds {
    /// The latest of these rounds, ascending; at most two.
    pub rounds: Vec<Round>,
    /// No hub will write a part of this round or of an earlier one any more.
    pub decided: Option<Round>,
}

/// `POST /v1/jobs/{job}/peers/arrived`, to hub 0: all of a hub's cores have a worker's link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ArrivedRequest {
    /// The job's secret.
    pub secret: String,
    /// The hub that sends the request.
    pub hub: u32,
    /// The worker, by `worker` of its pass.
    pub worker: u64,
}

/// `POST /v1/jobs/{job}/peers/begins`, to hub 0: confirm that the job has not begun, and begins with this round.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BeginsRequest {
    /// The job's secret.
    pub secret: String,
    /// The round, as a worker's pass says.
    pub first_round: Round,
}

/// `POST /v1/jobs/{job}/peers/lost`: a hub has lost a worker, and the job continues without it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LostRequest {
    /// The job's secret.
    pub secret: String,
    /// The worker, by `worker` of its pass.
    pub worker: u64,
    /// The reason.
    pub reason: String,
}

/// `POST /v1/jobs/{job}/peers/checkpoint`, to hub 0: write a checkpoint of the job now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckpointRequest {
    /// The job's secret.
    pub secret: String,
    /// The time to wait for the round in flight.
    pub round_limit_ms: u64,
    /// Whether the job ends there, because a hub stops.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ends: bool,
}

/// `POST /v1/jobs/{job}/peers/failed`: the job has failed at a hub, so it fails at the receiving hub, too. Another hub
/// sends it to hub 0, and hub 0 sends it to all other hubs.
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
    /// Whether the job's last state may still be saved at this hub, because its cores hold the job.
    pub saves: bool,
    /// The rounds of the hub's chunks. Only from another hub than hub 0; nothing if it owns no chunk.
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

/// `POST /v1/jobs/{job}/peers/last`: save the last state of a job that has [failed](FailedRequest), and forget the job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LastRequest {
    /// The job's secret.
    pub secret: String,
    /// The state before this round, which no chunk of any hub is past; 0 if nothing is saved.
    pub before: Round,
    /// The way in which the job ended, for people.
    pub ended: String,
    /// The rounds that all hubs are known to have.
    pub whole: WholeRounds,
}

/// The reply to [`LastRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastReply {
    /// Length of the part that is on the disk; 0 if the hub owns no chunk, or nothing is saved.
    pub bytes: u64,
}
