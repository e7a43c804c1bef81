//! All transports behind one port. Each core of a hub serves workers on its own machine and on other
//! machines, with and without RDMA, from one loop. A worker takes the best transport that reaches the hub.
//!
//! ```text
//!   core's loop -- any::Port --+-- shm::Port   rings, one bell
//!                              +-- verbs::Port completion queues, if there is RDMA
//!                              +-- tcp::Port   an epoll
//! ```
//!
//! A link's id consists of its transport and its id at that transport. A transport without links costs
//! nothing. This module must not depend on who connects, or on why a transport was chosen.

mod connect;
mod machine;
mod port;
mod sleeping;
mod transport;

pub use connect::{Accepted, Address, ConnectError, Gathered, Group, Hello, Listener, Rdma, connect, group};
pub use machine::machine;
pub use port::{Device, Endpoint, Port};
pub use transport::{ParseTransportError, Transport};
