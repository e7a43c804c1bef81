//! Hubs and workers in their own processes: the program of such a process, and the test's handle of it.

pub mod hub;
pub mod worker;
