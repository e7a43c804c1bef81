//! The RDMA devices of this machine and their ports, for a list that a person reads.

use std::path::Path;

use super::address::{LinkLayer, Mtu};
use super::error::VerbsError;
use super::gid::{self, Chosen, GidEntry, GidError, SYSFS};
use super::handles::context::Context;
use super::handles::domain::Domain;
use super::handles::error::DeviceError;
use super::handles::ffi::{IBV_PORT_ACTIVE, ibv_port_attr};
use super::handles::{region, words};

/// An RDMA device.
#[derive(Clone, Debug)]
pub struct Device {
    /// The name, e.g. `mlx5_0`.
    pub name: String,
    /// The ports, with numbers from 1. Empty if the device cannot be queried.
    pub ports: Vec<DevicePort>,
    /// The reason why the device cannot be queried.
    pub fault: Option<DeviceError>,
}

/// A port of a device.
#[derive(Clone, Debug)]
pub struct DevicePort {
    /// The number of the port on its device.
    pub number: u8,
    /// Whether the port is ACTIVE. Only such a port carries data.
    pub active: bool,
    /// The state in words.
    pub state: &'static str,
    /// The network that the port is connected to.
    pub link_layer: LinkLayer,
    /// The largest packet.
    pub mtu: Option<Mtu>,
    /// The speed of the link in Gb/s, or `None` if the driver's codes are unknown.
    pub gbps: Option<f64>,
    /// The LID, or 0 on Ethernet.
    pub lid: u16,
    /// The network interface, if it has one.
    pub netdev: Option<String>,
    /// All addresses of the port.
    pub gids: Vec<GidEntry>,
    /// The GID that RDMA would use, with the reason, or the reason why there is none.
    pub gid: Result<Chosen, GidError>,
}

/// Returns all devices of this machine, including those that cannot be opened.
///
/// # Errors
/// Returns an error if libibverbs is missing, or the devices cannot be listed.
pub fn devices() -> Result<Vec<Device>, VerbsError> {
    let ports = |name: &str| -> Result<Vec<DevicePort>, DeviceError> {
        let context = Context::open(name)?;
        (1..=context.limits.ports).map(|number| DevicePort::query(&context, number)).collect()
    };
    let device = |name: String| match ports(&name) {
        Ok(ports) => Device { name, ports, fault: None },
        Err(fault) => Device { name, ports: Vec::new(), fault: Some(fault) },
    };
    Ok(Context::names()?.into_iter().map(device).collect())
}

impl Device {
    /// Returns the port that RDMA would use: the requested port, or the first active port.
    pub fn port(&self, wanted: Option<u8>) -> Option<&DevicePort> {
        let fits = |port: &&DevicePort| wanted.map_or(port.active, |wanted| port.number == wanted);
        self.ports.iter().find(fits)
    }

    /// Returns the GID that RDMA would use at a port: the GID with the requested index, or the best GID by
    /// rule.
    ///
    /// # Errors
    /// Returns an error with the whole table if no GID is usable.
    pub fn gid(&self, port: &DevicePort, wanted: Option<u8>) -> Result<Chosen, GidError> {
        gid::choose(&self.name, port.number, port.link_layer, &port.gids, wanted)
    }
}

impl DevicePort {
    pub(super) fn query(context: &Context, number: u8) -> Result<Self, DeviceError> {
        let attr = context.port(number)?;
        let sysfs = Path::new(SYSFS);
        let link_layer = link_layer(sysfs, &context.device, number);
        let gids = gid::read(sysfs, &context.device, number, gid::is_here);
        Ok(DevicePort {
            number,
            active: attr.state == IBV_PORT_ACTIVE,
            state: words::port_state(attr.state),
            link_layer,
            mtu: Mtu::from_code(attr.active_mtu),
            gbps: gbps(&attr),
            lid: attr.lid,
            netdev: gids.first().and_then(|entry| entry.netdev.clone()),
            gid: gid::choose(&context.device, number, link_layer, &gids, None),
            gids,
        })
    }
}

/// Checks that a device's driver accepts dma-bufs. The result does not depend on any GPU.
///
/// # Errors
/// Returns the reason if the driver accepts none, or if the device does not open.
pub fn takes_dma_bufs(device: &str) -> Result<(), String> {
    let context = Context::open(device).map_err(|error| error.to_string())?;
    let domain = Domain::new(&context).map_err(|error| error.to_string())?;
    region::takes_dma_bufs(&domain)
}

pub(super) fn link_layer(sysfs: &Path, device: &str, port: u8) -> LinkLayer {
    let path = sysfs.join(device).join("ports").join(port.to_string()).join("link_layer");
    match std::fs::read_to_string(path) {
        Ok(text) if text.trim() == "InfiniBand" => LinkLayer::InfiniBand,
        _ => LinkLayer::Ethernet,
    }
}

/// Returns the speed of a link, which is its number of lanes times a lane's speed. The device reports the two
/// factors as codes of the InfiniBand specification.
fn gbps(attr: &ibv_port_attr) -> Option<f64> {
    let lanes = match attr.active_width {
        1 => 1.0,
        2 => 4.0,
        4 => 8.0,
        8 => 12.0,
        16 => 2.0,
        _ => return None,
    };
    let lane = match attr.active_speed {
        1 => 2.5,
        2 => 5.0,
        4 | 8 => 10.0,
        16 => 14.0,
        32 => 25.0,
        64 => 50.0,
        128 => 100.0,
        _ => return None,
    };
    Some(lanes * lane)
}

#[cfg(test)]
impl Device {
    /// Creates a device with one RoCE port for each entry of `active`. Each port has its own address.
    pub(super) fn made_up(name: &str, active: &[bool]) -> Self {
        let port = |(number, &active): (u8, &bool)| {
            let gid = std::net::Ipv4Addr::new(10, 0, number, 1).to_ipv6_mapped().octets();
            let netdev = Some(format!("net-{name}-{number}"));
            let gids = vec![GidEntry {
                index: 0,
                gid: super::Gid(gid),
                roce_v2: true,
                netdev: netdev.clone(),
                elsewhere: false,
            }];
            DevicePort {
                number,
                active,
                state: if active { "ACTIVE" } else { "DOWN" },
                link_layer: LinkLayer::Ethernet,
                mtu: Mtu::from_code(5),
                gbps: None,
                lid: 0,
                netdev,
                gid: gid::choose(name, number, LinkLayer::Ethernet, &gids, None),
                gids,
            }
        };
        Device { name: name.into(), ports: (1..).zip(active).map(port).collect(), fault: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_speed_is_lanes_times_lane() {
        let port =
            |active_width, active_speed| ibv_port_attr { active_width, active_speed, ..Default::default() };
        assert_eq!(gbps(&port(2, 32)), Some(100.0)); // 4X EDR
        assert_eq!(gbps(&port(2, 16)), Some(56.0)); // 4X FDR, the NICs of PBox
        assert_eq!(gbps(&port(1, 1)), Some(2.5)); // what soft-RoCE reports
        assert_eq!(gbps(&port(3, 32)), None);
    }
}
