//! The machine as plain data.
//!
//! This module must not depend on where the data came from, apart from its name ([`Source`]), or on what it
//! is used for.
//!
//! ```text
//!   Host ── sockets ── nodes (NUMA) ── cpus (one per hardware thread; CoreId tells siblings apart)
//!      │                   └────────── nics (node: None = unknown)
//!      └── caches (each names its cpus)
//! ```

mod ids;
mod nic;
mod pci;

pub use ids::{CoreId, CpuId, NicId, NodeId, SocketId};
pub(crate) use nic::natural_order;
pub use nic::{Nic, NicKind, Speed, SpeedSource};
pub use pci::PciAddress;

use crate::amount::count;
use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;

/// A machine: its parts, and which of them this process may use.
///
/// # What counts as a NIC
///
/// An Ethernet or InfiniBand net device with hardware below it (`/sys/class/net/X/device` exists), and every
/// RDMA device. An RDMA device and its net devices are one [`Nic`] with all their names. With soft-RoCE, any
/// net device below an RDMA device is a NIC.
///
/// Loopback, bridges, bonds, VLANs, veth, tun, container devices and wireless devices are not NICs. An SR-IOV
/// virtual function is not a NIC if its physical function is also listed, because both share one wire.
#[derive(Clone, Debug, PartialEq)]
pub struct Host {
    /// The host's name, if the source has it.
    pub name: Option<String>,
    /// The source of this description.
    pub source: Source,
    /// Sockets, by id.
    pub sockets: Vec<Socket>,
    /// NUMA nodes, by id; at least one.
    pub nodes: Vec<Node>,
    /// Processing units, by id; at least one.
    pub cpus: Vec<Cpu>,
    /// Caches, by level and first cpu; empty if the source does not list them.
    pub caches: Vec<Cache>,
    /// NICs, in the natural order of their names (`eth2` before `eth10`); [`NicId`] is the index.
    pub nics: Vec<Nic>,
    /// Sentences about facts that the reader of the machine did not find or had to guess, with the reasons.
    pub notes: Vec<String>,
}

/// A processor package.
#[derive(Clone, Debug, PartialEq)]
pub struct Socket {
    /// The number.
    pub id: SocketId,
}

/// A NUMA node.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// The number.
    pub id: NodeId,
    /// The socket of the node; `None` if the node has no cpus, or cpus of several sockets.
    pub socket: Option<SocketId>,
    /// The memory on the node, if known.
    pub memory_bytes: Option<u64>,
}

/// A processing unit: one hardware thread of a core.
#[derive(Clone, Debug, PartialEq)]
pub struct Cpu {
    /// The number, as affinity masks use it.
    pub id: CpuId,
    /// The physical core of the hardware thread.
    pub core: CoreId,
    /// The socket.
    pub socket: SocketId,
    /// The (nearest) NUMA node.
    pub node: NodeId,
    /// Whether this process may run on the cpu: it is online, in the cpuset, and in the affinity mask.
    pub allowed: bool,
    /// Whether the cpu has less than 0.7 of the capacity of the machine's fastest cpu, like an efficiency
    /// core. False if the source does not say.
    pub slow: bool,
}

/// A processor cache.
#[derive(Clone, Debug, PartialEq)]
pub struct Cache {
    /// The level, 1 to 5.
    pub level: u8,
    /// The content of the cache.
    pub kind: CacheKind,
    /// The size, if known.
    pub size_bytes: Option<u64>,
    /// The cpus that share it, ascending.
    pub cpus: Vec<CpuId>,
}

/// The content of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CacheKind {
    /// Data only.
    Data,
    /// Instructions only.
    Instruction,
    /// Data and instructions.
    Unified,
}

/// The source of a [`Host`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// This machine, by hwloc, with NICs by sysfs.
    LiveHwloc,
    /// This machine, only by sysfs, under this root (normally `/sys`).
    LiveSysfs(PathBuf),
    /// An XML file that `lstopo --of xml` wrote.
    Xml(PathBuf),
    /// A synthetic description, see [`Host::from_synthetic`].
    Synthetic(String),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LiveHwloc => f.write_str("this machine, by hwloc and sysfs"),
            Self::LiveSysfs(root) => write!(f, "this machine, by sysfs at {}", root.display()),
            Self::Xml(path) => write!(f, "XML file {}", path.display()),
            Self::Synthetic(text) => write!(f, "synthetic \"{text}\""),
        }
    }
}

impl Host {
    /// Returns the cpu with this number.
    pub fn cpu(&self, id: CpuId) -> Option<&Cpu> {
        self.cpus.binary_search_by_key(&id, |cpu| cpu.id).ok().map(|at| &self.cpus[at])
    }

    /// Returns the node with this number.
    pub fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.binary_search_by_key(&id, |node| node.id).ok().map(|at| &self.nodes[at])
    }

    /// Returns the NIC at this index.
    pub fn nic(&self, id: NicId) -> Option<&Nic> {
        self.nics.get(id.index())
    }

    /// Returns the NIC with this name, which may be the name of its RDMA device or of a net device.
    pub fn nic_named(&self, name: &str) -> Option<NicId> {
        self.nics.iter().position(|nic| nic.has_name(name)).map(|at| NicId(at as u32))
    }

    /// Returns the number of physical cores.
    pub fn core_count(&self) -> usize {
        self.cpus.iter().map(|cpu| cpu.core.index() + 1).max().unwrap_or(0)
    }

    /// Returns a heading that names the sockets of a node's cpus: `Socket 0`, `Sockets 0-3`, `No socket`.
    pub(crate) fn socket_heading(&self, node: NodeId) -> String {
        let sockets: BTreeSet<u32> =
            self.cpus.iter().filter(|cpu| cpu.node == node).map(|cpu| cpu.socket.0).collect();
        match sockets.len() {
            0 => "No socket".to_owned(),
            1 => format!("Socket {}", crate::cpulist::format(sockets)),
            _ => format!("Sockets {}", crate::cpulist::format(sockets)),
        }
    }

    /// Returns the host in one line: its name, and the number of its parts.
    pub fn summary(&self) -> String {
        format!(
            "{}: {}, {}, {}, {}, {}",
            self.name.as_deref().unwrap_or("host"),
            count(self.sockets.len(), "socket"),
            count(self.nodes.len(), "NUMA node"),
            count(self.core_count(), "core"),
            count(self.cpus.len(), "cpu"),
            count(self.nics.len(), "NIC"),
        )
    }
}
