//! The doctor's checks, one file for each prerequisite. Each check takes facts or makes a trial, and returns
//! a `Check`.

pub(super) mod congestion;
pub(super) mod control_port;
pub(super) mod cores;
pub(super) mod data_path;
pub(super) mod files;
pub(super) mod locality;
pub(super) mod memory;
pub(super) mod moving;
pub(super) mod nic;
pub(super) mod peer;
pub(super) mod rdma;
pub(super) mod serve;
