//! The transfer of bytes between a worker and a hub, or between hubs.
//!
//! A *window* is a memory region with the same layout at both ends. A *link* joins two windows, and a *port* has all
//! the links that one thread polls. The only operation that moves bytes is [`Port::post`]. It makes the bytes at a span
//! of this window appear at the same span of the peer's window. Then it shows the peer an immediate.
//!
//! [`shm`], [`tcp`], [`verbs`] and [`sim`] are transports: they implement the same traits, keep the same contract and
//! pass the same conformance suite. [`any`] is one port over the first three. This crate must never depend on tensors,
//! optimizers or rounds.

#![deny(unsafe_code)] // exceptions: docs/unsafe.md

mod ids;
mod plan;
mod port;
mod ring;

pub mod any;
pub mod conformance;
mod connection;
mod credit;
mod handshake;
mod idle;
mod links;
pub mod loan;
mod memory;
mod port_state;
mod proof;
mod ranges;
pub mod shm;
pub mod sim;
pub mod tcp;
pub mod verbs;
mod watch;

pub use handshake::{Joined, NicPair, Receive};
pub use ids::{Imm, LinkId, Span};
pub use plan::{Carries, LinkPorts, PlannedLink, PortId};
pub use port::{Arrival, CloseReason, Closed, Crossed, FrameRule, Port, Posted, Until};
pub use proof::name_of;
pub use ranges::Ranges;

pub use idle::{Idle, IdlePolicy};
pub use memory::{
    Amount, DmaBuf, DmaBufError, MapError, MemoryBound, MemoryRoom, Plain, RecvWindow, SHARED_HUGE_PAGES,
    SendWindow, Slab, SpanError, Spans, WindowError, available_bytes, few_heaps, memory_room, resident_bytes,
    shared_huge_pages, trim_heap,
};
