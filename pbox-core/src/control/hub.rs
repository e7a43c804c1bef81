//! The description of a hub and its jobs: `GET /v1/hub`.
//!
//! Plain data. `docs/protocol/control-port.md#hub` has the table.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::{CheckpointReply, GradientsReply, JobState, Late, Latest, RoundsReply, TransportAddress};
use crate::layout::Round;

/// `GET /v1/hub`: the state of the hub.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HubReply {
    /// The newest version of the protocol that the hub speaks.
    pub protocol: u32,
    /// The oldest version. Hubs that leave it out speak one version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol_lowest: Option<u32>,
    /// Version of the program.
    pub version: String,
    /// A name for this start of the hub: 32 hexadecimal digits.
    #[serde(default)]
    pub id: String,
    /// Instruction set of the hub's kernels.
    pub kernels: String,
    /// Resident memory of the hub's process, in bytes.
    pub rss_bytes: u64,
    /// Whether the hub takes no more jobs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub draining: bool,
    /// The address of the hub's data path, for each transport that it offers.
    pub transports: Vec<TransportAddress>,
    /// The counts of events since the hub's start. Hubs that do not count send zeros.
    #[serde(default)]
    pub counts: CountsReply,
    /// The cores, in the order of the plan.
    pub cores: Vec<CoreReply>,
    /// The ports of NICs that its cores use, with RDMA.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nics: Vec<NicReply>,
    /// The jobs.
    pub jobs: Vec<JobReply>,
    /// The last requests that the hub has refused, the newest first: joins, and requests without the necessary right.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refusals: Vec<RefusalReply>,
    /// Whether the hub records a timeline, which `GET /v1/trace` sends.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub timeline: bool,
}

/// A request that the hub refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusalReply {
    /// Seconds since the last refusal.
    pub ago_s: u64,
    /// The number of times that the same request was refused.
    pub times: u64,
    /// The address that the request came from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The name that its machine gives itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The job that the client named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    /// The reason, in words.
    pub why: String,
}

/// The text has one line.
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

/// Returns the place of a client, in words: `10.0.0.5 (node7)`.
fn place(address: Option<&str>, host: Option<&str>) -> String {
    let address = address.unwrap_or("nowhere");
    host.map_or_else(|| address.to_owned(), |host| format!("{address} ({host})"))
}

/// The counts of events at the hub since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CountsReply {
    /// Workers, and hubs below, that joined.
    pub joins: u64,
    /// Joins that were refused. A join without the necessary right is not counted.
    pub refused_joins: u64,
    /// Members that were lost, whether their job went on or failed, by cause.
    pub lost: LostReply,
    /// Jobs that failed.
    pub failed_jobs: u64,
    /// The number of times that a worker has lost its links, and asked to make new ones.
    #[serde(default)]
    pub relinks: u64,
}

/// Members that were lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostReply {
    /// The link ended: the member exited, was killed, broke the protocol, or the network failed.
    pub link: u64,
    /// The heartbeats stopped.
    pub silent: u64,
    /// Members that held up a round for longer than the hub's limit.
    pub late: u64,
    /// Another hub of the job lost the member's links, or the member could not be admitted.
    pub other: u64,
}

/// A port of a NIC that the hub uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NicReply {
    /// The RDMA device.
    pub device: String,
    /// The port.
    pub port: u8,
    /// The speed of the NIC's link in Mb/s, as its driver reports it. Hubs of older versions leave it out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mbps: Option<u32>,
    /// The reason why new jobs do not use the NIC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<String>,
    /// The counters of the NIC since its driver was loaded, for all its users, by the kernel's names.
    pub counters: BTreeMap<String, u64>,
}

/// One core of the hub.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoreReply {
    /// The processor to which the core's thread is pinned.
    pub cpu: u32,
    /// The core's own NIC, with RDMA: the device, and its port if the device has several (`mlx4_0:2`). While that NIC
    /// is lost other NICs serve the core, and [`LinkReply::nic`] names them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nic: Option<String>,
    /// Chunks summed and sent back since the start.
    pub chunks: u64,
    /// The bytes.
    pub chunk_bytes: u64,
    /// Time spent on turns with work.
    pub busy_ns: u64,
    /// Time spent waiting for work.
    pub waiting_ns: u64,
    /// The part of the waiting time in which the core's thread slept.
    #[serde(default)]
    pub asleep_ns: u64,
    /// Answers and sums that waited before they were posted, because their link had no room or no credit.
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
    /// The workers.
    pub workers: u32,
    /// Workers that have joined, by rank.
    #[serde(default)]
    pub members: Vec<MemberReply>,
    /// The job's round at the hub's last look, which comes every few seconds.
    #[serde(default)]
    pub round: Round,
    /// The last round before which all workers of the job had the same weights, if they compare them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub equal_before: Option<Round>,
    /// Memory that is reserved for the job.
    #[serde(default)]
    pub promised_bytes: u64,
    /// The control ports of the hubs above, which get the sums.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub above: Vec<String>,
    /// The keys.
    pub keys: usize,
    /// Bytes of the job's model.
    pub model_bytes: u64,
    /// The last checkpoint since the job began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointReply>,
    /// The reason why the last attempt at a checkpoint failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_error: Option<String>,
    /// Workers for which other workers have waited too long.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub held_up_by: Vec<Late>,
    /// The reason why it did not continue from its newest checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_warning: Option<String>,
    /// The verdict on its rounds, in one line.
    #[serde(default)]
    pub verdict: String,
    /// The last rounds, once a worker was waited for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rounds: Option<RoundsReply>,
    /// The size of the job's gradients, once a round was looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gradients: Option<GradientsReply>,
    /// The reads of its state, once somebody has asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub readers: Option<ReadersReply>,
}

/// The reads of a job's state, of its weights or of averages, through the control port since the job began at this hub.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadersReply {
    /// Readers that get bytes now.
    pub now: u64,
    /// Reads that began.
    pub reads: u64,
    /// Copies of the state for them. Readers that wait at the same time share one.
    pub copies: u64,
    /// Bytes that went to readers.
    pub bytes: u64,
    /// Requests that got no state.
    pub refused: u64,
    /// The round of the newest copy: it is the state before this round.
    pub round: Round,
}

/// A worker that has joined.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberReply {
    /// The rank.
    pub rank: u32,
    /// Time since its last heartbeat.
    pub silent_ms: u64,
    /// The address that it joined from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The name that its machine gives itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The transport of its links, once it has some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transport: Option<String>,
    /// The bytes that had crossed the worker's links at the last look, by NIC. Empty on shared memory.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<LinkReply>,
    /// The latest worker among its own, from the last report of a hub below.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latest: Option<Latest>,
}

impl MemberReply {
    /// Returns its address and host: `10.0.0.5 (node7)`.
    pub fn place(&self) -> String {
        place(self.address.as_deref(), self.host.as_deref())
    }
}

/// The bytes that have crossed a worker's links by one NIC of the hub, since the worker joined.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkReply {
    /// The interface, or the NIC as [`CoreReply::nic`] has it; empty if it is unknown.
    pub nic: String,
    /// The bytes that were sent to the worker.
    pub sent_bytes: u64,
    /// The bytes that were received from the worker.
    pub received_bytes: u64,
}
