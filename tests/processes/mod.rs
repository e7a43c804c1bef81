//! Hubs and workers in their own processes: what such a process does, and the test's handle of it.

pub mod hub;
pub mod worker;
