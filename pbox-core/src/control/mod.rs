//! The requests and replies of the control port: JSON bodies that hub and workers exchange over HTTP.
//!
//! Plain data, spoken by both roles and by people with `curl`; `docs/protocol/control-port.md` shows examples.
//! Unknown fields are refused, so that a misspelt setting is not ignored silently.

mod address;
mod answer;
mod hub;
mod known;
mod left;
mod mesh;
mod numbers;
mod only;
mod parse;
mod peers;
mod reason;
mod refusal;
mod rounds;
mod versions;

pub use address::{NotAnAddress, check_address, host_of, ip_of};
pub use answer::{Answer, MAX_PORTS};
pub use hub::{
    CoreReply, CountsReply, HubReply, JobReply, LinkReply, LostReply, MemberReply, NicReply, ReadersReply,
    RefusalReply,
};
pub use left::{Behind, Left, LeftAt, MAX_BEHIND};
pub use mesh::{Machine, MeetReply, MeetRequest, Mesh, NotAMachine};
pub use numbers::{LearningRateRequest, OptimizerRequest};
pub use only::{Only, StateQuery};
pub use parse::{ParseError, parse, parse_from_hub, parse_join, parse_versioned};
pub use peers::{
    ArrivedRequest, BeginsRequest, CheckpointRequest, FailedReply, FailedRequest, HoldReply, HoldRequest,
    LastReply, LastRequest, LostRequest, PartState, PartsReply, Pass, Peers, ReleaseRequest, RoundsInFlight,
    WholeRounds, WrittenReply, WrittenRequest,
};
pub use reason::{MAX_REASON_BYTES, reason};
pub use refusal::{ErrorReply, RefusalCode};
pub use rounds::{
    GradientNorm, GradientsReply, LATENESS_BOUNDS_US, LatenessReply, Latest, MAX_PATH, RankReply, RoundsReply,
};
pub use versions::{PROTOCOL, PROTOCOL_LOWEST, Versions};

/// The header of a request with the machine name that the client reports, for people. It proves nothing.
pub const HOST_HEADER: &str = "phub-host";

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use fabric::any::Transport;
use serde::{Deserialize, Serialize};

use crate::job::JobTerms;
use crate::layout::Round;
use crate::place::{Above, CoreNodes};

/// The longest name of a job.
pub const MAX_JOB_NAME_BYTES: usize = 64;

/// A name that no job can have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("job name {seen:?}: expected 1 to {MAX_JOB_NAME_BYTES} letters, digits, dots, dashes or underscores")]
pub struct InvalidJobName {
    seen: String,
}

/// Checks that a job can have this name: it is a part of URLs, logs and file names.
pub fn check_job_name(name: &str) -> Result<(), InvalidJobName> {
    let letter = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if (1..=MAX_JOB_NAME_BYTES).contains(&name.len()) && name.chars().all(letter) {
        return Ok(());
    }
    // The name comes from outside. The error repeats enough of it for recognition.
    Err(InvalidJobName { seen: name.chars().take(MAX_JOB_NAME_BYTES + 1).collect() })
}

/// `POST /v1/jobs/{job}/join`: a worker asks to take part. The first worker creates the job. Later workers must give the
/// same terms.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JoinRequest {
    /// The newest version that the worker speaks.
    pub protocol: u32,
    /// The oldest version, if it is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol_lowest: Option<u32>,
    /// This worker's number, from 0.
    pub rank: u32,
    /// The number of this hub among the job's hubs, from 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub hub: u32,
    /// The [`HubReply::id`] of each hub below through which the job has passed. So a circle of hubs is detected.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub through: Vec<String>,
    /// The mesh of hubs on several machines that this hub belongs to in this job, if it belongs to one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mesh: Option<Mesh>,
    /// The job's other hubs, if it has any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peers: Option<Peers>,
    /// The first round without an answer plus the rounds that were lost with hubs before. Only from a worker that lost this
    /// job's hub and joins again. The sum is the same for all workers, whether or not they know of the hub's last return.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reached: Option<Round>,
    /// Whether the worker makes new links when it loses links while the hub is alive, by a [`RelinkRequest`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub relinks: bool,
    /// Whether the job is a trial, such as a probe's: the hub neither reads nor writes checkpoints of it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub trial: bool,
    /// The terms on which all ends of the job agree.
    pub terms: JobTerms,
}

impl JoinRequest {
    /// Creates a plain request of a worker at the job's only hub, or at its first hub.
    pub fn new(rank: u32, terms: JobTerms) -> Self {
        JoinRequest {
            protocol: PROTOCOL,
            protocol_lowest: Versions::OURS.lowest_of_several(),
            rank,
            hub: 0,
            through: Vec::new(),
            mesh: None,
            peers: None,
            reached: None,
            relinks: false,
            trial: false,
            terms,
        }
    }

    /// Returns the versions that the worker speaks.
    pub fn versions(&self) -> Versions {
        Versions::of(self.protocol, self.protocol_lowest)
    }
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// The hub accepts a join.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinReply {
    /// The version that both ends use from now on: the highest that both speak.
    pub protocol: u32,
    /// The name of this worker from now on: 32 hexadecimal digits.
    pub token: String,
    /// Numbers of the hub's cores that own the job's chunks, in the order of the placement's cores.
    pub cores: Vec<u32>,
    /// The NUMA nodes of these cores, if there are several nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<CoreNodes>,
    /// [`Placement::digest`](crate::Placement::digest) of the hub's share of the job.
    pub placement: String,
    /// The hubs above, if the hub is below others: they decide on the placement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub above: Option<Above>,
    /// The number of all cores of the hub.
    pub ports: u32,
    /// The address of the data path, for each transport that the hub offers.
    pub transports: Vec<TransportAddress>,
    /// The time without a heartbeat after which the hub declares a worker dead.
    pub heartbeat_limit_ms: u64,
    /// The pass from hub 0 of several, which the worker shows at the other hubs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pass: Option<Pass>,
    /// Whether the hub waits for new links of a worker that has lost its links.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub relinks: bool,
    /// Whether the hub answers bytes ahead. A worker then sends bytes ahead only if it lets the hub write its weights early.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub answers_ahead: bool,
}

impl JoinReply {
    /// Returns how long the hub tolerates a member's silence.
    pub fn limit(&self) -> Duration {
        Duration::from_millis(self.heartbeat_limit_ms)
    }
}

/// `POST /v1/jobs/{job}/relink`: a worker has lost its links, for example with a NIC, and makes new ones. The answer is
/// that of a join, with a token that is valid for one connection. When it comes, the hub has released the old links and
/// waits for the new ones. The worker then pushes again all rounds that have no answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RelinkRequest {
    /// The token of the join. It is only in the header of the request, and a token in the body is ignored.
    #[serde(default, skip_serializing)]
    pub token: String,
    /// The reason why the old links ended, in words.
    pub why: String,
}

/// `POST /v1/jobs/{job}/offer`: rank 0 has the weights and the optimizer state before a round, with which a new job can
/// begin. It is sent to every hub of the job, after the join and before the links are made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OfferRequest {
    /// The token of the join. It is only in the header of the request, and a token in the body is ignored.
    #[serde(default, skip_serializing)]
    pub token: String,
    /// The round that the job would begin with.
    pub state_before: Round,
    /// The number of steps of each key. Without it, a key has made one step in each round after the broadcast.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<Vec<u32>>,
}

/// The hub's reply to the offer of a state: whether the job wants it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfferReply {
    /// The number of bytes of the state for which this hub now waits. `None` if the job has a state of its own, or gets one
    /// from another machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_bytes: Option<u64>,
}

/// `POST /v1/jobs/{job}/state?token=...`: the state has arrived.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateReply {
    /// The round that the job begins with.
    pub round: Round,
}

/// How to reach the hub's data path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "transport", rename_all = "lowercase")]
pub enum TransportAddress {
    /// Shared memory, by the name of an abstract Unix socket.
    Shm {
        /// The machine, as [`machine`](fabric::any::machine) names it. A process on this machine can use the transport.
        machine: String,
        /// The name.
        address: String,
    },
    /// RDMA.
    Verbs {
        /// TCP address of its handshake. All zeros stands for the address of the control port.
        address: SocketAddr,
    },
    /// TCP.
    Tcp {
        /// Address at which each of the hub's ports listens. All zeros stands for the address of the control port.
        addresses: Vec<SocketAddr>,
    },
}

impl TransportAddress {
    /// Returns the transport of this address.
    pub fn transport(&self) -> Transport {
        match self {
            TransportAddress::Shm { .. } => Transport::Shm,
            TransportAddress::Verbs { .. } => Transport::Verbs,
            TransportAddress::Tcp { .. } => Transport::Tcp,
        }
    }
}

/// `POST /v1/jobs/{job}/heartbeat`: the worker is alive. The hub answers at once if its news are newer than `seen`.
/// Otherwise it answers when there are news, or after a third of the limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeartbeatRequest {
    /// The token of the join. It is only in the header of the request, and a token in the body is ignored.
    #[serde(default, skip_serializing)]
    pub token: String,
    /// `version` of the last reply, 0 at first.
    pub seen: u64,
    /// The late one of a hub's own workers, if one is late, from a hub below.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latest: Option<Latest>,
}

/// News of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeartbeatReply {
    /// Grows with every change.
    pub version: u64,
    /// The job's state.
    pub state: JobState,
    /// Workers that take part, by rank.
    pub members: Vec<Member>,
    /// Workers that left a job that cannot continue without them.
    pub left: Vec<Left>,
    /// Workers for which other workers have waited too long.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub held_up_by: Vec<Late>,
    /// The highest round that a worker had [reached](JoinRequest::reached), of the workers that joined again after they lost
    /// the hub. The rounds between the job's first round and this one are lost, in addition to those lost before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reached: Option<Round>,
    /// The number of rounds lost, for workers that join without having lost a hub.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub lost: u32,
    /// The last worker that the hub refused, and the reason, while other workers wait for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// A worker that is alive and lacks a push that other workers have made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Late {
    /// The rank, at the hub that reports it.
    pub rank: u32,
    /// The name in words: a worker, or the hub of a machine.
    pub who: String,
    /// The lowest round that waits for it.
    pub round: Round,
    /// Chunks that wait for the worker.
    pub chunks: u32,
    /// The time for which nothing has moved.
    pub seconds: u64,
}

impl fmt::Display for Late {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Late { who, round, chunks, seconds, .. } = self;
        write!(
            f,
            "{who} lives and holds up round {}: {chunks} chunk(s) have waited for its push for {seconds} s",
            round.0
        )
    }
}

/// A worker that takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// The rank.
    pub rank: u32,
    /// The first round. If it is not 0, the worker begins with the weights of the round before.
    pub from: Round,
}

/// The state of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub enum JobState {
    /// Some workers have not joined yet.
    Gathering {
        /// The ranks.
        missing: Vec<u32>,
        /// The machines that lack a ready hub at the hubs above, if no rank is missing at this hub.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        machines: Vec<u32>,
    },
    /// All workers have joined.
    Running,
    /// The job cannot continue.
    Failed {
        /// The reason, which names the rank.
        reason: String,
        /// Whether the job failed because a hub of it stops or is lost. The job may continue when that hub returns.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        hub_stops: bool,
    },
}

/// Returns a text that names the missing members of a job of this many workers: ranks, or else machines.
pub fn missing(ranks: &[u32], machines: &[u32], workers: u32) -> String {
    match ranks.is_empty() && !machines.is_empty() {
        true => format!("machine(s) {machines:?}, where the hub or some workers are missing"),
        false => format!("worker(s) {ranks:?} of {workers} to join"),
    }
}

/// `POST /v1/jobs/{job}/ready`: all members of a hub below have joined, and it may take part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReadyRequest {
    /// The token of the join. It is only in the header of the request, and a token in the body is ignored.
    #[serde(default, skip_serializing)]
    pub token: String,
    /// The highest round that a member had reached, as in its join, if the members had lost a hub.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reached: Option<Round>,
}

/// `POST /v1/jobs/{job}/leave`: the worker is done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeaveRequest {
    /// The token of the join. It is only in the header of the request, and a token in the body is ignored.
    #[serde(default, skip_serializing)]
    pub token: String,
    /// The first round without the worker.
    pub round: Round,
    /// Keys with a lower round, as in [`LeftAt`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub behind: Vec<Behind>,
    /// The reason why a worker fails (a [`reason`]), or why the job of a hub below has failed. Or the way in which a worker
    /// lost another hub of the job. The job fails at this hub, too, or continues without that member.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
    /// Whether `failed` is about a hub that stops or is lost. The job may continue when that hub returns.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hub_lost: bool,
    /// Whether a hub below stops. The job then ends between two rounds, before this request is answered, and nothing is lost.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stops: bool,
    /// Whether the job was a trial. If it ends with this worker, no checkpoint is written.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub was_trial: bool,
}

/// The answer to a leave.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaveReply {
    /// The reason why the state at the job's end is in no checkpoint, if the hub writes checkpoints. For the last
    /// worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_error: Option<String>,
}

/// `POST /v1/jobs/{job}/compare`: a digest of weights that should be the same at all workers: the weights before a round,
/// or those that workers write in it. The hub answers at once. The job fails if all workers' digests have arrived and
/// differ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CompareRequest {
    /// The token of the join. It is only in the header of the request, and a token in the body is ignored.
    #[serde(default, skip_serializing)]
    pub token: String,
    /// The round.
    pub round: Round,
    /// The sum, modulo 2^64, of the keys' XXH3 digests of 64 bits. The seed of each is the key's number, and its bytes are
    /// those of the key's weights.
    pub digest: u64,
    /// Whether the digest is of the weights that the worker writes in this round, over the keys that it writes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub written: bool,
}

/// `POST /v1/jobs/{job}/stop`: the job has been stopped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopReply {
    /// The checkpoint that was written before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointReply>,
    /// The reason why no checkpoint was written, if the hub writes checkpoints.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_error: Option<String>,
}

/// `POST /v1/drain`: the hub takes no more jobs, and ends when its last job ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainReply {
    /// The jobs that still run.
    pub jobs: Vec<String>,
}

/// `GET /v1/clock`: the hub's clock, for timelines of several machines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockReply {
    /// The identity of the clock: times of clocks with one id can be compared.
    pub id: String,
    /// The time, in nanoseconds.
    pub ns: u64,
}

/// `POST /v1/jobs/{job}/checkpoint`: the reply describes a checkpoint that is on the disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointReply {
    /// The first round of a job that continues from the checkpoint.
    pub round: Round,
    /// Length of the checkpoint's file.
    pub bytes: u64,
    /// Duration of the write.
    pub milliseconds: u64,
    /// The reason why the attempt before this one failed or was skipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_before: Option<String>,
}
