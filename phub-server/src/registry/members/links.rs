//! The NICs at this hub that the members' links use.

use fabric::any::{self, Device};
use if_addrs::get_if_addrs;

/// Returns the interface or RDMA device of each link. It is known before any byte has crossed.
pub(in crate::registry) fn links_by(endpoints: &[any::Endpoint]) -> Vec<String> {
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
    devices.into_iter().map(|device| device.map_or_else(String::new, named)).collect()
}
