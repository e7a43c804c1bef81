//! The RDMA devices of this machine and their ports, as a user wants to see them listed.

use std::io;
use std::path::Path;

use super::address::{LinkLayer, Mtu};
use super::error::VerbsError;
use super::gid::{self, Chosen, GidEntry, GidError, SYSFS};
use super::handles::context::Context;
use super::handles::ffi::{IBV_PORT_ACTIVE, ibv_port_attr};
use super::handles::library::LibraryError;
use super::handles::words;

/// A device, or a port of one, cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// No libibverbs.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// No device of this name.
    #[error(
        "there is no RDMA device {device:?}; this machine has {}",
        list(.there_are)
    )]
    Unknown {
        /// Who was asked for.
        device: String,
        /// Who is there.
        there_are: Vec<String>,
    },
    /// The devices could not be listed.
    #[error(
        "cannot list the RDMA devices: {0}; is the module ib_uverbs loaded (modprobe ib_uverbs), and /dev/infiniband in this container?"
    )]
    List(String),
    /// A device is there and does not open.
    #[error(
        "cannot open the RDMA device {device}: {error}; may this user write /dev/infiniband/uverbs*, and is it in this container (docker run --device /dev/infiniband)?"
    )]
    Open {
        /// The device.
        device: String,
        /// The kernel's answer.
        error: String,
    },
    /// A question to a device failed.
    #[error("{call} on {device}: {error}")]
    Call {
        /// The device.
        device: String,
        /// The function.
        call: &'static str,
        /// The kernel's answer.
        error: String,
    },
    /// None of the ports is active, or the one asked for is not.
    #[error(
        "{device}: expected an ACTIVE port{}, saw {}; set its network interface up, or look at cable, switch and subnet manager",
        wanted.map(|port| format!(" {port}")).unwrap_or_default(),
        .states.join(", ")
    )]
    NotActive {
        /// The device.
        device: String,
        /// The port that was asked for.
        wanted: Option<u8>,
        /// What the ports are.
        states: Vec<String>,
    },
}

fn list(names: &[String]) -> String {
    if names.is_empty() {
        "none: is the NIC's driver loaded (rdma link show)? For soft-RoCE: rdma link add rxe0 type rxe netdev eth0"
            .into()
    } else {
        names.join(", ")
    }
}

impl DeviceError {
    pub(super) fn list(error: io::Error) -> Self {
        DeviceError::List(error.to_string())
    }

    pub(super) fn open(device: &str) -> Self {
        let error = io::Error::last_os_error().to_string();
        DeviceError::Open { device: device.into(), error }
    }
}

/// An RDMA device.
#[derive(Clone, Debug)]
pub struct Device {
    /// Its name, e.g. `mlx5_0`.
    pub name: String,
    /// Its ports, by number from 1.
    pub ports: Vec<DevicePort>,
}

/// A port of a device.
#[derive(Clone, Debug)]
pub struct DevicePort {
    /// Its number.
    pub number: u8,
    /// Whether it is ACTIVE: nothing else carries data.
    pub active: bool,
    /// Its state in words.
    pub state: &'static str,
    /// What it is connected to.
    pub link_layer: LinkLayer,
    /// The largest packet.
    pub mtu: Option<Mtu>,
    /// Speed of the link, in Gb/s; none where the driver's codes are unknown.
    pub gbps: Option<f64>,
    /// Its LID; 0 on Ethernet.
    pub lid: u16,
    /// The network interface that it is, if one is.
    pub netdev: Option<String>,
    /// All its addresses.
    pub gids: Vec<GidEntry>,
    /// The one that would be used, and why.
    pub gid: Result<Chosen, GidError>,
}

/// All devices of this machine.
///
/// # Errors
/// When libibverbs is missing, or a device does not open.
pub fn devices() -> Result<Vec<Device>, VerbsError> {
    let mut devices = Vec::new();
    for name in Context::names()? {
        let context = Context::open(&name)?;
        let ports: Result<Vec<_>, DeviceError> =
            (1..=context.limits.ports).map(|number| DevicePort::look(&context, number)).collect();
        devices.push(Device { name, ports: ports? });
    }
    Ok(devices)
}

impl Device {
    /// The port that would be used: the one asked for, or the first that is active.
    pub fn port(&self, wanted: Option<u8>) -> Option<&DevicePort> {
        let fits = |port: &&DevicePort| wanted.map_or(port.active, |wanted| port.number == wanted);
        self.ports.iter().find(fits)
    }

    /// The GID of one of its ports that would be used: that of the index asked for, or the best by rule.
    ///
    /// # Errors
    /// When no GID will do; with the whole table.
    pub fn gid(&self, port: &DevicePort, wanted: Option<u8>) -> Result<Chosen, GidError> {
        gid::choose(&self.name, port.number, port.link_layer, &port.gids, wanted)
    }
}

impl DevicePort {
    pub(super) fn look(context: &Context, number: u8) -> Result<Self, DeviceError> {
        let attr = context.port(number)?;
        let sysfs = Path::new(SYSFS);
        let link_layer = link_layer(sysfs, &context.device, number);
        let gids = gid::read(sysfs, &context.device, number);
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

fn link_layer(sysfs: &Path, device: &str, port: u8) -> LinkLayer {
    let path = sysfs.join(device).join("ports").join(port.to_string()).join("link_layer");
    match std::fs::read_to_string(path) {
        Ok(text) if text.trim() == "InfiniBand" => LinkLayer::InfiniBand,
        _ => LinkLayer::Ethernet,
    }
}

/// Lanes times a lane's speed, from the codes of the InfiniBand specification.
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
mod tests {
    use super::*;

    #[test]
    fn a_speed_is_lanes_times_lane() {
        let port =
            |active_width, active_speed| ibv_port_attr { active_width, active_speed, ..Default::default() };
        assert_eq!(gbps(&port(2, 32)), Some(100.0)); // 4X EDR
        assert_eq!(gbps(&port(2, 16)), Some(56.0)); // 4X FDR, a PBox's
        assert_eq!(gbps(&port(1, 1)), Some(2.5)); // what soft-RoCE says
        assert_eq!(gbps(&port(3, 32)), None);
    }

    #[test]
    fn errors_say_who_is_there_and_what_to_do() {
        let unknown = |there_are| DeviceError::Unknown { device: "mlx5_9".into(), there_are };
        assert!(unknown(vec!["mlx5_0".into(), "mlx5_1".into()]).to_string().contains("has mlx5_0, mlx5_1"));
        assert!(unknown(vec![]).to_string().contains("rdma link show"));
        let states = vec!["port 1 DOWN".into(), "port 2 ARMED".into()];
        let error = DeviceError::NotActive { device: "mlx5_0".into(), wanted: None, states }.to_string();
        assert!(error.contains("an ACTIVE port, saw port 1 DOWN, port 2 ARMED"), "{error}");
    }
}
