//! Tests of hubs and workers together, by property, in one program. Tests that count threads or descriptors
//! of their process run in a process of their own (`fabric::conformance::alone`).

mod all_at_once;
mod attacks;
mod bits;
mod checkpoints;
mod faults;
mod hostile;
mod levels;
mod membership;
mod order;
mod processes;
mod resources;
mod seeing;
mod sessions;
mod staleness;
