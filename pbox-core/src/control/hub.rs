//! The description of a hub and of its jobs: the reply to `GET /v1/hub`.
//!
//! Plain data. `docs/protocol/control-port.md#hub` has an example.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::{
    CheckpointReply, GradientsReply, JobState, Late, Latest, Machine, RoundsReply, TransportAddress,
};
use crate::layout::Round;

/// `GET /v1/hub`: the state of the hub.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HubReply {
    /// The newest version of the protocol that the hub speaks.
    pub protocol: u32,
    /// The oldest version of the protocol that the hub speaks. Without this field, the hub speaks only the newest version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol_lowest: Option<u32>,
    /// The version of the program.
    pub version: String,
    /// The id of this run of the hub: 32 hexadecimal digits. After a restart, the hub has another id.
    #[serde(default)]
    pub id: String,
    /// The instruction set of the hub's kernels.
    pub kernels: String,
    /// The resident memory of the hub's process, in bytes.
    pub rss_bytes: u64,
    /// Whether the hub takes no more jobs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub draining: bool,
    /// The number of this hub's machine among the members of the hubs above, if the settings name hubs above.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<Machine>,
    /// The address of the hub's data path, for each transport that it offers.
    pub transports: Vec<TransportAddress>,
    /// The counts of events since the hub's start. Without this field, all counts are zero.
    #[serde(default)]
    pub counts: CountsReply,
    /// The hub's cores, in the order of their numbers.
    pub cores: Vec<CoreReply>,
    /// The ports of the NICs that the hub's cores use, with RDMA.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nics: Vec<NicReply>,
    /// The jobs.
    pub jobs: Vec<JobReply>,
    /// The last joins that the hub refused, and the last requests without the necessary right, the newest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refusals: Vec<RefusalReply>,
    /// Whether the hub records a timeline, which `GET /v1/trace` sends.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub timeline: bool,
}

impl HubReply {
    /// Returns the job of this name. Failed jobs stay in the reply for a while, and a later job may have the same name.
    /// So a failed job counts only if no other job has the name.
    pub fn job(&self, name: &str) -> Option<&JobReply> {
        let of_name = || self.jobs.iter().filter(|job| job.name == name);
        of_name().find(|job| !job.has_failed()).or_else(|| of_name().next_back())
    }
}

/// A refused request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusalReply {
    /// The time since the request was last refused, in seconds.
    pub ago_s: u64,
    /// The number of refusals of this same request.
    pub times: u64,
    /// The address from which the request came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The machine name that the client reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The job that the client named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    /// The reason, in words.
    pub why: String,
}

/// Writes the refusal in one line.
impl fmt::Display for RefusalReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} s ago, {}", self.ago_s, place(self.address.as_deref(), self.host.as_deref()))?;
        self.job.as_ref().map_or(Ok(()), |job| write!(f, ", job {job:?}"))?;
        if self.times > 1 {
            write!(f, ", {} times", self.times)?;
        }
        write!(f, ": {}", self.why)
    }
}

/// Describes a client by its address and machine name: `10.0.0.5 (node7)`.
fn place(address: Option<&str>, host: Option<&str>) -> String {
    let address = address.unwrap_or("nowhere");
    host.map_or_else(|| address.to_owned(), |host| format!("{address} ({host})"))
}

/// The counts of events at the hub since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CountsReply {
    /// The number of workers and of hubs below that joined.
    pub joins: u64,
    /// The number of refused joins. A join without the necessary right is not counted.
    pub refused_joins: u64,
    /// The number of lost members by cause, whether their jobs continued or failed.
    pub lost: LostReply,
    /// The number of jobs that failed.
    pub failed_jobs: u64,
    /// The number of times that a worker lost its links and asked to reconnect.
    #[serde(default)]
    pub relinks: u64,
}

/// The number of members that were lost, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostReply {
    /// Members whose link ended: the member exited, was killed or broke the protocol, or the network failed.
    pub link: u64,
    /// Members whose heartbeats stopped.
    pub silent: u64,
    /// Members that delayed a round for longer than the hub's limit.
    pub late: u64,
    /// Members that were lost at another hub of the job, and members that this hub could not admit.
    pub other: u64,
}

/// A port of a NIC that the hub uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NicReply {
    /// The name of the RDMA device.
    pub device: String,
    /// The number of the port.
    pub port: u8,
    /// The speed of the NIC's link in Mb/s, as its driver reports it. Hubs of older versions leave it out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mbps: Option<u32>,
    /// The reason why new jobs do not use the NIC, if they do not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<String>,
    /// The NIC's counters since its driver was loaded, for all users of the NIC. The names are those of the kernel.
    pub counters: BTreeMap<String, u64>,
}

/// One core of the hub.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoreReply {
    /// The processor to which the core's thread is pinned.
    pub cpu: u32,
    /// The name of the core's own NIC, if the hub uses RDMA. If the device has several ports, the port follows:
    /// `mlx4_0:2`. While this NIC is lost, other NICs serve the core; [`LinkReply::nic`] names them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nic: Option<String>,
    /// The number of chunks that were summed and sent back since the start.
    pub chunks: u64,
    /// The bytes of these chunks.
    pub chunk_bytes: u64,
    /// The time that the core's thread spent on work, in nanoseconds.
    pub busy_ns: u64,
    /// The time that the core's thread spent waiting for work, in nanoseconds.
    pub waiting_ns: u64,
    /// The part of the waiting time in which the core's thread slept, in nanoseconds.
    #[serde(default)]
    pub asleep_ns: u64,
    /// The number of answers and sums that waited before they were posted, because their link had no room or its credit
    /// was used up.
    #[serde(default)]
    pub held_back: u64,
}

/// One job of the hub.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobReply {
    /// The name.
    pub name: String,
    /// The state.
    #[serde(flatten)]
    pub state: JobState,
    /// The number of workers.
    pub workers: u32,
    /// The workers that have joined, by rank.
    #[serde(default)]
    pub members: Vec<MemberReply>,
    /// The round of the job at the hub's last check of its cores. The hub checks its cores every few seconds.
    #[serde(default)]
    pub round: Round,
    /// The last round before which all workers of the job had the same weights, if the workers compare weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub equal_before: Option<Round>,
    /// The memory that the hub reserves for the job, in bytes.
    #[serde(default)]
    pub promised_bytes: u64,
    /// The control ports of the hubs above, to which this hub sends the job's sums.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub above: Vec<String>,
    /// The number of keys.
    pub keys: usize,
    /// The size of the job's model, in bytes.
    pub model_bytes: u64,
    /// The last checkpoint since the job began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointReply>,
    /// The reason why the last attempt to write a checkpoint failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_error: Option<String>,
    /// The late workers: other workers have waited for these workers for too long.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub held_up_by: Vec<Late>,
    /// The reason why the job did not continue from its newest checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_warning: Option<String>,
    /// One line about the speed of the job's rounds, and about workers that are late.
    #[serde(default)]
    pub verdict: String,
    /// The speed of the last rounds. `None` until the hub has waited for a worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rounds: Option<RoundsReply>,
    /// The norms of the job's mean gradients. `None` until a round was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gradients: Option<GradientsReply>,
    /// The reads of the job's state. `None` until a client has asked for the state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub readers: Option<ReadersReply>,
}

impl JobReply {
    /// Whether the job has failed.
    pub fn has_failed(&self) -> bool {
        matches!(self.state, JobState::Failed { .. })
    }
}

/// The reads of a job's state through the control port, since the job began at this hub. Reads of only weights or averages
/// count, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadersReply {
    /// The number of readers that receive bytes now.
    pub now: u64,
    /// The number of reads that have begun.
    pub reads: u64,
    /// The number of copies of the state that were made. Readers that wait at the same time share a copy.
    pub copies: u64,
    /// The number of bytes that were sent to readers.
    pub bytes: u64,
    /// The number of bytes that were not sent, because deltas took their place.
    #[serde(default)]
    pub saved: u64,
    /// The number of requests that got no state.
    pub refused: u64,
    /// The number of reads that got the whole state.
    #[serde(default)]
    pub done: u64,
    /// The time from the end of the state's round to the last byte, in nanoseconds, summed over the reads that are done.
    #[serde(default)]
    pub delay_ns: u64,
    /// The round of the newest copy, which has the state before this round.
    pub round: Round,
    /// The progress of the fastest and of the slowest follower. `None` without followers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub followed: Option<Followed>,
}

/// The progress of a job's followers. A follower is a process that has read the state more than once, and that has
/// not been silent for an hour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Followed {
    /// The newest state that any follower has got: the state before this round.
    pub newest: Round,
    /// The newest state that the slowest follower has got: the state before this round.
    pub slowest: Round,
}

/// A worker that has joined.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberReply {
    /// The rank.
    pub rank: u32,
    /// The time since the worker's last heartbeat, in milliseconds.
    pub silent_ms: u64,
    /// The address from which the worker joined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The machine name that the worker reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The transport of the worker's links, once it has links.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transport: Option<String>,
    /// The bytes that have crossed the worker's links, by NIC, at the last check of the cores. Empty on shared memory.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<LinkReply>,
    /// The worker that delays this member, if the member is a hub and its last heartbeat reported such a worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latest: Option<Latest>,
}

impl MemberReply {
    /// Returns the member's address and machine name: `10.0.0.5 (node7)`.
    pub fn place(&self) -> String {
        place(self.address.as_deref(), self.host.as_deref())
    }
}

/// The bytes that have crossed a worker's links over one NIC of the hub, since the worker joined.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkReply {
    /// The name of the network interface or, as in [`CoreReply::nic`], of the NIC. Empty if the name is unknown.
    pub nic: String,
    /// The bytes sent to the worker.
    pub sent_bytes: u64,
    /// The bytes received from the worker.
    pub received_bytes: u64,
}
