//! GIDs: the addresses that an RDMA port answers to, and the choice among them. Pure, but for the reading
//! of sysfs.
//!
//! A RoCE port has a GID for each address of its interfaces, and each once for RoCE v1 and once for v2. The
//! wrong one connects to nobody: what other systems ask their users to find out (`NCCL_IB_GID_INDEX`) is
//! found here.

use std::fmt;
use std::net::Ipv6Addr;
use std::path::Path;

use super::address::LinkLayer;

/// Where Linux shows RDMA devices.
pub(super) const SYSFS: &str = "/sys/class/infiniband";

/// A GID: 128 bits, written as an IPv6 address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// As the IPv6 address that it is.
    pub fn ip(self) -> Ipv6Addr {
        Ipv6Addr::from(self.0)
    }

    pub(super) fn is_link_local(self) -> bool {
        self.ip().is_unicast_link_local()
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.ip())
    }
}

/// An entry of a port's table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// Its index, which a queue pair is given.
    pub index: u8,
    /// The address.
    pub gid: Gid,
    /// Whether packets are RoCE v2, which are UDP over IP; otherwise InfiniBand or RoCE v1.
    pub roce_v2: bool,
    /// The network interface that has the address; none on InfiniBand.
    pub netdev: Option<String>,
}

/// A GID that was chosen, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// The entry.
    pub entry: GidEntry,
    /// In words, for logs.
    pub reason: String,
}

/// No GID will do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{device} port {port}: {what}; its GID table is:\n{}", table(.entries))]
pub struct GidError {
    /// The device.
    pub device: String,
    /// Its port.
    pub port: u8,
    /// What is missing, and what to do.
    pub what: String,
    /// The whole table.
    pub entries: Vec<GidEntry>,
}

/// A table as text, a line an entry.
pub fn table(entries: &[GidEntry]) -> String {
    if entries.is_empty() {
        return "  (empty)".into();
    }
    let line = |entry: &GidEntry| {
        let kind = if entry.roce_v2 { "RoCE v2" } else { "IB/RoCE v1" };
        let netdev = entry.netdev.as_deref().unwrap_or("-");
        format!("  {:>3}  {:<10}  {:<8}  {}", entry.index, kind, netdev, entry.gid)
    };
    entries.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Reads the table of a port. Entries that are empty, or gone while it is read, are left out.
pub(super) fn read(sysfs: &Path, device: &str, port: u8) -> Vec<GidEntry> {
    let port = sysfs.join(device).join("ports").join(port.to_string());
    let text = |kind: &str, index: u8| {
        let text = std::fs::read_to_string(port.join(kind).join(index.to_string())).ok()?;
        Some(text.trim().to_owned())
    };
    let mut entries = Vec::new();
    // A queue pair takes no index that is larger.
    for index in 0..=u8::MAX {
        let Some(gid) = text("gids", index) else { break };
        let Ok(address) = gid.parse::<Ipv6Addr>() else { continue };
        if address.is_unspecified() {
            continue;
        }
        let roce_v2 = text("gid_attrs/types", index).is_some_and(|kind| kind == "RoCE v2");
        let netdev = text("gid_attrs/ndevs", index).filter(|name| !name.is_empty());
        // fe80:: with no interface identifier is an entry that the driver has not filled.
        if address.octets()[8..] == [0; 8] {
            continue;
        }
        entries.push(GidEntry { index, gid: Gid(address.octets()), roce_v2, netdev });
    }
    entries
}

/// Chooses the GID of a port: the index that the user wants, or the best by rule.
pub(super) fn choose(
    device: &str,
    port: u8,
    link_layer: LinkLayer,
    entries: &[GidEntry],
    wanted: Option<u8>,
) -> Result<Chosen, GidError> {
    let fail = |what: String| GidError { device: device.into(), port, what, entries: entries.to_vec() };
    if let Some(index) = wanted {
        let entry = entries.iter().find(|entry| entry.index == index);
        let entry =
            entry.ok_or_else(|| fail(format!("the GID index {index} that was asked for is empty")))?;
        return Ok(Chosen { entry: entry.clone(), reason: format!("GID index {index} was asked for") });
    }
    if link_layer == LinkLayer::InfiniBand {
        let entry = entries.first().ok_or_else(|| {
            fail("there is no GID; a subnet manager gives them: is one running (sminfo)?".into())
        })?;
        return Ok(Chosen { entry: entry.clone(), reason: "the port's own on InfiniBand".into() });
    }
    // The first entry is the port's default, which its own interface has; others may be of VLANs on it.
    let own = entries.first().and_then(|entry| entry.netdev.clone());
    let is_own = |entry: &GidEntry| own.is_some() && entry.netdev == own;
    let is_v4 = |entry: &GidEntry| entry.gid.ip().to_ipv4_mapped().is_some();
    let is_global = |entry: &GidEntry| !entry.gid.is_link_local() && !is_v4(entry);
    type Rule<'a> = (&'a dyn Fn(&GidEntry) -> bool, &'a str);
    let rules: [Rule; 5] = [
        (&|entry| is_v4(entry) && is_own(entry), "RoCE v2 with an IPv4 address of the port's own interface"),
        (&is_v4, "RoCE v2 with an IPv4 address of an interface on the port"),
        (&|entry| is_global(entry) && is_own(entry), "RoCE v2 with a global IPv6 address, for want of IPv4"),
        (&is_global, "RoCE v2 with a global IPv6 address of an interface on the port, for want of IPv4"),
        (&|_| true, "RoCE v2 with a link-local address, for want of another: no router passes it on"),
    ];
    for (fits, reason) in rules {
        if let Some(entry) = entries.iter().find(|entry| entry.roce_v2 && fits(entry)) {
            return Ok(Chosen { entry: entry.clone(), reason: reason.into() });
        }
    }
    Err(fail(if entries.is_empty() {
        "there is no GID; give its network interface an address, and set it up (ip link set ... up)".into()
    } else {
        "no GID is of RoCE v2, which passes through routers; switch the port to it, or ask for one by its index"
            .into()
    }))
}

#[cfg(test)]
mod tests;
