//! Which NIC of the joiner each link goes over. Pure; the joiner computes it.

use std::fmt;

use crate::verbs::address::Address;

/// One hub port's partner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::verbs) struct Pairing {
    /// The hub's port, by its number in the group.
    pub port: usize,
    /// Number of the worker's NIC.
    pub nic: usize,
    /// The hub's end.
    pub hub: Address,
    /// The worker's end.
    pub worker: Address,
    /// Why these two, in words.
    pub reason: String,
}

impl fmt::Display for Pairing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Pairing { port, hub, worker, reason, .. } = self;
        write!(f, "the hub's port {port}, {hub}, with this end's {worker}: {reason}")
    }
}

/// A link that needs a NIC of the joiner: the port of the hub, and the NICs of the joiner's port.
pub(in crate::verbs) struct Candidates<'a> {
    pub hub_port: usize,
    pub nics: &'a [usize],
}

/// Pairs each link's hub port with one of the NICs of its joiner's port. A NIC of the same subnet comes first, else
/// any of the same link layer; of several the least loaded, so that they are dealt in turn.
pub(in crate::verbs) fn pair<'a>(
    hub: &[Address],
    links: impl IntoIterator<Item = Candidates<'a>>,
    joiner: &[Address],
) -> Result<Vec<Pairing>, String> {
    let mut loads = vec![0u32; joiner.len()];
    let mut pairs = Vec::new();
    for Candidates { hub_port: port, nics } in links {
        let address = &hub[port];
        let near: Vec<(usize, Option<String>)> = (nics.iter())
            .map(|&nic| (nic, address.shared_subnet(&joiner[nic])))
            .filter(|(_, subnet)| subnet.is_some())
            .collect();
        let fit: Vec<(usize, Option<String>)> = if near.is_empty() {
            let same = nics.iter().filter(|&&nic| joiner[nic].link_layer == address.link_layer);
            same.map(|&nic| (nic, None)).collect()
        } else {
            near
        };
        // The first of those that are equally loaded.
        let Some((nic, subnet)) = fit.iter().min_by_key(|(nic, _)| loads[*nic]) else {
            let have = |&nic: &usize| format!("{} on {}", joiner[nic], joiner[nic].link_layer);
            return Err(format!(
                "the hub's {address} is on {}, and no NIC of the worker is: {}",
                address.link_layer,
                nics.iter().map(have).collect::<Vec<_>>().join(", ")
            ));
        };
        loads[*nic] += 1;
        let reason = match subnet {
            Some(subnet) => format!("both are in {subnet}"),
            None => "no NIC of the worker is in its subnet: dealt in turn".into(),
        };
        let (hub, worker) = (address.clone(), joiner[*nic].clone());
        pairs.push(Pairing { port, nic: *nic, hub, worker, reason });
    }
    Ok(pairs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::address::Gid;
    use crate::verbs::address::{LinkLayer, Mtu};

    fn roce(device: &str, ip: [u8; 4], prefix: Option<u8>) -> Address {
        let gid = std::net::Ipv4Addr::from(ip).to_ipv6_mapped().octets();
        Address {
            device: device.into(),
            link_layer: LinkLayer::Ethernet,
            gid: Gid(gid),
            prefix,
            lid: 0,
            mtu: Mtu::from_code(5).unwrap(),
        }
    }

    fn infiniband(device: &str, lid: u16) -> Address {
        let gid = format!("fe80::{lid:x}:1").parse::<std::net::Ipv6Addr>().unwrap().octets();
        Address { link_layer: LinkLayer::InfiniBand, lid, gid: Gid(gid), ..roce(device, [0; 4], None) }
    }

    /// Links of these hub ports with a worker of one port.
    fn pair_worker(hub: &[Address], ports: &[usize], worker: &[Address]) -> Result<Vec<Pairing>, String> {
        let nics: Vec<usize> = (0..worker.len()).collect();
        pair(hub, ports.iter().map(|&hub_port| Candidates { hub_port, nics: &nics }), worker)
    }

    fn pair_all(hub: &[Address], worker: &[Address]) -> Result<Vec<Pairing>, String> {
        pair_worker(hub, &(0..hub.len()).collect::<Vec<_>>(), worker)
    }

    fn nics(hub: &[Address], worker: &[Address]) -> Vec<usize> {
        pair_all(hub, worker).unwrap().iter().map(|pair| pair.nic).collect()
    }

    #[test]
    fn ports_go_to_the_nic_of_their_subnet() {
        let hub = [roce("a", [10, 0, 0, 1], Some(24)), roce("b", [10, 0, 1, 1], Some(24))];
        let worker = [roce("x", [10, 0, 1, 2], None), roce("y", [10, 0, 0, 2], Some(24))];
        let pairs = pair_all(&hub, &worker).unwrap();
        assert_eq!(pairs.iter().map(|pair| pair.nic).collect::<Vec<_>>(), [1, 0]);
        assert_eq!(pairs[0].reason, "both are in 10.0.0.0/24");
    }

    #[test]
    fn several_of_one_subnet_are_dealt_in_turn() {
        let hub: Vec<_> = (1..5).map(|last| roce("a", [10, 0, 0, last], Some(16))).collect();
        let worker = [roce("x", [10, 0, 9, 1], Some(16)), roce("y", [10, 0, 9, 2], Some(16))];
        assert_eq!(nics(&hub, &worker), [0, 1, 0, 1]);
    }

    #[test]
    fn without_a_common_subnet_all_nics_are_dealt_in_turn() {
        let hub: Vec<_> = (1..5).map(|net| roce("a", [10, 0, net, 1], Some(24))).collect();
        let worker = [roce("x", [10, 1, 0, 1], Some(24)), roce("y", [10, 1, 0, 2], Some(24))];
        let pairs = pair_worker(&hub, &[0, 2, 3], &worker).unwrap();
        assert_eq!(
            pairs.iter().map(|pair| (pair.port, pair.nic)).collect::<Vec<_>>(),
            [(0, 0), (2, 1), (3, 0)]
        );
        assert!(pairs[0].reason.contains("dealt in turn"));
    }

    #[test]
    fn a_link_has_a_nic_of_its_own_port() {
        let hub = [roce("a", [10, 0, 0, 1], Some(24)), roce("b", [10, 0, 0, 2], Some(24))];
        let joiner = [roce("x", [10, 0, 0, 8], Some(24)), roce("y", [10, 1, 0, 9], Some(24))];
        let links = [(0, [1]), (1, [1]), (1, [0])];
        let links = links.iter().map(|(hub_port, nics)| Candidates { hub_port: *hub_port, nics });
        let pairs = pair(&hub, links, &joiner).unwrap();
        assert_eq!(
            pairs.iter().map(|pair| (pair.port, pair.nic)).collect::<Vec<_>>(),
            [(0, 1), (1, 1), (1, 0)]
        );
    }

    #[test]
    fn a_prefix_that_nobody_knows_is_no_subnet() {
        let (a, b) = (roce("a", [10, 0, 0, 1], None), roce("b", [10, 0, 0, 2], None));
        assert_eq!(a.shared_subnet(&b), None);
        let whole = roce("c", [10, 0, 0, 1], Some(32));
        assert_eq!(whole.shared_subnet(&a), Some("10.0.0.1/32".into()));
        assert_eq!(whole.shared_subnet(&b), None);
    }

    #[test]
    fn link_layers_do_not_mix() {
        let error = pair_all(&[infiniband("a", 7)], &[roce("x", [10, 0, 0, 1], None)]).unwrap_err();
        assert!(error.contains("LID 7") && error.contains("x (GID ::ffff:10.0.0.1) on Ethernet"), "{error}");
        assert_eq!(nics(&[infiniband("a", 7)], &[roce("x", [10, 0, 0, 1], None), infiniband("y", 8)]), [1]);
    }
}
