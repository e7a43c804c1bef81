//! The bytes that cross the links of a job's members, by NIC. The cores count these bytes.

use std::collections::BTreeMap;

use fabric::Crossed;
use pbox_core::control::LinkReply;

/// A link of a member.
#[derive(Debug, Default)]
pub struct MemberLink {
    /// The interface or RDMA device of this hub that the link's bytes cross. Empty if the device is unknown, or if the
    /// link is on shared memory.
    pub nic: String,
    /// The bytes that had crossed the link when the core was last asked. `None` on shared memory.
    pub crossed: Option<Crossed>,
}

/// Returns the bytes that crossed these links, by NIC.
pub(crate) fn by_nic(links: &[MemberLink]) -> Vec<LinkReply> {
    let mut nics = BTreeMap::<&str, (u64, u64)>::new();
    for MemberLink { nic, crossed } in links {
        let Some(crossed) = crossed else { continue };
        let (sent, received) = nics.entry(nic).or_default();
        (*sent, *received) = (*sent + crossed.sent, *received + crossed.received);
    }
    let reply = |(nic, (sent_bytes, received_bytes)): (&str, _)| LinkReply {
        nic: nic.to_owned(),
        sent_bytes,
        received_bytes,
    };
    nics.into_iter().map(reply).collect()
}
