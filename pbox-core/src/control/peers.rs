//! The words of hubs that share a job: what a worker carries from the first hub to the others, and what hubs ask of
//! each other. `docs/protocol.md` has the table of fields.
//!
//! Hub 0 leads. It gives each worker a [`Pass`], and the worker shows that at the other hubs. So all hubs of a job know
//! its secret, and a request without it is refused.

use serde::{Deserialize, Serialize};

use crate::layout::Round;

/// `peers` of a join: the job's hubs as the worker knows them. Only a job over several hubs has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Peers {
    /// `host:port` of each hub's control port, in the order of the shares. Hubs reach each other by these.
    pub hubs: Vec<String>,
    /// What hub 0 answered to this worker's join. Hub 0 itself is asked without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pass: Option<Pass>,
}

/// What hub 0 gives a worker for the other hubs of the job.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pass {
    /// The job's secret: 32 hexadecimal digits. Hubs show it to each other.
    pub secret: String,
    /// Names the worker at all hubs. Never used again, so that a rank's former worker is not taken for the new one.
    pub worker: u64,
    /// The round that the job began with: 0, or the latest that all hubs have a checkpoint of.
    pub first_round: Round,
    /// Whether hub 0 writes checkpoints: all hubs of a job do, or none.
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

/// `GET /v1/jobs/{job}/parts/{hub}/{hubs}`: the checkpoints that a hub has of its share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartsReply {
    /// Whether the hub writes checkpoints at all.
    pub keeps: bool,
    /// Every how many rounds.
    pub every: Option<u32>,
    /// The rounds of its files, ascending.
    pub rounds: Vec<Round>,
}

/// `POST /v1/jobs/{job}/peers/hold`: finish no round until the release.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HoldRequest {
    /// Of the job.
    pub secret: String,
    /// Number of the cut; each is above the one before.
    pub cut: u64,
}

/// The job is held.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldReply {
    /// The round of the hub's chunk that is furthest ahead; nothing where it owns no chunk.
    pub front: Option<Round>,
}

/// `POST /v1/jobs/{job}/peers/release`: go on after a hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReleaseRequest {
    /// Of the job.
    pub secret: String,
    /// Number of the cut.
    pub cut: u64,
    /// The cut is before this round.
    pub from: Round,
    /// Workers that take part from that round on, by the name in their pass.
    #[serde(default)]
    pub admitted: Vec<u64>,
    /// Whether to write a checkpoint of the state before that round.
    #[serde(default)]
    pub snapshot: bool,
}

/// `POST /v1/jobs/{job}/peers/written`: answered when the hub has written its part of a checkpoint or cannot, and now
/// and then before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WrittenRequest {
    /// Of the job.
    pub secret: String,
    /// The checkpoint is of the state before this round; 0 stands for the part that is under way now, if there is one.
    pub before: Round,
    /// What is known of all hubs' files.
    pub whole: WholeRounds,
    /// How long the hub may wait before it answers that the part is under way.
    pub wait_ms: u64,
}

/// The answer to [`WrittenRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrittenReply {
    /// The rounds of the hub's files, ascending.
    pub rounds: Vec<Round>,
    /// What became of the part.
    pub part: PartState,
}

/// How a part of a checkpoint is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PartState {
    /// Not all chunks have come to its round.
    #[default]
    Collecting,
    /// It is on its way to the disk.
    Writing,
    /// It is on the disk: so many bytes.
    Written(u64),
    /// There is none, and why.
    Failed(String),
}

/// Which rounds all hubs have a part of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WholeRounds {
    /// The latest of these rounds, ascending; at most two.
    pub rounds: Vec<Round>,
    /// No hub will write a part of this round or of an earlier one any more.
    pub decided: Option<Round>,
}

/// `POST /v1/jobs/{job}/peers/arrived`, to hub 0: all of the hub's cores have a worker's link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ArrivedRequest {
    /// Of the job.
    pub secret: String,
    /// Which hub says so.
    pub hub: u32,
    /// The worker, by the name in its pass.
    pub worker: u64,
}

/// `POST /v1/jobs/{job}/peers/lost`: a hub has lost a worker, and the job goes on without it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LostRequest {
    /// Of the job.
    pub secret: String,
    /// The worker, by the name in its pass.
    pub worker: u64,
    /// Why.
    pub reason: String,
}

/// `POST /v1/jobs/{job}/peers/checkpoint`, to hub 0: write a checkpoint of the job now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckpointRequest {
    /// Of the job.
    pub secret: String,
    /// How long to wait for the round in flight.
    pub round_limit_ms: u64,
}
