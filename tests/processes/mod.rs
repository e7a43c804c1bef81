//! Hubs and workers in processes of their own: what such a process does, and the test's handle of it.

pub mod hub;
pub mod worker;
