//! RDMA by libibverbs: worker and hub with NICs between them, RoCE or InfiniBand.
//!
//! A link is a reliable-connected queue pair. A post is one RDMA write with immediate, directly from the
//! window. The NICs move the bytes, and the arrival is a completion at the other end. The library is loaded
//! when RDMA is first requested, so the same program runs on machines without the library.
//!
//! ```text
//!        worker                                             hub
//!   gradients (SendWindow) ==== RDMA write ==============> RecvWindow, local
//!   RecvWindow, local      <=== RDMA write =============== weights (SendWindow), one for all workers
//! ```
//!
//! Each link has a queue pair. A worker has one port, with a completion queue for each of its NICs. Each port of a hub has one NIC
//! and one completion queue. A TCP connection carries the handshake; if the connection ends, the peer is dead.
//!
//! One handshake makes one connection with one link to each of the hub's ports. The links of a
//! connection close together.

mod address;
mod counters;
mod device;
mod error;
mod events;
mod fitness;
mod gid;
mod group;
mod handles;
mod handshake;
#[allow(unsafe_code)]
mod loopback;
mod nccl;
mod nic;
mod nic_list;
mod path_settings;
mod port;
mod rail_map;
mod subnet;
#[cfg(test)]
#[allow(unsafe_code)]
mod tests;

pub use address::{Address, Gid, LinkLayer, Mtu};
pub use counters::{counters, mbps};
pub use device::{Device, DevicePort, devices, takes_dma_bufs};
pub use error::VerbsError;
pub use fitness::Fitness;
pub use gid::{Chosen, GidEntry, GidError, table};
pub use group::{Group, GroupOptions};
pub use handles::error::{CreateError, DeviceError, ModifyError};
pub use handles::library::LibraryError;
pub use handles::region::RegisterError;
pub use handles::work::Tally;
pub use handshake::connect::{Accepted, ConnectError, Hello, Listener, connect};
#[doc(hidden)]
pub use handshake::fuzzing;
pub use loopback::{Loopback, LoopbackError, loopback};
pub use nccl::Nccl;
pub use nic::{Nic, NicOptions};
pub use nic_list::{NicList, ParseNicListError};
pub use path_settings::{PATH_SETTINGS, PathFlags, PathSetting, SettingError};
pub(crate) use port::rails::MAX_RAILS;
pub use port::{Endpoint, Port, group, worker_group};
pub use rail_map::{ParseRailMapError, RailMap};
