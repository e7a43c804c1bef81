//! The NICs that can carry RDMA, out of those that a list selects. Hub and worker use the same rule, so one
//! unusable NIC does not prevent RDMA. This module only computes.

use super::address::LinkLayer;
use super::device::Device;
use super::handles::error::{ELSEWHERE, LINK_LOCAL};
use super::nic::NicOptions;
use super::nic_list::NicList;

/// The fitness of a machine's devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fitness {
    /// The NICs that are not used, although their ports may be active.
    pub unfit: Vec<NicOptions>,
    /// One line for each NIC that is not used, or that should be repaired: the NIC, and the reason.
    pub warnings: Vec<String>,
}

impl Fitness {
    /// Judges the devices that `list` selects. A device that the list names is used in any state, so that a
    /// later error names its fault.
    pub fn of(devices: &[Device], list: &NicList) -> Self {
        let mut found = Fitness::default();
        if list.names_devices() {
            return found;
        }
        let (mut doubtful, mut has_others) = (Vec::new(), false);
        let each = |device| list.nics(device).into_iter().map(move |nic| (device, nic));
        for (device, nic) in devices.iter().flat_map(each) {
            match &device.fault {
                None => {}
                Some(fault) if fault.may_pass() => {
                    found.warnings.push(format!("RDMA does not use {nic} for now: {fault}"));
                    continue;
                }
                Some(fault) => {
                    found.leave_out(nic, &fault.to_string());
                    continue;
                }
            }
            let Some(port) = device.port(nic.port).filter(|port| port.active) else { continue };
            match device.gid(port, nic.gid_index) {
                Err(error) => found.leave_out(nic, &error.to_string()),
                Ok(chosen) => {
                    let ethernet = port.link_layer == LinkLayer::Ethernet;
                    if !ethernet || nic.gid_index.is_some() {
                        has_others = true;
                    } else if chosen.entry.elsewhere {
                        doubtful.push((nic, ELSEWHERE));
                    } else if chosen.entry.gid.is_link_local() {
                        doubtful.push((nic, LINK_LOCAL));
                    } else {
                        has_others = true;
                    }
                }
            }
        }
        for (nic, why) in doubtful {
            if has_others {
                found.leave_out(nic, why);
            } else {
                found
                    .warnings
                    .push(format!("RDMA uses {nic}, because there is no better NIC, although {why}"));
            }
        }
        found
    }

    /// Whether a NIC may be used.
    pub fn allows(&self, nic: &NicOptions) -> bool {
        !self.unfit.contains(nic)
    }

    fn leave_out(&mut self, nic: NicOptions, why: &str) {
        self.warnings.push(format!("RDMA does not use {nic}: {why}"));
        self.unfit.push(nic);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::address::{Gid, Mtu};
    use crate::verbs::device::DevicePort;
    use crate::verbs::gid::{self, GidEntry};
    use crate::verbs::handles::error::DeviceError;

    fn device(name: &str, gids: &[&str]) -> Device {
        let entry = |(index, address): (usize, &&str)| GidEntry {
            index: index as u8,
            gid: Gid(address.parse::<std::net::Ipv6Addr>().unwrap().octets()),
            roce_v2: true,
            netdev: Some(format!("net-{name}")),
            elsewhere: name.starts_with("hosts"),
        };
        let gids: Vec<GidEntry> = gids.iter().enumerate().map(entry).collect();
        let port = DevicePort {
            number: 1,
            active: true,
            state: "ACTIVE",
            link_layer: LinkLayer::Ethernet,
            mtu: Mtu::from_code(5),
            gbps: None,
            lid: 0,
            netdev: None,
            gid: gid::choose(name, 1, LinkLayer::Ethernet, &gids, None),
            gids,
        };
        Device { name: name.into(), ports: vec![port], fault: None }
    }

    fn closed(name: &str) -> Device {
        let fault = DeviceError::Open { device: name.into(), error: "Permission denied".into() };
        Device { name: name.into(), ports: Vec::new(), fault: Some(fault) }
    }

    #[test]
    fn a_device_that_is_not_fit_is_named_and_costs_nobody_else() {
        let devices = [
            device("good", &["::ffff:10.0.0.1"]),
            closed("shut"),
            device("bare", &[]),
            device("lonely", &["fe80::1:2"]),
        ];
        let found = Fitness::of(&devices, &NicList::default());
        assert_eq!(found.unfit, ["shut", "bare", "lonely"].map(NicOptions::new));
        for (line, words) in found.warnings.iter().zip([
            "shut: cannot open",
            "bare: bare port 1: there is no GID",
            "lonely: its only",
        ]) {
            assert!(line.contains(words), "{line:?} lacks {words:?}");
        }
        assert!(found.allows(&NicOptions::new("good")) && !found.allows(&NicOptions::new("bare")));
        let named = "good,shut".parse().unwrap();
        assert_eq!(
            Fitness::of(&devices, &named),
            Fitness::default(),
            "what is named must work, or say why not"
        );
    }

    #[test]
    fn a_device_that_may_open_later_is_warned_of_and_not_left_out() {
        let fault = DeviceError::Call { device: "ill".into(), call: "ibv_open_device", error: "EIO".into() };
        let ill = Device { name: "ill".into(), ports: Vec::new(), fault: Some(fault) };
        let found = Fitness::of(&[device("good", &["::ffff:10.0.0.1"]), ill], &NicList::default());
        assert!(found.allows(&NicOptions::new("ill")));
        assert_eq!(found.warnings, ["RDMA does not use ill for now: ibv_open_device on ill: EIO"]);
    }

    #[test]
    fn a_port_that_is_not_fit_costs_its_device_no_other_port() {
        let mut device = Device::made_up("mlx4_0", &[true, true]);
        device.ports[0].gids.clear();
        let found = Fitness::of(&[device], &NicList::default());
        assert_eq!(found.unfit.iter().map(NicOptions::to_string).collect::<Vec<_>>(), ["mlx4_0:1"]);
    }

    #[test]
    fn a_nic_of_another_namespace_is_used_where_there_is_nothing_else() {
        let hosts = device("hosts", &["::ffff:10.0.0.2"]);
        let found = Fitness::of(&[device("good", &["::ffff:10.0.0.1"]), hosts.clone()], &NicList::default());
        assert_eq!(found.unfit, [NicOptions::new("hosts")]);
        assert!(found.warnings[0].contains("not use hosts: the network interface"), "{:?}", found.warnings);
        let found = Fitness::of(&[hosts], &NicList::default());
        assert_eq!(found.unfit, []);
        assert!(found.warnings[0].contains("in another network namespace"), "{:?}", found.warnings);
    }

    #[test]
    fn a_link_local_address_is_used_where_there_is_nothing_else() {
        let devices = [device("lonely", &["fe80::1:2"]), closed("shut")];
        let found = Fitness::of(&devices, &NicList::default());
        assert_eq!(found.unfit, [NicOptions::new("shut")]);
        assert!(found.warnings[1].contains("RDMA uses lonely"), "{:?}", found.warnings);
    }
}
