//! The address of a NIC's port, as the other end of a handshake needs it. This module has only data.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A GID: 128 bits, written as an IPv6 address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// Returns the GID as an IPv6 address.
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

/// The link layer that carries the packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkLayer {
    /// RoCE, with addresses by GID.
    Ethernet,
    /// InfiniBand, with addresses by LID within a subnet.
    InfiniBand,
}

impl fmt::Display for LinkLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LinkLayer::Ethernet => "Ethernet",
            LinkLayer::InfiniBand => "InfiniBand",
        })
    }
}

/// A path MTU, by its code: 1 to 5 for 256 to 4096 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mtu(u8);

impl Mtu {
    pub(super) const SMALLEST: Mtu = Mtu(1);

    /// Returns the MTU for a code of verbs. Returns `None` for any other number.
    pub fn from_code(code: u32) -> Option<Self> {
        u8::try_from(code).ok().filter(|code| (1..=5).contains(code)).map(Mtu)
    }

    /// Returns the largest MTU of at most `bytes` bytes. For fewer than 256 bytes, returns the smallest MTU.
    pub(super) fn within(bytes: u16) -> Self {
        (1..=5).rev().map(Mtu).find(|mtu| mtu.bytes() <= u32::from(bytes)).unwrap_or(Mtu::SMALLEST)
    }

    /// Returns the code.
    pub fn code(self) -> u8 {
        self.0
    }

    /// Returns the MTU in bytes.
    pub fn bytes(self) -> u32 {
        128 << self.0
    }
}

/// The address of a port of a NIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// The device's name on its own machine.
    pub device: String,
    /// The network that the port is connected to.
    pub link_layer: LinkLayer,
    /// The GID.
    pub gid: Gid,
    /// The number of leading bits of the GID's address (IPv4 or IPv6) that name its subnet, if known.
    pub prefix: Option<u8>,
    /// The LID, or 0 on Ethernet.
    pub lid: u16,
    /// The largest packet.
    pub mtu: Mtu,
}

impl Address {
    /// Returns the IP address in the GID.
    pub fn ip(&self) -> IpAddr {
        let ip = self.gid.ip();
        ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4)
    }

    /// Whether packets can cross between two addresses. RoCE v2 is IP, so both ends must have the same version of IP.
    pub(super) fn can_reach(&self, other: &Address) -> bool {
        self.link_layer == other.link_layer
            && (self.link_layer == LinkLayer::InfiniBand || self.ip().is_ipv4() == other.ip().is_ipv4())
    }

    /// Returns the subnet in words, if both addresses are in the same subnet.
    pub(super) fn shared_subnet(&self, other: &Address) -> Option<String> {
        if self.link_layer != other.link_layer {
            return None;
        }
        let longest = self.prefix.into_iter().chain(other.prefix).max();
        match (self.ip(), other.ip()) {
            (IpAddr::V4(a), IpAddr::V4(b)) => {
                let bits = longest.filter(|&bits| (1..=32).contains(&bits))?;
                let mask = u32::MAX << (32 - bits);
                let network = u32::from(a) & mask;
                (network == u32::from(b) & mask).then(|| format!("{}/{bits}", Ipv4Addr::from(network)))
            }
            (IpAddr::V6(a), IpAddr::V6(b)) => {
                // A subnet of IPv6 or InfiniBand is the upper half of the address. All link-local addresses
                // have the same upper half, whatever their network.
                let upper = |ip: Ipv6Addr| u128::from(ip) >> 64 << 64;
                let comparable = self.link_layer == LinkLayer::InfiniBand || !self.gid.is_link_local();
                (comparable && upper(a) == upper(b)).then(|| format!("{}/64", Ipv6Addr::from(upper(a))))
            }
            _ => None,
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Address { device, link_layer, gid, lid, .. } = self;
        match link_layer {
            LinkLayer::Ethernet => write!(f, "{device} (GID {gid})"),
            LinkLayer::InfiniBand => write!(f, "{device} (LID {lid}, GID {gid})"),
        }
    }
}
