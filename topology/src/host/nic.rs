//! A network interface as placement sees it: its locality, its speed, its names.
//!
//! One [`Nic`] is one device, not one port. An RDMA device and its net devices are one NIC with all their names. This
//! module must not depend on how a NIC was found, and knows no network addresses or peers.

use super::ids::{NodeId, SocketId};
use super::pci::PciAddress;
use std::cmp::Ordering;
use std::fmt;

/// One network device.
#[derive(Clone, Debug, PartialEq)]
pub struct Nic {
    /// The RDMA device's name if there is one, else the net device's.
    pub name: String,
    /// The kind of device.
    pub kind: NicKind,
    /// The NUMA node of the NIC; `None` if unknown, or if only the socket is known.
    pub node: Option<NodeId>,
    /// The socket of the NIC; `None` if unknown.
    pub socket: Option<SocketId>,
    /// The PCI function of the NIC. For soft-RoCE, the PCI function of the net device below it.
    pub pci: Option<PciAddress>,
    /// The speed, if known.
    pub speed: Option<Speed>,
    /// The net devices (`eth0`, `ib0`) of this NIC.
    pub netdevs: Vec<String>,
    /// The RDMA device (`mlx5_0`, `rxe0`) of this NIC.
    pub ibdev: Option<String>,
    /// Whether the NIC has a link; `None` if unknown.
    pub link_up: Option<bool>,
}

impl Nic {
    /// Returns a NIC with a known name and kind, and nothing else.
    pub fn named(name: impl Into<String>, kind: NicKind) -> Self {
        Self {
            name: name.into(),
            kind,
            node: None,
            socket: None,
            pci: None,
            speed: None,
            netdevs: Vec::new(),
            ibdev: None,
            link_up: None,
        }
    }

    /// Returns the speed in bits per second, if known.
    pub fn bits_per_s(&self) -> Option<u64> {
        self.speed.map(|speed| speed.bits_per_s)
    }

    /// Whether `name` is one of this NIC's names.
    pub fn has_name(&self, name: &str) -> bool {
        self.name == name || self.ibdev.as_deref() == Some(name) || self.netdevs.iter().any(|n| n == name)
    }
}

/// The kinds of NICs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NicKind {
    /// Ethernet without RDMA.
    Ethernet,
    /// InfiniBand.
    Infiniband,
    /// RDMA in hardware over Ethernet.
    Roce,
    /// iWARP in hardware.
    Iwarp,
    /// Soft-RoCE (`rdma_rxe`): RDMA in the kernel over any net device.
    Rxe,
    /// Soft-iWARP (`siw`).
    Siw,
}

impl NicKind {
    /// Whether the NIC supports RDMA verbs.
    pub fn has_verbs(self) -> bool {
        self != Self::Ethernet
    }
}

impl fmt::Display for NicKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ethernet => "Ethernet",
            Self::Infiniband => "InfiniBand",
            Self::Roce => "RoCE",
            Self::Iwarp => "iWARP",
            Self::Rxe => "soft-RoCE",
            Self::Siw => "soft-iWARP",
        })
    }
}

/// A speed, and its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Speed {
    /// Bits per second, one direction; never 0.
    pub bits_per_s: u64,
    /// The source of the speed.
    pub source: SpeedSource,
}

impl Speed {
    /// Creates a speed, or `None` for 0.
    pub fn new(bits_per_s: u64, source: SpeedSource) -> Option<Self> {
        (bits_per_s > 0).then_some(Self { bits_per_s, source })
    }
}

/// The source of a [`Speed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SpeedSource {
    /// The port's negotiated rate.
    Port,
    /// The PCI link's rate: an upper bound of the port's rate.
    PciLink,
    /// A number in the synthetic description.
    Given,
}

/// Compares names, with the numbers in them as numbers: `eth2` comes before `eth10`.
pub(crate) fn natural_order(a: &str, b: &str) -> Ordering {
    let (mut a_rest, mut b_rest) = (a.as_bytes(), b.as_bytes());
    while let (Some(&x), Some(&y)) = (a_rest.first(), b_rest.first()) {
        let order;
        if x.is_ascii_digit() && y.is_ascii_digit() {
            let (m, n) = (digit_run(a_rest), digit_run(b_rest));
            let (p, q) = (strip_zeros(&a_rest[..m]), strip_zeros(&b_rest[..n]));
            order = p.len().cmp(&q.len()).then(p.cmp(q));
            (a_rest, b_rest) = (&a_rest[m..], &b_rest[n..]);
        } else {
            order = x.cmp(&y);
            (a_rest, b_rest) = (&a_rest[1..], &b_rest[1..]);
        }
        if order != Ordering::Equal {
            return order;
        }
    }
    a_rest.len().cmp(&b_rest.len()).then(a.cmp(b))
}

fn digit_run(text: &[u8]) -> usize {
    text.iter().take_while(|byte| byte.is_ascii_digit()).count()
}

fn strip_zeros(digits: &[u8]) -> &[u8] {
    &digits[digits.iter().take_while(|&&digit| digit == b'0').count()..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_sort_by_their_numbers() {
        let mut names = ["mlx5_10", "eth10", "mlx5_2", "eth2", "eth", "eth02"];
        names.sort_by(|a, b| natural_order(a, b));
        assert_eq!(names, ["eth", "eth02", "eth2", "eth10", "mlx5_2", "mlx5_10"]);
    }

    #[test]
    fn a_nic_has_all_its_names() {
        let nic = Nic {
            netdevs: vec!["eth2".into(), "ib0".into()],
            ibdev: Some("mlx4_0".into()),
            ..Nic::named("mlx4_0", NicKind::Infiniband)
        };
        assert!(nic.has_name("mlx4_0") && nic.has_name("ib0") && !nic.has_name("ib1"));
    }
}
