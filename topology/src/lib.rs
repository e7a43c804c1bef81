//! What the machine is, and who owns what.
//!
//! ```text
//!   live (hwloc + sysfs) ─┐
//!   live (sysfs only)    ─┤            ┌─ place ──> Plan ─┐
//!   XML file of lstopo   ─┼──> Host ───┤                  ├──> render::{text, svg}
//!   synthetic string     ─┘            └──────────────────┘
//! ```
//!
//! A [`Host`] is plain data: sockets, NUMA nodes, cores, caches, NICs. [`place`](place::place) is a pure
//! function from a host and a list of weights in bytes to a [`Plan`]: the owning core of every item, the
//! NICs of every core, the balance reached, and the reasons in words. [`lpt`] is the balancing rule alone,
//! for whoever must compute the same owner table far from the machine.
//!
//! Deliberately absent: what an item is. This crate sees weights, never chunks, tensors, peers or threads,
//! and it changes nothing on the machine it looks at.

#![forbid(unsafe_code)]

mod affinity;
pub mod cpulist;
#[doc(hidden)]
pub mod fuzzing;
mod host;
mod host_error;
#[cfg(feature = "hwloc")]
mod hwloc;
mod ids;
mod live;
mod nic;
mod pci;
pub mod place;
pub mod render;
mod survey;
mod synthetic;
mod sysfs;
mod xml;

pub use host::{Cache, CacheKind, Cpu, Host, Node, Socket, Source};
pub use host_error::HostError;
pub use ids::{CoreId, CpuId, NicId, NodeId, SocketId};
pub use nic::{Nic, NicKind, Speed, SpeedSource};
pub use pci::PciAddress;
pub use place::{
    Balance, CoreChoice, CoreSlot, Evenness, NicChoice, PlaceError, PlacedCore, PlacedNic, Plan, Request,
    lpt, lpt_by_share, place,
};
pub use render::Labels;
pub use synthetic::SyntheticError;
pub use sysfs::SysfsError;
pub use xml::XmlError;
