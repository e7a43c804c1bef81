//! Shared memory: worker and hub on one machine.
//!
//! Both windows of a link are the same pages at both ends (sealed memfds, passed over a Unix socket), so a post moves
//! no bytes. Its immediate goes through a ring in a third memfd, and a bell wakes a peer that sleeps. Nothing has a
//! name in a file system: after `kill -9` of both ends nothing is left.
//!
//! ```text
//!        worker                                        hub
//!   gradients (SendWindow) ========================> RecvWindow, read-only
//!   RecvWindow, read-only  <======================== weights (SendWindow), one for all workers
//!   port 0: bell  <--+ rings, one pair a link  +-->  port i: bell   (one port a core)
//!                    |  up   [worker -> core i] |
//!                    |  down [core i -> worker] |
//!              Unix socket: handshake; its end means that the peer is dead
//! ```
//!
//! One handshake makes one connection with one link to each of the hub's ports. The links of a
//! connection close together.

mod bells;
#[allow(unsafe_code)]
mod cells;
pub(crate) mod connect;
mod futex;
#[doc(hidden)]
pub mod fuzzing;
mod group;
pub(crate) mod message;
mod port;
#[cfg(test)]
mod tests;
pub(crate) mod waking;

pub use connect::{Accepted, ConnectError, Hello, Listener, connect};
pub use group::Group;
pub use port::{Endpoint, Port, group};
