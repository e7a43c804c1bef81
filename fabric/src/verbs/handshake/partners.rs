//! Partners: the NICs of the joiner with which each NIC of the hub may be paired. A lane, which is a core
//! with one NIC, uses the partners of that NIC. The joiner computes this, without input or output.
//!
//! ```text
//!   1. a map of the user           mlx5_0=mlx5_2
//!   2. else a common subnet        10.0.3.4/24 -- 10.0.3.9/24
//!   3. several NICs in the subnet: the same name, mlx5_3 -- mlx5_3
//!   4. the remaining NICs: by their position in the order of names
//! ```
//!
//! By default, all InfiniBand is in fe80::/64, and networks of /31 have no common subnet. In both cases names
//! and positions decide.

use std::cmp::Ordering;

use crate::verbs::address::Address;
use crate::verbs::rail_map::RailMap;

/// The NICs of the joiner that can be paired with one of the hub's NICs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Partners {
    /// The partners in the joiner's order of preference. Empty if no NIC of the joiner has the link layer of
    /// the hub's NIC.
    pub nics: Vec<usize>,
    /// The reason for these partners, in words.
    pub reason: String,
    /// Whether the user's map demands these partners. Then no other NICs may be used.
    pub mapped: bool,
}

/// Returns the partners of each NIC of the hub, among the joiner's NICs.
pub(super) fn partners(hub: &[&Address], joiner: &[Address], map: &RailMap) -> Vec<Partners> {
    let fits: Vec<(Vec<usize>, String)> = hub.iter().map(|address| fit(address, joiner)).collect();
    let mut found: Vec<Partners> = fits
        .iter()
        .map(|(_, reason)| Partners { nics: Vec::new(), reason: reason.clone(), mapped: false })
        .collect();
    for (first, (fit, _)) in fits.iter().enumerate() {
        let rivals: Vec<usize> = (0..hub.len()).filter(|&nic| fits[nic].0 == *fit).collect();
        if rivals[0] != first {
            continue; // the first NIC of the group has dealt with the whole group
        }
        for (of_hub, own, reason) in deal(hub, &rivals, joiner, fit) {
            found[of_hub].nics.push(own);
            found[of_hub].reason = format!("{}{reason}", fits[of_hub].1);
        }
    }
    for (address, partners) in hub.iter().zip(&mut found) {
        let mapped = map.with_hub_nic(&address.device);
        let is_mapped =
            |own: &Address| address.can_reach(own) && mapped.clone().any(|name| name == own.device);
        let nics: Vec<usize> = (0..joiner.len()).filter(|&nic| is_mapped(&joiner[nic])).collect();
        if !nics.is_empty() {
            *partners = Partners { nics, reason: "the map of rails names this pair".into(), mapped: true };
        } else if let Some(name) = mapped.clone().next() {
            partners.reason = format!(
                "the map of rails names {name}, which this process does not use; {}",
                partners.reason
            );
        }
        partners.nics.sort_unstable();
    }
    found
}

/// Returns the joiner's NICs in the subnet of a hub's NIC, and the reason. If there are none, returns the
/// joiner's NICs that can reach the hub's NIC.
fn fit(address: &Address, joiner: &[Address]) -> (Vec<usize>, String) {
    let shared = |nic: usize| Some((nic, address.shared_subnet(&joiner[nic])?));
    let near: Vec<(usize, String)> = (0..joiner.len()).filter_map(shared).collect();
    match near.first() {
        Some((_, subnet)) => (near.iter().map(|&(nic, _)| nic).collect(), format!("both are in {subnet}")),
        None => {
            let same = |&nic: &usize| address.can_reach(&joiner[nic]);
            ((0..joiner.len()).filter(same).collect(), "no common subnet".into())
        }
    }
}

/// Pairs NICs of the hub with NICs of the joiner, so that each NIC has a partner. NICs with the same name are
/// paired first, and then the other NICs by their positions.
fn deal(
    hub: &[&Address],
    of_hub: &[usize],
    joiner: &[Address],
    own: &[usize],
) -> Vec<(usize, usize, &'static str)> {
    if let ([_], _) | (_, [_]) = (of_hub, own) {
        let all = |&nic: &usize| own.iter().map(move |&own| (nic, own, ""));
        return of_hub.iter().flat_map(all).collect();
    }
    let mut hub_left = of_hub.to_vec();
    let mut own_left = own.to_vec();
    hub_left.sort_by(|&a, &b| by_name(&hub[a].device, &hub[b].device));
    own_left.sort_by(|&a, &b| by_name(&joiner[a].device, &joiner[b].device));
    let (all_of_hub, all_own) = (hub_left.clone(), own_left.clone());
    let mut pairs = Vec::new();
    for &nic in &all_of_hub {
        if let Some(place) = own_left.iter().position(|&own| joiner[own].device == hub[nic].device) {
            pairs.push((nic, own_left.remove(place), ", paired by name"));
            hub_left.retain(|&left| left != nic);
        }
    }
    let turns = hub_left.len().max(own_left.len());
    let hub_left = if hub_left.is_empty() { all_of_hub } else { hub_left };
    let own_left = if own_left.is_empty() { all_own } else { own_left };
    if !own_left.is_empty() {
        let turn = |turn: usize| {
            (hub_left[turn % hub_left.len()], own_left[turn % own_left.len()], ", paired by place")
        };
        pairs.extend((0..turns).map(turn));
    }
    pairs
}

/// Compares names so that `mlx5_2` comes before `mlx5_10`: of two runs of digits, the shorter comes first.
fn by_name(a: &str, b: &str) -> Ordering {
    fn key(mut name: &str) -> Vec<(&str, usize, &str)> {
        let mut key = Vec::new();
        while !name.is_empty() {
            let (word, rest) = name.split_at(name.find(|c: char| c.is_ascii_digit()).unwrap_or(name.len()));
            let (digits, rest) =
                rest.split_at(rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len()));
            key.push((word, digits.len(), digits));
            name = rest;
        }
        key
    }
    key(a).cmp(&key(b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::address::{Gid, LinkLayer, Mtu};

    fn roce(device: &str, ip: [u8; 4], prefix: u8) -> Address {
        Address {
            device: device.into(),
            link_layer: LinkLayer::Ethernet,
            gid: Gid(std::net::Ipv4Addr::from(ip).to_ipv6_mapped().octets()),
            prefix: Some(prefix),
            lid: 0,
            mtu: Mtu::from_code(5).unwrap(),
        }
    }

    /// Creates an address with the default subnet of InfiniBand.
    fn infiniband(device: &str, lid: u16) -> Address {
        let gid = format!("fe80::{lid:x}:1").parse::<std::net::Ipv6Addr>().unwrap().octets();
        Address { link_layer: LinkLayer::InfiniBand, lid, gid: Gid(gid), ..roce(device, [0; 4], 0) }
    }

    fn numbered(name: &str, numbers: impl IntoIterator<Item = u16>, lid: u16) -> Vec<Address> {
        numbers.into_iter().map(|number| infiniband(&format!("{name}{number}"), lid + number)).collect()
    }

    fn found(hub: &[Address], joiner: &[Address], map: &str) -> Vec<Partners> {
        partners(&hub.iter().collect::<Vec<_>>(), joiner, &map.parse().unwrap())
    }

    fn nics(hub: &[Address], joiner: &[Address]) -> Vec<Vec<usize>> {
        found(hub, joiner, "").into_iter().map(|partners| partners.nics).collect()
    }

    #[test]
    fn infiniband_of_one_subnet_keeps_its_rails() {
        // The library may list devices in an order that differs from that of their numbers.
        let (hub, worker) =
            (numbered("mlx5_", 0..12, 100), numbered("mlx5_", [10, 11, 3, 2, 1, 0, 4, 5, 6, 7, 8, 9], 200));
        let rails = nics(&hub, &worker);
        for (hub, rail) in hub.iter().zip(rails) {
            assert_eq!(rail.iter().map(|&nic| &worker[nic].device).collect::<Vec<_>>(), [&hub.device]);
        }
        assert_eq!(found(&hub, &worker, "")[3].reason, "both are in fe80::/64, paired by name");
    }

    #[test]
    fn rails_of_31_bits_share_nothing_and_go_by_place() {
        let hub: Vec<_> = (0..8).map(|rail| roce(&format!("mlx5_{rail}"), [10, 0, rail, 0], 31)).collect();
        let worker: Vec<_> =
            (0..8).map(|rail| roce(&format!("rocep{}s0", 20 + rail), [10, 1, rail, 2], 31)).collect();
        assert_eq!(nics(&hub, &worker), (0..8).map(|rail| vec![rail]).collect::<Vec<_>>());
        assert_eq!(found(&hub, &worker, "")[1].reason, "no common subnet, paired by place");
    }

    #[test]
    fn a_nic_that_is_missing_shifts_no_other_rail() {
        let (hub, worker) = (numbered("mlx5_", 0..8, 100), numbered("mlx5_", [0, 1, 2, 4, 5, 6, 7], 200));
        assert_eq!(nics(&hub, &worker), [[0], [1], [2], [0], [3], [4], [5], [6]]);
        // The worker's NIC 3 is paired with some NIC of the hub, rather than with none.
        assert_eq!(nics(&worker, &hub), [vec![0, 3], vec![1], vec![2], vec![4], vec![5], vec![6], vec![7]]);
    }

    #[test]
    fn unequal_numbers_are_dealt_evenly() {
        let (hub, worker) = (numbered("mlx4_", 0..10, 100), numbered("mlx5_", 0..4, 200));
        let rails = nics(&hub, &worker);
        assert_eq!(rails, [0, 1, 2, 3, 0, 1, 2, 3, 0, 1].map(|nic| vec![nic]));
        assert_eq!(nics(&worker, &hub), [vec![0, 4, 8], vec![1, 5, 9], vec![2, 6], vec![3, 7]]);
        assert_eq!(nics(&worker[..1], &hub), [(0..10).collect::<Vec<_>>()]);
    }

    #[test]
    fn subnets_come_before_names_and_the_map_before_both() {
        let hub = [roce("a0", [10, 0, 0, 1], 24), roce("a1", [10, 0, 1, 1], 24)];
        let worker = [roce("a0", [10, 0, 1, 2], 24), roce("a1", [10, 0, 0, 2], 24)];
        assert_eq!(nics(&hub, &worker), [[1], [0]]);
        let mapped = found(&hub, &worker, "a0=a0,b7=a1");
        assert_eq!((&mapped[0].nics[..], &*mapped[0].reason), (&[0][..], "the map of rails names this pair"));
        assert_eq!(mapped[1].nics, [0]);
        let words = "the map of rails names b7, which this process does not use; both are in 10.0.1.0/24";
        assert_eq!(mapped[1].reason, words);
    }

    #[test]
    fn link_layers_do_not_mix() {
        let hub = [infiniband("a", 7)];
        assert_eq!(nics(&hub, &[roce("x", [10, 0, 0, 1], 24), infiniband("y", 8)]), [[1]]);
        assert!(nics(&hub, &[roce("x", [10, 0, 0, 1], 24)])[0].is_empty());
        assert!(found(&hub, &[roce("x", [10, 0, 0, 1], 24)], "x=a")[0].nics.is_empty());
    }

    #[test]
    fn numbers_in_names_are_numbers() {
        let mut names = ["mlx5_10", "mlx5_2", "rocep134s0", "rocep59s0", "mlx5_0"];
        names.sort_by(|a, b| by_name(a, b));
        assert_eq!(names, ["mlx5_0", "mlx5_2", "mlx5_10", "rocep59s0", "rocep134s0"]);
    }
}
