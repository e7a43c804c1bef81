//! TCP: for clouds without RDMA, and for every laptop.
//!
//! One connection per link. A post is a frame: 16 bytes of header, then the span's bytes, straight from the window. The
//! other end reads them straight into its window, and shows the immediate when all have arrived.
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
//! The kernel takes bytes only while its buffers have room. Frames that a [`Port::flush`](crate::Port::flush) cannot
//! hand over at once stay queued in the link, and go out in later polls and waits. So the owner of a port polls it
//! while anything is in flight. Must not know what the bytes mean.

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
