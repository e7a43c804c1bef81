//! Tests of hubs and workers together, by property, in one program. Modules named `sim_...` run over the simulated
//! network. A test that counts what its process has runs in a process of its own (`fabric::conformance::alone`).

mod bits;
mod checkpoints;
mod faults;
mod hostile;
mod membership;
mod order;
mod processes;
mod resources;
mod sessions;
mod staleness;
