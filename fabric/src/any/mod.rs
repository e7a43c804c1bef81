//! All transports behind one port: a hub serves workers on its own machine, with RDMA and without at the same
//! time, each core from one loop; a worker takes whichever it can have.
//!
//! ```text
//!   core's loop -- any::Port --+-- shm::Port   rings, one bell
//!                              +-- verbs::Port completion queues, where there is RDMA
//!                              +-- tcp::Port   an epoll
//! ```
//!
//! A port's link numbers are those of its transports, dealt out in turn. A transport without links costs
//! nothing. Must not know who connects, or why by this transport.

mod connect;
mod machine;
mod port;
mod sleeping;
mod transport;

pub use connect::{Accepted, Address, ConnectError, Group, Hello, Joined, Listener, Rdma, connect, group};
pub use machine::machine;
pub use port::{Endpoint, Port};
pub use transport::{ParseTransportError, Transport};
