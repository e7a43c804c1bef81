//! hwloc's network devices as NICs.
//!
//! If a PCI function has an RDMA device, all devices of the function are one NIC with all their names. The speed from
//! hwloc is the speed of the PCI link, and not of the port. This module must not depend on sysfs.

use super::tree::{nodes_of, os_index};
use crate::host::{Nic, NicKind, PciAddress, SocketId, Speed, SpeedSource};
use hwlocality::Topology;
use hwlocality::object::TopologyObject;
use hwlocality::object::attributes::ObjectAttributes;
use hwlocality::object::types::{OSDeviceType, ObjectType};
use std::collections::BTreeMap;

/// The text length of an IPoIB device's hardware address, which has 20 bytes. It shows that a device is IPoIB: an
/// Ethernet device's address has only 6 bytes.
const IPOIB_ADDRESS_CHARS: usize = 59;

struct OsDevice<'a> {
    name: String,
    rdma: bool,
    ipoib: bool,
    parent: &'a TopologyObject,
}

pub fn read(topology: &Topology) -> Vec<Nic> {
    let mut functions: BTreeMap<u64, Vec<OsDevice<'_>>> = BTreeMap::new();
    for object in topology.objects_with_type(ObjectType::OSDevice) {
        let Some(device) = os_device(object) else { continue };
        functions.entry(device.parent.global_persistent_index()).or_default().push(device);
    }
    functions.into_values().flat_map(nics_of_function).collect()
}

fn os_device(object: &TopologyObject) -> Option<OsDevice<'_>> {
    let Some(ObjectAttributes::OSDevice(attributes)) = object.attributes() else { return None };
    let rdma = match attributes.device_type() {
        OSDeviceType::Network => false,
        OSDeviceType::OpenFabrics => true,
        _ => return None,
    };
    let parent = object.parent()?;
    // A net device directly below the machine has no hardware: bridge, veth, loopback.
    if !rdma && parent.object_type() != ObjectType::PCIDevice {
        return None;
    }
    let ipoib = object.info("Address").is_some_and(|text| text.to_bytes().len() == IPOIB_ADDRESS_CHARS);
    Some(OsDevice { name: object.name()?.to_string_lossy().into_owned(), rdma, ipoib, parent })
}

fn nics_of_function(devices: Vec<OsDevice<'_>>) -> Vec<Nic> {
    let (rdma, net): (Vec<_>, Vec<_>) = devices.into_iter().partition(|device| device.rdma);
    if rdma.is_empty() {
        return net
            .into_iter()
            .map(|device| {
                let kind = if device.ipoib { NicKind::Infiniband } else { NicKind::Ethernet };
                let mut nic = with_locality(Nic::named(&device.name, kind), device.parent);
                nic.netdevs.push(device.name);
                nic
            })
            .collect();
    }
    // If a function has several RDMA devices, hwloc does not show which net device belongs to which RDMA device. The
    // first RDMA device gets all net devices.
    let mut netdevs: Vec<String> = net.iter().map(|device| device.name.clone()).collect();
    let ethernet = !net.is_empty() && !net.iter().any(|device| device.ipoib);
    rdma.into_iter()
        .map(|device| {
            let on_pci = device.parent.object_type() == ObjectType::PCIDevice;
            let kind = match (on_pci, ethernet) {
                (false, _) => NicKind::Rxe,
                (true, true) => NicKind::Roce,
                (true, false) => NicKind::Infiniband,
            };
            let mut nic = with_locality(Nic::named(&device.name, kind), device.parent);
            nic.netdevs = std::mem::take(&mut netdevs);
            nic.ibdev = Some(device.name);
            nic
        })
        .collect()
}

fn with_locality(mut nic: Nic, parent: &TopologyObject) -> Nic {
    if let Some(ObjectAttributes::PCIDevice(pci)) = parent.attributes() {
        nic.pci = Some(PciAddress {
            domain: pci.domain() as u32,
            bus: pci.bus_id(),
            device: pci.bus_device(),
            function: pci.function(),
        });
        // The speed of the PCI link in GB/s, or 0 if hwloc could not read it.
        let bytes_per_s = f64::from(pci.link_speed()) * 1e9;
        nic.speed = Speed::new((bytes_per_s * 8.0) as u64, SpeedSource::PciLink);
    }
    let Some(near) = parent.first_non_io_ancestor() else { return nic };
    if near.object_type() == ObjectType::Machine {
        // hwloc puts a device with unknown locality directly below the machine.
        return nic;
    }
    if let [only] = nodes_of(near)[..] {
        nic.node = Some(only);
    }
    let package = if near.object_type() == ObjectType::Package {
        Some(near)
    } else {
        near.first_ancestor_with_type(ObjectType::Package)
    };
    nic.socket = package.and_then(os_index).map(SocketId);
    nic
}
