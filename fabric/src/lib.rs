//! How bytes cross between a worker and the hub.
//!
//! A *window* is a memory region laid out alike at both ends; a *link* joins two of them; a *port*
//! is what one thread polls. The one verb is [`Port::post`]: make my window's bytes at a span appear
//! in the peer's window at the same span, and then show the peer an immediate.
//!
//! This crate must never know tensors, optimizers or rounds. [`shm`], [`sim`] and [`verbs`] are
//! whole transports: same traits, same contract, same conformance suite.

#![deny(unsafe_code)] // exceptions: docs/unsafe.md

mod ids;
mod plan;
mod port;
pub mod ring;

pub mod any;
pub mod conformance;
mod connection;
mod credit;
mod idle;
mod links;
mod memory;
mod port_state;
pub mod shm;
pub mod sim;
pub mod tcp;
pub mod verbs;
mod watch;

pub use ids::{Imm, LinkId, Span};
pub use plan::{LinkPorts, PlannedLink, PortId};
pub use port::{Arrival, CloseReason, Closed, Port, Posted, Until};

pub use idle::{Idle, IdlePolicy};
pub use memory::{
    MapError, Plain, RecvWindow, SHARED_HUGE_PAGES, SendWindow, Slab, SpanError, Spans, WindowError,
    available_bytes, resident_bytes, shared_huge_pages,
};
