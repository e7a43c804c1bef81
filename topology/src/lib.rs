//! The machine and its placement: the parts of a machine, and the owner of each item.
//!
//! ```text
//!   live (hwloc + sysfs) ─┐
//!   live (sysfs only)    ─┤            ┌─ place ──> Plan ─┐
//!   XML file of lstopo   ─┼──> Host ───┤                  ├──> render::{text, svg}
//!   synthetic string     ─┘            └──────────────────┘
//! ```
//!
//! A [`Host`] is plain data: sockets, NUMA nodes, cores, caches, NICs. [`place`](place::place) is a pure
//! function from a host and a list of weights in bytes to a [`Plan`]. The plan has the owning core of every
//! item, the NICs of every core, the balance, and the reasons in words. [`lpt`] is only the rule for balance:
//! a process on another machine computes the same owner table with it.
//!
//! This crate does not know what an item is: it sees weights, never chunks, tensors, peers or threads. It
//! changes nothing on the machine that it reads.

#![forbid(unsafe_code)]

mod amount;
pub mod cpulist;
#[doc(hidden)]
pub mod fuzzing;
mod host;
pub mod place;
mod read;
pub mod render;

pub use host::{
    Cache, CacheKind, CoreId, Cpu, CpuId, Host, Nic, NicId, NicKind, Node, NodeId, PciAddress, Socket,
    SocketId, Source, Speed, SpeedSource,
};
pub use place::{
    Balance, CoreChoice, CoreSlot, NicChoice, PlaceError, PlacedCore, PlacedNic, Plan, Request, lpt,
    lpt_by_share, place,
};
pub use read::{HostError, SyntheticError, SysfsError, XmlError};
