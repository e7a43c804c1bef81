//! RDMA by libibverbs: worker and hub with NICs between them, RoCE or InfiniBand.
//!
//! A link is a reliable-connected queue pair, a post one RDMA write with immediate from the window in place:
//! the NICs move the bytes, and the arrival is a completion at the other end. The library is loaded when it is
//! first asked for; the same program runs where there is none.
//!
//! ```text
//!        worker                                             hub
//!   gradients (SendWindow) ==== RDMA write ==============> RecvWindow, local
//!   RecvWindow, local      <=== RDMA write =============== weights (SendWindow), one for all workers
//!   one port, a completion    queue pair a link            port i: one completion queue on its NIC
//!   queue a NIC               TCP: handshake, and its end is the sign of death
//! ```
//!
//! One handshake makes one connection with one link to each of the hub's ports. The links of a
//! connection close together.

mod address;
mod arrivals;
#[allow(unsafe_code)]
mod chain;
#[allow(unsafe_code)]
mod completion;
mod connect;
#[allow(unsafe_code)]
mod context;
mod device;
#[allow(unsafe_code)]
mod domain;
mod ending;
mod error;
mod events;
#[allow(
    unsafe_code,
    dead_code,
    missing_docs,
    non_camel_case_types,
    non_upper_case_globals,
    clippy::all,
    clippy::undocumented_unsafe_blocks
)]
mod ffi;
#[doc(hidden)]
pub mod fuzzing;
mod gid;
mod group;
mod join;
mod layout;
#[allow(unsafe_code)]
mod library;
mod link;
#[allow(unsafe_code)]
mod loopback;
mod message;
mod nic;
mod nic_list;
mod pairing;
mod port;
#[allow(unsafe_code)]
mod queue_pair;
#[allow(unsafe_code)]
mod region;
mod registered;
mod sleeping;
mod subnet;
#[cfg(test)]
#[allow(unsafe_code)]
mod tests;
mod wire;
mod words;
mod work;

pub use address::{Address, LinkLayer, Mtu};
pub use connect::{Accepted, ConnectError, Hello, Joined, Listener, connect};
pub use device::{Device, DeviceError, DevicePort, devices};
pub use error::{CreateError, VerbsError};
pub use gid::{Chosen, Gid, GidEntry, GidError, table};
pub use group::{Group, group, worker_group};
pub use library::LibraryError;
pub use loopback::{Loopback, LoopbackError, loopback};
pub use nic::{Nic, NicOptions};
pub use nic_list::{NicList, ParseNicListError};
pub use pairing::Pairing;
pub use port::{Endpoint, Port};
pub use queue_pair::ModifyError;
pub use region::RegisterError;
pub use work::Tally;
