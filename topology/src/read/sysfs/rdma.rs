//! RDMA devices below `class/infiniband`, and their net devices.
//!
//! A soft-RoCE device has no hardware parent. It gets the locality and the speed of the net device that its GID table
//! names. This module must not depend on verbs.

use super::nics::{NetDevice, fill_locality, is_function_of_listed_nic};
use super::{SysfsError, attribute};
use crate::host::{Nic, NicKind, Speed, SpeedSource};
use std::path::{Path, PathBuf};

pub fn read(root: &Path, net_devices: &[NetDevice], notes: &mut Vec<String>) -> Result<Vec<Nic>, SysfsError> {
    let class = root.join("class/infiniband");
    let mut nics = Vec::new();
    for name in attribute::names(&class)? {
        let home = class.join(&name);
        let hardware = hardware(&home);
        if hardware.as_deref().is_some_and(is_function_of_listed_nic) {
            notes.push(format!("{name} is not a NIC: it is a virtual function of a NIC that is listed."));
            continue;
        }
        let ports = ports(&home);
        let netdevs = net_devices_of(&ports, hardware.as_deref(), net_devices);
        let mut nic = Nic::named(&name, kind(&home, &ports, hardware.is_some()));
        nic.netdevs = netdevs.iter().map(|net| net.name.clone()).collect();
        nic.ibdev = Some(name);
        match (&hardware, netdevs.first().and_then(|net| net.device.as_ref())) {
            (Some(device), _) | (None, Some(device)) => fill_locality(&mut nic, device, notes),
            (None, None) if netdevs.is_empty() => {
                notes.push(format!(
                    "The net device below {} is unknown, so the NUMA node is unknown, too.",
                    nic.name
                ));
            }
            (None, None) => {}
        }
        // The rate of a software device means nothing. The net device below it has the real speed.
        let port_speed = hardware.is_some().then(|| port_speed(&nic.name, &ports, notes)).flatten();
        nic.speed =
            port_speed.or_else(|| netdevs.iter().filter_map(|net| net.speed).max_by_key(|s| s.bits_per_s));
        nic.link_up = link_up(&ports).or_else(|| netdevs.iter().find_map(|net| net.link_up));
        nics.push(nic);
    }
    Ok(nics)
}

/// Returns the hardware below the RDMA device, or `None` for a software device.
fn hardware(home: &Path) -> Option<PathBuf> {
    let device = attribute::link_target(&home.join("device"))?;
    (!device.iter().any(|part| part == "virtual")).then_some(device)
}

fn ports(home: &Path) -> Vec<PathBuf> {
    let names = attribute::names(&home.join("ports")).unwrap_or_default();
    names.into_iter().map(|name| home.join("ports").join(name)).collect()
}

fn net_devices_of<'a>(
    ports: &[PathBuf],
    hardware: Option<&Path>,
    net_devices: &'a [NetDevice],
) -> Vec<&'a NetDevice> {
    let mut named = Vec::new();
    for directory in ports.iter().map(|port| port.join("gid_attrs/ndevs")) {
        // The entry of an unused GID exists, but cannot be read.
        let entries = attribute::names(&directory).unwrap_or_default();
        named.extend(entries.iter().filter_map(|entry| attribute::text_if_readable(&directory.join(entry))));
    }
    net_devices
        .iter()
        .filter(|net| match hardware {
            // The GID table of a hardware device also names VLANs and bonds. They are not part of this NIC.
            Some(device) => {
                net.device.as_deref() == Some(device) || (net.device.is_some() && named.contains(&net.name))
            }
            None => named.first() == Some(&net.name),
        })
        .collect()
}

fn kind(home: &Path, ports: &[PathBuf], in_hardware: bool) -> NicKind {
    let iwarp =
        attribute::text_if_readable(&home.join("node_type")).is_some_and(|text| text.starts_with('4'));
    let ethernet = ports
        .iter()
        .filter_map(|port| attribute::text_if_readable(&port.join("link_layer")))
        .any(|layer| layer == "Ethernet");
    match (in_hardware, iwarp, ethernet) {
        (true, true, _) => NicKind::Iwarp,
        (true, false, true) => NicKind::Roce,
        (true, false, false) => NicKind::Infiniband,
        (false, true, _) => NicKind::Siw,
        (false, false, _) => NicKind::Rxe,
    }
}

/// Returns the sum of the rates of the active ports, because all active ports carry data. If no port is active, returns
/// the rate of the fastest port. The card's PCI slot may be slower than this rate.
fn port_speed(name: &str, ports: &[PathBuf], notes: &mut Vec<String>) -> Option<Speed> {
    let (mut together, mut fastest) = (0u64, 0);
    for port in ports {
        let path = port.join("rate");
        let Some(text) = attribute::text_if_readable(&path) else { continue };
        match rate_bits_per_s(&text) {
            Some(bits_per_s) => {
                fastest = fastest.max(bits_per_s);
                together = together.saturating_add(if is_active(port) { bits_per_s } else { 0 });
            }
            None => {
                let error = attribute::garbage(&path, "a rate, such as 100 Gb/sec (4X EDR)", &text);
                notes.push(format!("The speed of a port of {name} is unknown: {error}."));
            }
        }
    }
    Speed::new(if together > 0 { together } else { fastest }, SpeedSource::Port)
}

fn is_active(port: &Path) -> bool {
    attribute::text_if_readable(&port.join("state")).is_some_and(|state| state.starts_with('4'))
}

/// Parses a rate such as `2.5 Gb/sec (1X SDR)`. Returns bits per second.
fn rate_bits_per_s(text: &str) -> Option<u64> {
    let (number, rest) = text.split_once(' ')?;
    let gbps: f64 = number.parse().ok()?;
    let sane = rest.starts_with("Gb/sec") && gbps.is_finite() && (0.0..1e6).contains(&gbps);
    sane.then_some((gbps * 1e9) as u64)
}

/// Returns whether the device is usable, which means that any port is active.
fn link_up(ports: &[PathBuf]) -> Option<bool> {
    let states: Vec<String> =
        ports.iter().filter_map(|port| attribute::text_if_readable(&port.join("state"))).collect();
    (!states.is_empty()).then(|| states.iter().any(|state| state.starts_with('4')))
}
