//! A NIC in use: an opened device, one of its ports, and the port's address.
//!
//! The NIC is opened before any port of its group uses it, and is only read after that.

use std::fmt;
use std::sync::Arc;

use super::address::{Address, LinkLayer};
use super::device::DevicePort;
use super::error::VerbsError;
use super::gid::{self, GidEntry};
use super::handles::context::Context;
use super::handles::error::DeviceError;
use super::handles::ffi::{IBV_PORT_ACTIVE, IBV_QPF_GRH_REQUIRED};
use super::path_settings::PathSettings;
use super::subnet;

/// The NIC to use, with the port and GID that the user requests.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NicOptions {
    /// The device's name, e.g. `mlx5_0`.
    pub device: String,
    /// The port, or `None` for the first active port. Each active port of a device counts as a NIC.
    pub port: Option<u8>,
    /// The index of the GID, or `None` for the best GID by rule.
    pub gid_index: Option<u8>,
}

impl NicOptions {
    /// Creates options for a device. Port and GID are chosen by rule.
    pub fn new(device: impl Into<String>) -> Self {
        NicOptions { device: device.into(), port: None, gid_index: None }
    }
}

/// Prints the form that a list of NICs uses: `mlx5_0:1@3`.
impl fmt::Display for NicOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.device)?;
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))?;
        self.gid_index.map_or(Ok(()), |index| write!(f, "@{index}"))
    }
}

/// A port of an opened device.
#[derive(Debug)]
pub struct Nic {
    pub(super) context: Arc<Context>,
    pub(super) port: u8,
    pub(super) gid_index: u8,
    pub(super) address: Address,
    pub(super) gids: Vec<GidEntry>,
    pub(super) settings: PathSettings,
    /// Whether the port can only be reached by GIDs, even on InfiniBand.
    pub(super) needs_global_route: bool,
    gbps: Option<f64>,
    reason: String,
}

impl Nic {
    pub(super) fn open(
        context: &Arc<Context>,
        options: &NicOptions,
        settings: PathSettings,
    ) -> Result<Self, VerbsError> {
        let port = choose_port(context, options)?;
        let attr = context.port(port.number)?;
        let port_name = format!("{} port {}", context.device, port.number);
        let key = |index| context.partition_key(port.number, index);
        let settings = settings.with_pkey(&port_name, attr.pkey_tbl_len, key)?;
        let not_active = |state: String| DeviceError::NotActive {
            device: context.device.clone(),
            wanted: Some(port.number),
            states: vec![state],
        };
        let mtu = port.mtu.ok_or_else(|| not_active(format!("port {} without an MTU", port.number)))?;
        let mtu = mtu.min(settings.mtu);
        let chosen =
            gid::choose(&context.device, port.number, port.link_layer, &port.gids, options.gid_index)?;
        let gid = chosen.entry.gid;
        let mut address = Address {
            device: context.device.clone(),
            link_layer: port.link_layer,
            gid,
            prefix: None,
            lid: port.lid,
            mtu,
        };
        address.prefix = chosen.entry.netdev.as_deref().and_then(|name| subnet::prefix(name, address.ip()));
        let why_port = if options.port.is_some() { "asked for" } else { "the first that is active" };
        let reason = format!(
            "port {} ({why_port}; {}, MTU {}), GID {} {gid} ({}), {settings}",
            port.number,
            port.link_layer,
            mtu.bytes(),
            chosen.entry.index,
            chosen.reason
        );
        let gid_index = chosen.entry.index;
        Ok(Nic {
            context: Arc::clone(context),
            port: port.number,
            gid_index,
            address,
            gids: port.gids,
            settings,
            needs_global_route: attr.flags & IBV_QPF_GRH_REQUIRED != 0,
            gbps: port.gbps,
            reason,
        })
    }

    /// Whether the NIC has a link-local address. Such a NIC is used only if there is no better NIC.
    pub(super) fn is_link_local(&self) -> bool {
        self.address.link_layer == LinkLayer::Ethernet && self.address.gid.is_link_local()
    }

    /// Whether the NIC's port is now ACTIVE.
    pub(super) fn has_link(&self) -> bool {
        self.context.port(self.port).is_ok_and(|attr| attr.state == IBV_PORT_ACTIVE)
    }

    /// Returns the address of the NIC's port.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Returns the device's name, and its port if the device has several: `mlx5_0`, `mlx4_0:2`.
    pub fn name(&self) -> String {
        name(&self.address.device, self.port, self.context.limits.ports)
    }

    /// Returns the number of the NIC's port on its device.
    pub fn port(&self) -> u8 {
        self.port
    }

    /// Returns the speed of the port's link in Gb/s, if known.
    pub fn gbps(&self) -> Option<f64> {
        self.gbps
    }

    /// Returns the port and the GID with the reason for this choice, as a line for logs.
    pub fn reason(&self) -> &str {
        &self.reason
    }
}

fn name(device: &str, port: u8, ports: u8) -> String {
    if ports > 1 { format!("{device}:{port}") } else { device.to_owned() }
}

fn choose_port(context: &Context, options: &NicOptions) -> Result<DevicePort, VerbsError> {
    let mut states = Vec::new();
    for number in 1..=context.limits.ports {
        if options.port.is_some_and(|wanted| wanted != number) {
            continue;
        }
        let port = DevicePort::query(context, number)?;
        if port.active {
            return Ok(port);
        }
        states.push(format!("port {number} {}", port.state));
    }
    if states.is_empty() {
        states.push(format!("a device of {} ports", context.limits.ports));
    }
    Err(DeviceError::NotActive { device: context.device.clone(), wanted: options.port, states }.into())
}

#[cfg(test)]
mod tests {
    use super::name;

    #[test]
    fn a_port_is_named_where_the_device_has_several() {
        assert_eq!((&*name("mlx5_0", 1, 1), &*name("mlx4_0", 2, 2)), ("mlx5_0", "mlx4_0:2"));
    }
}
