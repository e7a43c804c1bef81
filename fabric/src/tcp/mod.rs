//! TCP: the transport for machines without RDMA, such as most cloud machines and laptops.
//!
//! There is one connection per link. A post becomes a frame: a header of 16 bytes, then the span's bytes,
//! directly from the window. The other end reads the bytes directly into its window, and shows the immediate
//! when all of them have arrived.
//!
//! ```text
//!   frame:   offset u64 | bytes u32 | immediate u32 | the span's bytes      all little-endian
//!   summed:  offset u64 | bytes u32 | immediate u32 | sum of the bytes u64 | sum of these 24 bytes u64 | the span's bytes
//!
//!        worker                                        hub
//!   gradients (SendWindow) ----- connection i -----> RecvWindow        port i, one a core
//!   RecvWindow <--------------------------------- weights (SendWindow)
//! ```
//!
//! The kernel accepts bytes only while its buffers have room. If a [`Port::flush`](crate::Port::flush) cannot
//! hand over all frames, the rest stays queued in the link, and later polls and waits send it. So the owner
//! of a port must poll it while anything is in flight. This module must not depend on what the bytes mean.

mod congestion;
mod connect;
mod frames;
#[doc(hidden)]
pub mod fuzzing;
mod gathering;
mod incoming;
#[allow(unsafe_code)]
mod io;
mod link;
mod message;
mod outgoing;
mod port;

pub use congestion::{Congestion, CongestionError, CongestionRules, Controlled, ParseCongestionError};
pub use connect::{Accepted, ConnectError, Hello, Listener, Options, connect};
pub use frames::Frames;
pub use gathering::{Gathered, Pending};
pub use link::Endpoint;
pub use port::Port;
