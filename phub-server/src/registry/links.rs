//! What crosses the links of a job's members, by NIC.
//!
//! Under the registry's lock. The cores count; they are asked with the look at how rounds go (`pace`).

use std::collections::BTreeMap;

use fabric::Crossed;
use fabric::any::{self, Device};
use if_addrs::get_if_addrs;
use pbox_core::control::LinkReply;

use super::job::Job;

/// A link of a member.
#[derive(Debug, Default)]
pub(crate) struct MemberLink {
    /// The interface or RDMA device that its bytes cross here. Empty if nobody knows, and on shared memory.
    nic: String,
    /// The bytes that have crossed it, when the core was asked last; none on shared memory.
    crossed: Option<Crossed>,
}

/// What is known of links before their bytes cross: the interface or RDMA device of each.
pub(super) fn links_by(endpoints: &[any::Endpoint]) -> Vec<MemberLink> {
    let devices: Vec<Option<Device>> = endpoints.iter().map(any::Endpoint::device).collect();
    let needs_names = devices.iter().flatten().any(|device| matches!(device, Device::At(_)));
    let interfaces = if needs_names { get_if_addrs().unwrap_or_default() } else { Vec::new() };
    let named = |device| match device {
        Device::Nic(name) => name,
        Device::At(address) => interfaces
            .iter()
            .find(|interface| interface.ip() == address)
            .map_or_else(String::new, |interface| interface.name.clone()),
    };
    let link =
        |device: Option<Device>| MemberLink { nic: device.map_or_else(String::new, named), crossed: None };
    devices.into_iter().map(link).collect()
}

/// The bytes that crossed these links, by NIC.
pub(super) fn by_nic(links: &[MemberLink]) -> Vec<LinkReply> {
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

impl Job {
    /// So many bytes have crossed a member's link to one of the job's cores.
    pub fn note_crossed(&mut self, rank: u32, core: usize, crossed: Crossed) {
        let member = self.members.get_mut(rank as usize).and_then(Option::as_mut);
        if let Some(link) = member.and_then(|member| member.links.get_mut(core)) {
            link.crossed = Some(crossed);
        }
    }
}
