//! Facts about the slot and the network of a NIC. They are read below a root, so that each test can have its
//! own tree.

use std::fs::{read, read_to_string};
use std::path::Path;

/// The class of a PCI device that is a bridge between buses.
const BRIDGE: &str = "0x0604";
/// The number of the extended capability "Access Control Services".
const ACS: u32 = 0x000d;
/// The control bit with which a bridge sends requests between two devices up to the root complex.
pub(crate) const REQUEST_REDIRECT: u16 = 0x04;

/// The kernel's facts about a NIC. A fact that the kernel does not give is absent.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct NicFacts {
    /// The RDMA device, with its port if it has several.
    pub name: String,
    /// The network device of the NIC, such as `eth0`.
    pub netdev: Option<String>,
    /// The PCI link to the machine as it is now, and the best link that the NIC is capable of.
    pub slot: Option<(PciLink, PciLink)>,
    /// The kind of IOMMU domain of the NIC: `identity`, or a kind of translation.
    pub iommu: Option<String>,
    /// The PCI Express bridges above the NIC, with the value of their ACS. The value is `None` if this user
    /// may not read it.
    pub bridges: Vec<(String, Option<u16>)>,
    /// The subnets of the NIC's interface: destination and mask, as in /proc/net/route.
    pub subnets: Vec<(String, String)>,
    /// The settings for ARP and for the filter of return paths. Each field has the larger of two values: the
    /// value of the interface, and the value for all interfaces.
    pub arp_ignore: Option<u32>,
    pub rp_filter: Option<u32>,
    /// Whether flow control is on, for each priority.
    pub pfc: Option<String>,
    /// The source of a packet's priority: `pcp` or `dscp`.
    pub trust: Option<String>,
}

/// Speed and width of a PCI Express link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct PciLink {
    pub gigatransfers: f64,
    pub lanes: u32,
}

impl PciLink {
    /// Returns the link's rate in each direction, before the headers of packets.
    pub fn gbps(self) -> f64 {
        let coded = if self.gigatransfers > 5.0 { 128.0 / 130.0 } else { 0.8 };
        self.gigatransfers * coded * f64::from(self.lanes)
    }
}

impl NicFacts {
    pub fn read(root: &Path, device: &str, name: String, netdev: Option<String>) -> Self {
        let text = |path: &Path| Some(read_to_string(path).ok()?.trim().to_owned());
        let slot = root.join("sys/class/infiniband").join(device).join("device");
        let link = |which: &str| {
            let speed = text(&slot.join(format!("{which}_link_speed")))?;
            let lanes = text(&slot.join(format!("{which}_link_width")))?.parse().ok()?;
            let gigatransfers = speed.split_whitespace().next()?.parse().ok()?;
            Some(PciLink { gigatransfers, lanes }).filter(|link| link.lanes > 0)
        };
        let setting = |name: &str| {
            let conf = root.join("proc/sys/net/ipv4/conf");
            let of = |who: &str| text(&conf.join(who).join(name))?.parse().ok();
            of(netdev.as_deref()?).max(of("all"))
        };
        let qos =
            |name: &str| text(&root.join("sys/class/net").join(netdev.as_deref()?).join("qos").join(name));
        NicFacts {
            slot: link("current").zip(link("max")),
            iommu: text(&slot.join("iommu_group/type")),
            bridges: bridges(&slot),
            subnets: subnets(&text(&root.join("proc/net/route")).unwrap_or_default(), netdev.as_deref()),
            arp_ignore: setting("arp_ignore"),
            rp_filter: setting("rp_filter"),
            pfc: qos("pfc"),
            trust: qos("trust"),
            name,
            netdev,
        }
    }
}

/// Returns the bridges above a device, the nearest first. Each bridge has the control bits of its ACS: 0
/// without ACS, `None` if the configuration cannot be read.
fn bridges(slot: &Path) -> Vec<(String, Option<u16>)> {
    let Ok(slot) = slot.canonicalize() else { return Vec::new() };
    let bridge = |at: &Path| {
        let class = read_to_string(at.join("class")).ok()?;
        let name = at.file_name()?.to_str()?.to_owned();
        class.starts_with(BRIDGE).then(|| (name, read(at.join("config")).ok().and_then(|bytes| acs(&bytes))))
    };
    slot.ancestors().skip(1).filter_map(bridge).collect()
}

/// Returns the control bits of ACS in a device's configuration. Users other than root see only the first 64
/// bytes of it.
fn acs(config: &[u8]) -> Option<u16> {
    if config.len() <= 64 {
        return None;
    }
    let word = |at: usize| Some(u32::from_le_bytes(*config.get(at..)?.first_chunk()?));
    let mut at = 0x100; // the offset of the first extended capability
    // The loop has a bound, so that it ends even if the list of capabilities is a circle.
    for _ in 0..(4096 - 0x100) / 8 {
        let head = word(at).filter(|&head| head != 0 && head != u32::MAX);
        match head {
            Some(head) if head & 0xffff == ACS => return Some((word(at + 4)? >> 16) as u16),
            Some(head) if head >> 20 >= 0x100 => at = (head >> 20) as usize,
            _ => break,
        }
    }
    Some(0)
}

/// Returns the routes of an interface that need no gateway.
fn subnets(routes: &str, netdev: Option<&str>) -> Vec<(String, String)> {
    let subnet = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [interface, destination, gateway, _, _, _, _, mask, ..] = fields[..] else { return None };
        let is_own = Some(interface) == netdev && gateway == "00000000" && mask != "00000000";
        is_own.then(|| (destination.to_owned(), mask.to_owned()))
    };
    routes.lines().filter_map(subnet).collect()
}
