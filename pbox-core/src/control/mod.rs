//! The requests and replies of the control port: JSON bodies that hubs and workers exchange over HTTP.
//!
//! Plain data, also for people with `curl`; `docs/protocol/control-port.md` has examples. Unknown fields are refused, so
//! that a misspelt setting is not ignored silently. From a sender with a newer version, some unknown fields are ignored.

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
mod priorities;
mod reason;
mod refusal;
mod rounds;
mod versions;

pub use address::{NotAnAddress, check_address, host_of, ip_of};
pub use answer::{Answer, MAX_PORTS};
pub use hub::{
    CoreReply, CountsReply, Followed, HubReply, JobReply, LinkReply, LostReply, MemberReply, NicReply,
    ReadersReply, RefusalReply,
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
pub use priorities::PrioritiesRequest;
pub use reason::{MAX_REASON_BYTES, reason};
pub use refusal::{ErrorReply, RefusalCode};
pub use rounds::{
    GradientNorm, GradientsReply, LATENESS_BOUNDS_US, LatenessReply, Latest, MAX_PATH, RankReply, RoundsReply,
};
pub use versions::{PROTOCOL, PROTOCOL_LOWEST, Versions};

/// The header with the machine name that a client reports. The name is for people, and proves nothing.
pub const HOST_HEADER: &str = "phub-host";

/// The header with the id of the process that reads a state. It distinguishes the readers of one machine, and proves
/// nothing.
pub const READER_HEADER: &str = "phub-reader";

/// The header for memory that a reader of a state lends. In a request it has the token of the loan, as 32 hexadecimal digits. In an
/// answer it has the number of bytes of values that are in this memory, and so not in the answer.
pub const MEMORY_HEADER: &str = "phub-memory";

/// The header with the TCP port at which a reader that lends memory waits for a hub's handshake over RDMA.
pub const MEMORY_PORT_HEADER: &str = "phub-memory-port";

/// The header of a reader that wants deltas: the differences from a state that it has. It has the digest of this state's file, or
/// `none` if the reader has no state yet.
pub const BASE_HEADER: &str = "phub-base";

/// The header of an answer that has deltas in place of values: the number of deltas, a comma, and the length of the whole file.
pub const DELTAS_HEADER: &str = "phub-deltas";

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use fabric::any::Transport;
use serde::{Deserialize, Serialize};

use crate::job::JobTerms;
use crate::layout::Round;
use crate::place::{Above, JobCores};

/// The length limit of a job's name, in bytes.
pub const MAX_JOB_NAME_BYTES: usize = 64;

/// An error: no job can have this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "job name {seen:?}: expected 1 to {MAX_JOB_NAME_BYTES} letters, digits, dots, dashes or underscores, first no dot or dash"
)]
pub struct InvalidJobName {
    seen: String,
}

/// Checks that a job can have this name. The name becomes a part of URLs, logs and file names. A file whose name begins
/// with a dot is hidden, and a program reads a name that begins with a dash as an option.
pub fn check_job_name(name: &str) -> Result<(), InvalidJobName> {
    let letter = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let may_begin = !name.starts_with(['.', '-']);
    if may_begin && (1..=MAX_JOB_NAME_BYTES).contains(&name.len()) && name.chars().all(letter) {
        return Ok(());
    }
    // The name comes from outside. The error repeats only its beginning.
    Err(InvalidJobName { seen: name.chars().take(MAX_JOB_NAME_BYTES + 1).collect() })
}

/// `POST /v1/jobs/{job}/join`: a worker asks to take part. The first worker creates the job. Every later worker must state
/// the same terms.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JoinRequest {
    /// The newest version that the worker speaks.
    pub protocol: u32,
    /// The oldest version that the worker speaks, if it differs from the newest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol_lowest: Option<u32>,
    /// The worker's rank, from 0.
    pub rank: u32,
    /// The number of this hub among the job's hubs, from 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub hub: u32,
    /// The [`HubReply::id`] of each hub below that has passed this join on. With it, a hub detects a circle of hubs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub through: Vec<String>,
    /// The mesh to which this hub belongs in this job, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mesh: Option<Mesh>,
    /// The addresses of all hubs of the job, if it has several, and the worker's pass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peers: Option<Peers>,
    /// The worker's first round without an answer, plus the number of rounds that were lost with earlier hubs. Only from
    /// a worker that lost this job's hub and joins again. The sum is the same for all workers, also for those that
    /// joined after an earlier loss of a hub.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reached: Option<Round>,
    /// Whether the worker reconnects with a [`RelinkRequest`] if it loses its links while the hub is alive.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub relinks: bool,
    /// Whether the job is a trial, for example of a probe. The hub neither reads nor writes checkpoints of a trial.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub trial: bool,
    /// The terms on which all ends of the job agree.
    pub terms: JobTerms,
}

impl JoinRequest {
    /// Creates the request of a worker to the job's only hub or to its first hub, without optional fields.
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
    /// The version that both ends use from now on: the highest that both ends speak.
    pub protocol: u32,
    /// The name of this worker in its requests: 32 hexadecimal digits.
    pub token: String,
    /// The numbers of the hub's cores that own chunks of the job, in the order of the placement's cores.
    pub cores: Vec<u32>,
    /// The NUMA nodes of these cores, if there are several nodes, and the speeds of these cores, if they differ.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<JobCores>,
    /// The [`Placement::digest`](crate::Placement::digest) of the hub's share of the job.
    pub placement: String,
    /// The hubs above, which decide on the placement. `None` if the hub is not below other hubs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub above: Option<Above>,
    /// The number of the hub's ports: one for each core of the hub, also for cores without chunks of the job.
    pub ports: u32,
    /// The address of the data path, for each transport that the hub offers.
    pub transports: Vec<TransportAddress>,
    /// The time without a heartbeat after which the hub counts a worker as lost, in milliseconds.
    pub heartbeat_limit_ms: u64,
    /// The pass of hub 0, in a job over several hubs. The worker shows it to the other hubs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pass: Option<Pass>,
    /// Whether the hub waits for a worker that has lost its links to reconnect.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub relinks: bool,
    /// Whether the hub answers [bytes ahead](crate::Content::Ahead), which arrive before their push. The answer overwrites
    /// the worker's weights early, so a worker may choose to send no bytes ahead.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub answers_ahead: bool,
}

impl JoinReply {
    /// Returns the time for which the hub tolerates a member's silence.
    pub fn limit(&self) -> Duration {
        Duration::from_millis(self.heartbeat_limit_ms)
    }
}

/// `POST /v1/jobs/{job}/relink`: a worker has lost its links, for example by the fault of a NIC, and reconnects. The answer
/// has the form of a [`JoinReply`], with a token for one connection. The hub first releases the old links, then answers,
/// and then waits for the new links. The worker pushes again all rounds that have no answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RelinkRequest {
    /// The token of the worker's join. It is sent only in the header of the request; a token in the body is ignored.
    #[serde(default, skip_serializing)]
    pub token: String,
    /// The reason why the old links ended, in words.
    pub why: String,
}

/// `POST /v1/jobs/{job}/offer`: rank 0 has the weights and the optimizer state before a round, and a new job can begin with
/// them. The request goes to every hub of the job, after the join and before the worker connects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OfferRequest {
    /// The token of the worker's join. It is sent only in the header of the request; a token in the body is ignored.
    #[serde(default, skip_serializing)]
    pub token: String,
    /// The round with which the job would begin.
    pub state_before: Round,
    /// The number of steps of each key. Without this field, a key has made one step in each round after the broadcast.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<Vec<u32>>,
}

/// The hub's reply to the offer of a state: whether the job wants it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfferReply {
    /// The length in bytes of the state for which this hub now waits. `None` if the job has its own state, or gets one from
    /// another machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_bytes: Option<u64>,
}

/// The reply to `POST /v1/jobs/{job}/state`: the state has arrived.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateReply {
    /// The round with which the job begins.
    pub round: Round,
}

/// The address of the hub's data path, for one transport.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "transport", rename_all = "lowercase")]
pub enum TransportAddress {
    /// Shared memory, by the name of an abstract Unix socket.
    Shm {
        /// The machine's name, from [`machine`](fabric::any::machine). Only a process on this machine can use this
        /// transport.
        machine: String,
        /// The name of the socket.
        address: String,
    },
    /// RDMA.
    Verbs {
        /// The TCP address of the RDMA handshake. All zeros stands for the address of the control port.
        address: SocketAddr,
    },
    /// TCP.
    Tcp {
        /// The address at which each of the hub's ports listens. All zeros stands for the address of the control port.
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

/// `POST /v1/jobs/{job}/heartbeat`: the worker is alive. If the hub has newer news than `seen`, it answers at once.
/// Otherwise it answers when there is news, or after a third of the heartbeat limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeartbeatRequest {
    /// The token of the worker's join. It is sent only in the header of the request; a token in the body is ignored.
    #[serde(default, skip_serializing)]
    pub token: String,
    /// The `version` of the last reply; 0 at first.
    pub seen: u64,
    /// The worker that delays the sending hub, if any. Only hubs below other hubs send this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latest: Option<Latest>,
}

/// The news of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeartbeatReply {
    /// The version of the news. It grows with every change.
    pub version: u64,
    /// The job's state.
    pub state: JobState,
    /// The workers that take part, by rank.
    pub members: Vec<Member>,
    /// The workers that have left, in a job that cannot continue without them.
    pub left: Vec<Left>,
    /// The late workers: other workers have waited for these workers for too long.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub held_up_by: Vec<Late>,
    /// The highest round that a worker had [reached](JoinRequest::reached), among the workers that joined again after they
    /// lost the hub. The rounds from the job's first round to that round are lost, in addition to earlier losses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reached: Option<Round>,
    /// The number of lost rounds, for workers that join without having lost a hub.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub lost: u32,
    /// The last worker that the hub refused, and the reason. Only while other workers wait for this worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// A late worker: it is alive, but has not pushed a chunk that other workers have pushed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Late {
    /// The worker's rank at the hub that reports the worker.
    pub rank: u32,
    /// A description of the worker, or of a machine's hub, for people.
    pub who: String,
    /// The lowest round for which the worker owes a push.
    pub round: Round,
    /// The number of chunks that wait for the worker.
    pub chunks: u32,
    /// The time since any chunk last got a push or ended a round, in seconds.
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
    /// The first round in which the worker takes part. If it is not 0, the worker begins with the weights before that
    /// round.
    pub from: Round,
}

/// The state of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub enum JobState {
    /// Some workers have not joined yet.
    Gathering {
        /// The ranks that have not joined.
        missing: Vec<u32>,
        /// The machines whose hubs are not ready at the hubs above. Empty while a rank is missing at this hub.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        machines: Vec<u32>,
    },
    /// All workers have joined, and the job has begun.
    Running,
    /// The job cannot continue.
    Failed {
        /// The reason, which names the rank.
        reason: String,
        /// Whether the job failed because one of its hubs stops or is lost. The job may continue after that hub was restarted.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        hub_stops: bool,
    },
}

/// Describes the missing members of a job with this number of workers: ranks, or machines if no rank is missing.
pub fn missing(ranks: &[u32], machines: &[u32], workers: u32) -> String {
    match ranks.is_empty() && !machines.is_empty() {
        true => format!("machine(s) {machines:?}, where the hub or some workers are missing"),
        false => format!("worker(s) {ranks:?} of {workers} to join"),
    }
}

/// `POST /v1/jobs/{job}/ready`: all members of a hub below have joined, so the hub may take part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReadyRequest {
    /// The token of the worker's join. It is sent only in the header of the request; a token in the body is ignored.
    #[serde(default, skip_serializing)]
    pub token: String,
    /// The highest round that any member had [reached](JoinRequest::reached), if members have joined again after the
    /// loss of a hub.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reached: Option<Round>,
}

/// `POST /v1/jobs/{job}/leave`: the worker leaves the job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeaveRequest {
    /// The token of the worker's join. It is sent only in the header of the request; a token in the body is ignored.
    #[serde(default, skip_serializing)]
    pub token: String,
    /// The first round without the worker.
    pub round: Round,
    /// Runs of keys with a lower round, as in [`LeftAt`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub behind: Vec<Behind>,
    /// The reason why the worker leaves: its own failure (a [`reason`]), the job's failure at a hub below, or the loss of
    /// another hub. The job then fails at this hub, too, or continues without the member.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
    /// Whether `failed` reports that a hub stops or is lost. The job may continue after that hub was restarted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hub_lost: bool,
    /// Whether a hub below is stopping. The job then ends between two rounds before this request is answered, so that
    /// nothing is lost.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stops: bool,
    /// Whether the job was a trial. If it ends with this worker, no checkpoint is written.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub was_trial: bool,
}

/// The reply to a leave.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaveReply {
    /// The reason why the job's last state is in no checkpoint, if the hub writes checkpoints. Only for the last worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_error: Option<String>,
}

/// `POST /v1/jobs/{job}/compare`: the digest of weights that all workers should have in common. They are the weights before
/// a round, or the weights that workers write in the round. The hub answers at once. If the digests of all workers have
/// arrived and differ, the job fails.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CompareRequest {
    /// The token of the worker's join. It is sent only in the header of the request; a token in the body is ignored.
    #[serde(default, skip_serializing)]
    pub token: String,
    /// The round.
    pub round: Round,
    /// The sum, modulo 2^64, of the 64-bit XXH3 digests of the keys. The digest of a key has the key's number as its seed,
    /// and covers the bytes of the key's weights.
    pub digest: u64,
    /// Whether the digest covers the weights that the worker writes in this round, over the keys that it writes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub written: bool,
}

/// The reply to `POST /v1/jobs/{job}/stop`: the job is stopped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopReply {
    /// The checkpoint that was written before the stop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointReply>,
    /// The reason why no checkpoint was written, if the hub writes checkpoints.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_error: Option<String>,
}

/// The reply to `POST /v1/drain`: the hub takes no more jobs, and ends when its last job ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainReply {
    /// The names of the jobs that still run.
    pub jobs: Vec<String>,
}

/// The reply to `GET /v1/clock`: the time of the hub's clock, for timelines of several machines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockReply {
    /// The identity of the clock. Times can be compared if their clocks have the same identity.
    pub id: String,
    /// The time, in nanoseconds.
    pub ns: u64,
}

/// The reply to `POST /v1/jobs/{job}/checkpoint`: it describes a checkpoint that is on the disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointReply {
    /// The first round of a job that continues from the checkpoint.
    pub round: Round,
    /// The length of the checkpoint's file, in bytes.
    pub bytes: u64,
    /// The duration of the write, in milliseconds.
    pub milliseconds: u64,
    /// The reason why the previous attempt failed or was skipped, if there is such a reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_before: Option<String>,
}
