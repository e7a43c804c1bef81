//! Timelines: the last events of a process, with their times, and the file in which a trace viewer shows them.
//!
//! ```text
//!   event --> ring (bounded) --at the end, or on request--> lines of JSON --> file
//!                                                              files of several processes --merge--> one file, with one clock
//! ```
//!
//! The file has Chrome's trace event format, with one event per line. This crate must never depend on
//! gradients, links and jobs: the code that adds an event names its subject.

#![forbid(unsafe_code)]

mod clock;
mod file;
mod lines;
mod process;
mod ring;
mod shift;

pub use clock::{Ahead, Clock};
pub use file::{TraceError, TraceFile, merge};
pub use lines::lines;
pub use process::{Event, Process, Span};
pub use ring::Ring;
