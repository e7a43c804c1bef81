//! The place of a core thread: its cpu, and its NIC.

use fabric::verbs::NicOptions;

/// The cpu and NIC that a core thread is pinned to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lane {
    /// The number of the cpu in the operating system.
    pub cpu: u32,
    /// The cpu's NUMA node.
    pub node: u32,
    /// The NIC of the lane, with RDMA.
    pub nic: Option<NicOptions>,
}
