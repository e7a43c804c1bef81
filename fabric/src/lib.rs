//! How bytes cross between a worker and the hub.
//!
//! A *window* is a memory region laid out alike at both ends; a *link* joins two of them; a *port*
//! is what one thread polls. The one verb is [`Port::post`]: make my window's bytes at a span appear
//! in the peer's window at the same span, and then show the peer an immediate.
//!
//! This crate must never know tensors, optimizers or rounds. [`shm`], [`sim`] and [`verbs`] are
//! whole transports: same traits, same contract, same conformance suite.

#![deny(unsafe_code)] // exceptions: docs/unsafe.md

pub mod bell;
mod ids;
mod port;
pub mod ring;
mod sync;

#[cfg(not(loom))]
pub mod any;
#[cfg(not(loom))]
pub mod conformance;
#[cfg(not(loom))]
mod connection;
#[cfg(not(loom))]
mod credit;
#[cfg(not(loom))]
mod idle;
#[cfg(not(loom))]
#[allow(unsafe_code)]
mod memory;
#[cfg(not(loom))]
pub mod shm;
#[cfg(not(loom))]
pub mod sim;
#[cfg(not(loom))]
pub mod tcp;
#[cfg(not(loom))]
pub mod verbs;
#[cfg(not(loom))]
mod watch;
#[cfg(not(loom))]
#[allow(unsafe_code)]
mod window;

pub use ids::{Imm, LinkId, Span};
pub use port::{Arrival, CloseReason, Closed, Port, Posted, Until};

#[cfg(not(loom))]
pub use idle::{Idle, IdlePolicy};
#[cfg(not(loom))]
pub use memory::{MapError, SHARED_HUGE_PAGES, Slab, available_bytes, resident_bytes, shared_huge_pages};
#[cfg(not(loom))]
pub use window::{Plain, RecvWindow, SendWindow, SpanError, Spans, WindowError};
