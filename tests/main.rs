//! Tests of hubs and workers together, by property, in one program. A test that counts threads or descriptors of its process runs in its own process (`fabric::conformance::alone`).

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
