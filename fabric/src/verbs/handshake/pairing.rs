//! The choice of the joiner's NIC for each link. The joiner computes it, without input or output.

use std::fmt;

use super::partners::{Partners, partners};
use crate::handshake::NicPair;
use crate::verbs::address::Address;
use crate::verbs::rail_map::RailMap;

/// The joiner's NIC for one port of the hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::verbs) struct Pairing {
    /// The hub's port, by its number in the group.
    pub port: usize,
    /// The index of the worker's NIC.
    pub nic: usize,
    /// The address of the hub's end.
    pub hub: Address,
    /// The address of the worker's end.
    pub worker: Address,
    /// The reason for this choice, in words.
    pub reason: String,
}

impl Pairing {
    pub fn nics(&self) -> NicPair {
        let (hub, joiner) = (self.hub.device.clone(), self.worker.device.clone());
        NicPair { hub, joiner, words: self.to_string() }
    }
}

impl fmt::Display for Pairing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Pairing { port, hub, worker, reason, .. } = self;
        write!(f, "the hub's port {port}, {hub}, with this end's {worker}: {reason}")
    }
}

/// A NIC of the hub and a NIC of the joiner between which no packets cross.
#[derive(Clone, Debug)]
pub(in crate::verbs) struct DeadPair {
    pub hub: Address,
    /// The index of the joiner's NIC.
    pub nic: usize,
    /// The trials and their results, in words.
    pub why: String,
}

/// Ports of the hub that no NIC of the joiner reaches, as far as the trials show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::verbs) struct Unreached {
    pub ports: Vec<u16>,
    pub why: String,
}

/// A link that needs a NIC of the joiner: the hub's port, and the NICs of the joiner's port.
pub(in crate::verbs) struct Candidates<'a> {
    pub hub_port: usize,
    pub nics: &'a [usize],
}

/// Chooses a NIC of the joiner's port for the hub's end of each link. The NIC is a partner of the hub port's NIC, so
/// that the packets of a lane (a core with its NIC) stay between partners. If no partner works, a port gets another NIC
/// that can reach the hub port's NIC, unless a map names the partners. Of several NICs, the least loaded is chosen, and
/// of equally loaded NICs the first. `loads` has, for each of the joiner's NICs, the number of its links, including
/// those of earlier connections.
pub(in crate::verbs) fn pair<'a>(
    hub: &[Address],
    links: impl IntoIterator<Item = Candidates<'a>>,
    joiner: &[Address],
    map: &RailMap,
    dead: &[DeadPair],
    loads: &mut [u32],
) -> Result<Vec<Pairing>, Unreached> {
    let mut hub_nics: Vec<&Address> = Vec::new();
    for address in hub {
        if !hub_nics.contains(&address) {
            hub_nics.push(address);
        }
    }
    let partners = partners(&hub_nics, joiner, map);
    let (mut pairs, mut unreached) = (Vec::new(), Vec::new());
    let mut why = String::new();
    for Candidates { hub_port: port, nics } in links {
        let address = &hub[port];
        let of_nic = hub_nics.iter().position(|&nic| nic == address).expect("each address is there");
        let Partners { nics: wanted, reason, mapped } = &partners[of_nic];
        let death = |nic: usize| dead.iter().find(|pair| pair.nic == nic && pair.hub == *address);
        let leads = |nic: &usize| death(*nic).is_none();
        let of_layer = |nic: &usize| joiner[*nic].link_layer == address.link_layer;
        let by_rule: Vec<usize> = wanted.iter().copied().filter(|nic| nics.contains(nic)).collect();
        let (mut fit, mut reason): (Vec<usize>, _) = // in the order of preference
            (by_rule.iter().copied().filter(leads).collect(), reason.clone());
        if fit.is_empty() && !mapped {
            fit = nics.iter().copied().filter(|&nic| address.can_reach(&joiner[nic])).filter(leads).collect();
            let why = if by_rule.is_empty() {
                "no NIC of the worker's port is a partner of the hub's NIC"
            } else {
                "no packet crosses between the hub's NIC and its partners"
            };
            reason = why.into();
        }
        let Some(&nic) = fit.iter().min_by_key(|&&nic| loads[nic]) else {
            let seen = |&nic: &usize| match death(nic) {
                Some(pair) => pair.why.clone(),
                None if address.can_reach(&joiner[nic]) => {
                    format!("{} is not the one that the map of rails names", joiner[nic])
                }
                None if of_layer(&nic) => format!("{} has an address of another IP version", joiner[nic]),
                None => format!("{} is on {}", joiner[nic], joiner[nic].link_layer),
            };
            let seen = nics.iter().map(seen).collect::<Vec<_>>().join("; ");
            why =
                format!("no NIC of the worker reaches the hub's {address} on {}: {seen}", address.link_layer);
            unreached.push(port as u16);
            continue;
        };
        loads[nic] += 1;
        pairs.push(Pairing { port, nic, hub: address.clone(), worker: joiner[nic].clone(), reason });
    }
    if unreached.is_empty() { Ok(pairs) } else { Err(Unreached { ports: unreached, why }) }
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

    /// Pairs links between these ports of the hub and a worker with one port.
    fn pair_worker(hub: &[Address], ports: &[usize], worker: &[Address]) -> Result<Vec<Pairing>, Unreached> {
        let nics: Vec<usize> = (0..worker.len()).collect();
        let links = ports.iter().map(|&hub_port| Candidates { hub_port, nics: &nics });
        pair(hub, links, worker, &RailMap::default(), &[], &mut vec![0; worker.len()])
    }

    fn pair_all(hub: &[Address], worker: &[Address]) -> Result<Vec<Pairing>, Unreached> {
        pair_worker(hub, &(0..hub.len()).collect::<Vec<_>>(), worker)
    }

    fn nics(hub: &[Address], worker: &[Address]) -> Vec<usize> {
        pair_all(hub, worker).unwrap().iter().map(|pair| pair.nic).collect()
    }

    #[test]
    fn a_nic_is_near_to_those_of_its_subnet() {
        let near = |nic: &Address, other: &Address| nic.shared_subnet(other).is_some();
        let at = |ip, prefix| roce("a", ip, prefix);
        let nic = at([10, 77, 1, 1], Some(24));
        assert!(near(&nic, &at([10, 77, 1, 2], None)) && !near(&nic, &at([10, 77, 0, 2], Some(24))));
        assert!(!near(&at([10, 77, 1, 1], None), &at([10, 77, 1, 2], None)), "its subnet is not known");
        assert!(near(&infiniband("a", 1), &infiniband("b", 2)), "all of it is one subnet");
        assert!(!near(&infiniband("a", 1), &nic));
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
    fn several_of_one_subnet_are_dealt_by_place() {
        let hub: Vec<_> = (1..5).map(|last| roce("a", [10, 0, 0, last], Some(16))).collect();
        let worker = [roce("x", [10, 0, 9, 1], Some(16)), roce("y", [10, 0, 9, 2], Some(16))];
        assert_eq!(nics(&hub, &worker), [0, 1, 0, 1]);
    }

    #[test]
    fn lanes_inherit_the_rails_of_their_nics() {
        // If 8 NICs share 14 lanes, each NIC gets one or two lanes. If 5 NICs share them, each gets two or
        // three.
        for nics in [8, 5] {
            let hub: Vec<_> =
                (0..14).map(|lane| infiniband(&format!("mlx5_{}", lane * nics / 14), 7)).collect();
            let worker: Vec<_> = (0..nics).map(|nic| infiniband(&format!("mlx5_{nic}"), 8)).collect();
            let pairs = pair_all(&hub, &worker).unwrap();
            assert!(pairs.iter().all(|pair| pair.hub.device == pair.worker.device), "{nics} NICs: {pairs:?}");
        }
    }

    #[test]
    fn a_rail_without_lanes_moves_no_other() {
        let hub: Vec<_> = (0..4).map(|rail| roce(&format!("a{rail}"), [10, 0, rail, 0], Some(31))).collect();
        let worker: Vec<_> =
            (0..4).map(|rail| roce(&format!("x{rail}"), [10, 1, rail, 0], Some(31))).collect();
        let pairs = pair_worker(&hub, &[0, 2, 3], &worker).unwrap();
        assert_eq!(pairs.iter().map(|pair| pair.nic).collect::<Vec<_>>(), [0, 2, 3]);
    }

    #[test]
    fn of_several_partners_the_first_has_the_first_link_of_each_hub_in_turn() {
        // The order of the worker's list decides. Hubs with one NIC and two lanes each are paired one after
        // another.
        let worker: Vec<_> = [2, 3, 0, 1].map(|nic| infiniband(&format!("mlx5_{nic}"), 8)).to_vec();
        let (hub, all) = (vec![infiniband("mlx5_0", 7); 2], [0, 1, 2, 3]);
        let mut loads = [0; 4];
        let mut next_hub = || -> Vec<usize> {
            let links = (0..2).map(|hub_port| Candidates { hub_port, nics: &all });
            let pairs = pair(&hub, links, &worker, &RailMap::default(), &[], &mut loads).unwrap();
            pairs.iter().map(|pair| pair.nic).collect()
        };
        assert_eq!([next_hub(), next_hub(), next_hub()], [[0, 1], [2, 3], [0, 1]]);
    }

    #[test]
    fn a_link_has_a_nic_of_its_own_port() {
        let hub = [roce("a", [10, 0, 0, 1], Some(24)), roce("b", [10, 0, 0, 2], Some(24))];
        let joiner = [roce("x", [10, 0, 0, 8], Some(24)), roce("y", [10, 1, 0, 9], Some(24))];
        let links = [(0, [1]), (1, [1]), (1, [0])];
        let links = links.iter().map(|(hub_port, nics)| Candidates { hub_port: *hub_port, nics });
        let pairs = pair(&hub, links, &joiner, &RailMap::default(), &[], &mut [0; 2]).unwrap();
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
    fn a_pair_that_leads_nowhere_gives_way_to_another_unless_a_map_names_it() {
        let hub = [infiniband("a", 1), infiniband("b", 2)];
        let worker = [infiniband("a", 8), infiniband("b", 9)];
        let dead = |pairs: &[(usize, usize)]| -> Vec<DeadPair> {
            let dead = |&(port, nic): &(usize, usize)| DeadPair {
                hub: hub[port].clone(),
                nic,
                why: format!("nothing from {}", worker[nic]),
            };
            pairs.iter().map(dead).collect()
        };
        let found = |map: &str, pairs: &[(usize, usize)]| {
            let links = (0..2).map(|hub_port| Candidates { hub_port, nics: &[0, 1] });
            let pairs = pair(&hub, links, &worker, &map.parse().unwrap(), &dead(pairs), &mut [0; 2])?;
            Ok::<Vec<usize>, Unreached>(pairs.iter().map(|pair| pair.nic).collect())
        };
        assert_eq!(found("", &[]), Ok(vec![0, 1]));
        assert_eq!(found("", &[(0, 0)]), Ok(vec![1, 1]), "the rail of the other port stays");
        assert_eq!(found("", &[(0, 0), (1, 1)]), Ok(vec![1, 0]), "names that cross");
        let Unreached { ports, why } = found("", &[(0, 0), (1, 1), (1, 0)]).unwrap_err();
        assert_eq!(ports, [1]);
        for expected in ["the hub's b (LID 2", "nothing from a (LID 8", "nothing from b (LID 9"] {
            assert!(why.contains(expected), "{why}");
        }
        let Unreached { ports, why } = found("a=b,b=a", &[(0, 1)]).unwrap_err();
        assert_eq!(ports, [0]);
        assert!(why.contains("is not the one that the map of rails names"), "{why}");
    }

    #[test]
    fn versions_of_ip_do_not_mix() {
        let v6 = |device: &str, ip: &str| Address {
            gid: Gid(ip.parse::<std::net::Ipv6Addr>().unwrap().octets()),
            ..roce(device, [0; 4], Some(64))
        };
        let hub = [v6("a", "2001:db8::1"), roce("b", [10, 0, 0, 1], Some(24))];
        let worker = [roce("x", [10, 1, 0, 1], Some(24)), v6("y", "2001:db9::1")];
        assert_eq!(nics(&hub, &worker), [1, 0]);
        let error = pair_all(&hub[..1], &worker[..1]).unwrap_err();
        assert!(error.why.contains("has an address of another IP version"), "{error:?}");
    }

    #[test]
    fn link_layers_do_not_mix() {
        let error = pair_all(&[infiniband("a", 7)], &[roce("x", [10, 0, 0, 1], None)]).unwrap_err();
        assert_eq!(error.ports, [0]);
        let error = error.why;
        assert!(
            error.contains("LID 7") && error.contains("x (GID ::ffff:10.0.0.1) is on Ethernet"),
            "{error}"
        );
        assert_eq!(nics(&[infiniband("a", 7)], &[roce("x", [10, 0, 0, 1], None), infiniband("y", 8)]), [1]);
    }
}
