//! Net devices below `class/net`, joined with the RDMA devices on top of them.
//!
//! A device's locality comes from its ancestors in the device tree, and not from its name. This module must
//! not depend on cpus.

use super::{SysfsError, attribute, rdma};
use crate::host::{Nic, NicKind, NodeId, PciAddress, Speed, SpeedSource};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// ARP hardware types, as `class/net/X/type` shows them.
const TYPE_ETHERNET: i64 = 1;
const TYPE_INFINIBAND: i64 = 32;

/// A net device, whether or not it counts as a NIC.
pub struct NetDevice {
    pub name: String,
    /// The hardware below it, if any.
    pub device: Option<PathBuf>,
    pub speed: Option<Speed>,
    pub link_up: Option<bool>,
    infiniband: bool,
    /// The reason why the device is not a NIC on its own, or `None` if it is a NIC.
    not_a_nic: Option<&'static str>,
}

pub fn read(root: &Path, notes: &mut Vec<String>) -> Result<Vec<Nic>, SysfsError> {
    let class = root.join("class/net");
    let mut net_devices = Vec::new();
    for name in attribute::names(&class)? {
        // `bonding_masters` is a plain file among the devices.
        if class.join(&name).is_dir() {
            net_devices.push(net_device(&class.join(&name), name, notes));
        }
    }
    let mut nics = rdma::read(root, &net_devices, notes)?;
    let mut left_out: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let taken: Vec<String> = nics.iter().flat_map(|nic| nic.netdevs.iter().cloned()).collect();
    for net in net_devices.iter().filter(|net| !taken.contains(&net.name)) {
        match (net.not_a_nic, &net.device) {
            (Some(why), _) => left_out.entry(why).or_default().push(&net.name),
            (None, device) => {
                let kind = if net.infiniband { NicKind::Infiniband } else { NicKind::Ethernet };
                let mut nic = Nic::named(&net.name, kind);
                nic.netdevs.push(net.name.clone());
                (nic.speed, nic.link_up) = (net.speed, net.link_up);
                if let Some(device) = device {
                    fill_locality(&mut nic, device, notes);
                }
                nics.push(nic);
            }
        }
    }
    // One note names all devices that are left out for the same reason, because a container host has hundreds of veths.
    notes.extend(left_out.into_iter().map(|(why, names)| format!("Not NICs, {why}: {}.", names.join(", "))));
    Ok(nics)
}

/// Fills in the PCI address and the NUMA node from the device's ancestors.
pub fn fill_locality(nic: &mut Nic, device: &Path, notes: &mut Vec<String>) {
    let mut components = device.iter().rev().filter_map(|part| part.to_str()?.parse::<PciAddress>().ok());
    nic.pci = components.next();
    // The file is searched among the ancestors: a virtio or auxiliary device has no numa_node file, but its PCI
    // function has one.
    let Some(path) = device.ancestors().map(|dir| dir.join("numa_node")).find(|path| path.exists()) else {
        return;
    };
    match attribute::integer(&path) {
        // The kernel writes -1 for an unknown node.
        Ok(-1) => {}
        Ok(id) => match u32::try_from(id) {
            Ok(id) => nic.node = Some(NodeId(id)),
            Err(_) => {
                notes.push(format!("The node of {} is unknown: {} holds {id}.", nic.name, path.display()))
            }
        },
        Err(error) => notes.push(format!("The node of {} is unknown: {error}.", nic.name)),
    }
}

fn net_device(home: &Path, name: String, notes: &mut Vec<String>) -> NetDevice {
    let device = attribute::link_target(&home.join("device"));
    let kind = attribute::integer(&home.join("type")).ok();
    let not_a_nic = match (&device, kind) {
        (None, _) => Some("no hardware below them"),
        (Some(_), Some(TYPE_ETHERNET | TYPE_INFINIBAND)) if is_wireless(home) => Some("wireless"),
        (Some(device), Some(TYPE_ETHERNET | TYPE_INFINIBAND)) if is_function_of_listed_nic(device) => {
            Some("virtual functions of NICs that are listed")
        }
        (Some(_), Some(TYPE_ETHERNET | TYPE_INFINIBAND)) => None,
        (Some(_), _) => Some("neither Ethernet nor InfiniBand"),
    };
    // If a device has no link, reading its speed is an I/O error. The speed is then unknown, and needs no
    // note.
    let speed = match attribute::text_if_readable(&home.join("speed")).filter(|text| !text.is_empty()) {
        None => None,
        Some(text) => match text.parse::<i64>() {
            Ok(mbps) => u64::try_from(mbps)
                .ok()
                .and_then(|mbps| mbps.checked_mul(1_000_000))
                .and_then(|bits_per_s| Speed::new(bits_per_s, SpeedSource::Port)),
            Err(_) => {
                let error = attribute::garbage(&home.join("speed"), "a speed in Mb/s", &text);
                notes.push(format!("The speed of {name} is unknown: {error}."));
                None
            }
        },
    };
    let link_up = match attribute::text_if_readable(&home.join("operstate")).as_deref() {
        Some("up") => Some(true),
        Some("down" | "lowerlayerdown" | "notpresent") => Some(false),
        _ => None,
    };
    NetDevice { name, device, speed, link_up, infiniband: kind == Some(TYPE_INFINIBAND), not_a_nic }
}

fn is_wireless(home: &Path) -> bool {
    home.join("wireless").exists() || home.join("phy80211").exists()
}

/// Whether the device is an SR-IOV virtual function whose physical function also has a net device here. In a
/// container the physical function may be invisible, and then the virtual function is the NIC.
pub fn is_function_of_listed_nic(device: &Path) -> bool {
    attribute::names(&device.join("physfn/net")).is_ok_and(|names| !names.is_empty())
}
