//! The choice of NICs for each core.
//!
//! ```text
//!   node with c cores and k NICs     c >= k: each core one NIC, each NIC its share of cores
//!                                    c <  k: each core several NICs
//!   NIC whose node has no owner      a node of its socket serves it, otherwise the node with the least NIC speed per core
//!   cores whose node has no NIC      use NICs of their socket, otherwise any NICs
//! ```
//!
//! This module must not depend on items.

use super::nic_choice::UsedNic;
use super::{apportion, lpt};
use crate::amount::count;
use crate::host::{Cpu, NodeId, SocketId};

/// The owners on one node.
pub struct NodeCores {
    pub node: NodeId,
    pub socket: SocketId,
    pub cores: usize,
}

/// Returns the group (the owners of one node) that serves each NIC. Returns an empty list if there are no groups.
pub fn home_groups(nics: &[UsedNic], groups: &[NodeCores]) -> Vec<usize> {
    if groups.is_empty() {
        return Vec::new();
    }
    let mut load = vec![0u128; groups.len()];
    let own = |nic: &UsedNic| groups.iter().position(|group| nic.node == Some(group.node));
    let mut homes: Vec<Option<usize>> = nics.iter().map(own).collect();
    for (nic, home) in nics.iter().zip(&homes) {
        if let Some(home) = *home {
            load[home] += u128::from(nic.weight);
        }
    }
    let mut homeless: Vec<usize> = (0..nics.len()).filter(|&at| homes[at].is_none()).collect();
    homeless.sort_by_key(|&at| (std::cmp::Reverse(nics[at].weight), at));
    for at in homeless {
        let near = |group: usize| nics[at].socket == Some(groups[group].socket);
        let any_near = (0..groups.len()).any(near);
        let open = (0..groups.len()).filter(|&group| near(group) || !any_near);
        // Compares the NIC speed per core that the groups would have with the added NIC, by cross-multiplication.
        // `min_by` keeps the first of equal groups.
        let speed = |group: usize| load[group] + u128::from(nics[at].weight);
        let per_core = |a: &usize, b: &usize| {
            (speed(*a) * groups[*b].cores as u128).cmp(&(speed(*b) * groups[*a].cores as u128))
        };
        let home = open.min_by(per_core).unwrap_or(0);
        load[home] += u128::from(nics[at].weight);
        homes[at] = Some(home);
    }
    homes.into_iter().map(|home| home.unwrap_or(0)).collect()
}

/// Returns the NICs of each cpu, as ascending indices into `nics`. A cpu has no NIC only if `nics` is empty.
pub fn assign_nics(cpus: &[Cpu], nics: &[UsedNic], reasons: &mut Vec<String>) -> Vec<Vec<usize>> {
    let mut nics_of_core = vec![Vec::new(); cpus.len()];
    if nics.is_empty() {
        return nics_of_core;
    }
    let (groups, slots) = groups(cpus);
    let homes = home_groups(nics, &groups);
    for (at, (nic, &home)) in nics.iter().zip(&homes).enumerate() {
        explain_home(&nics[at], nic.node, &groups[home], reasons);
    }
    let mut seats = vec![0u64; nics.len()];
    for (group, slots) in slots.iter().enumerate() {
        let own: Vec<usize> = (0..nics.len()).filter(|&nic| homes[nic] == group).collect();
        assign_own_nics(&groups[group], slots, &own, nics, &mut nics_of_core, reasons);
        for &slot in slots {
            nics_of_core[slot].iter().for_each(|&nic| seats[nic] += 1);
        }
    }
    for (group, slots) in slots.iter().enumerate().filter(|&(group, _)| !homes.contains(&group)) {
        borrow_nics(&groups[group], slots, nics, &mut seats, &mut nics_of_core, reasons);
    }
    nics_of_core
}

/// Assigns the NICs of a node to its cores.
fn assign_own_nics(
    group: &NodeCores,
    slots: &[usize],
    own: &[usize],
    nics: &[UsedNic],
    nics_of_core: &mut [Vec<usize>],
    reasons: &mut Vec<String>,
) {
    let weights: Vec<u64> = own.iter().map(|&nic| nics[nic].weight).collect();
    if own.len() > slots.len() {
        let (many, few) = (count(own.len(), "NIC"), count(slots.len(), "core"));
        reasons.push(format!("{many} have only {few} on {}: some core has several NICs.", group.node));
        for (&nic, core) in own.iter().zip(lpt(&weights, slots.len())) {
            nics_of_core[slots[core as usize]].push(nic);
        }
        return;
    }
    let seats = apportion::deal_seats(&weights, &vec![0; own.len()], slots.len());
    // Neighbouring cores get the same NIC, because they often share a cache.
    let nic_of_seat = own.iter().zip(&seats).flat_map(|(&nic, &n)| (0..n).map(move |_| nic));
    for (&slot, nic) in slots.iter().zip(nic_of_seat) {
        nics_of_core[slot].push(nic);
    }
    if let (Some(fewest), Some(most)) = (seats.iter().min(), seats.iter().max()) {
        let even = weights.windows(2).all(|pair| pair[0] == pair[1]);
        if even && fewest != most {
            let (cores, over) = (count(slots.len(), "core"), count(own.len(), "NIC"));
            reasons.push(format!(
                "{cores} on {} cannot be shared evenly by {over}: each NIC has {fewest} or {most} cores.",
                group.node
            ));
        }
    }
}

/// Assigns NICs of other nodes to the cores of a node without NICs.
fn borrow_nics(
    group: &NodeCores,
    slots: &[usize],
    nics: &[UsedNic],
    seats: &mut [u64],
    nics_of_core: &mut [Vec<usize>],
    reasons: &mut Vec<String>,
) {
    let near = |nic: &UsedNic| nic.socket == Some(group.socket);
    let any_near = nics.iter().any(near);
    let open: Vec<usize> = (0..nics.len()).filter(|&nic| near(&nics[nic]) || !any_near).collect();
    let weights: Vec<u64> = open.iter().map(|&nic| nics[nic].weight).collect();
    let held: Vec<u64> = open.iter().map(|&nic| seats[nic]).collect();
    let dealt = apportion::deal_seats(&weights, &held, slots.len());
    let nic_of_seat = open.iter().zip(&dealt).flat_map(|(&nic, &n)| (0..n).map(move |_| nic));
    for (&slot, nic) in slots.iter().zip(nic_of_seat) {
        nics_of_core[slot].push(nic);
        seats[nic] += 1;
    }
    let lent = open.iter().zip(&dealt).filter(|&(_, &n)| n > 0);
    let lent: Vec<String> = lent
        .map(|(&nic, _)| match nics[nic].node {
            Some(node) => format!("{} of {node}", nics[nic].name),
            None => nics[nic].name.clone(),
        })
        .collect();
    let whose = if slots.len() == 1 { "its core uses" } else { "its cores use" };
    reasons.push(format!("No NIC on {}: {whose} {}.", group.node, lent.join(", ")));
}

fn explain_home(nic: &UsedNic, own: Option<NodeId>, home: &NodeCores, reasons: &mut Vec<String>) {
    match (own, nic.socket) {
        (Some(own), _) if own == home.node => {}
        (Some(own), _) => {
            reasons.push(format!(
                "{} is on {own}, which has no owning core: {} serves it.",
                nic.name, home.node
            ));
        }
        (None, Some(socket)) if socket == home.socket => {
            reasons.push(format!("{} is near all nodes of {socket}: {} serves it.", nic.name, home.node));
        }
        (None, _) => {
            reasons.push(format!("The node of {} is unknown: {} serves it.", nic.name, home.node));
        }
    }
}

/// Returns the groups of owners by node, ascending, and the slots of each group.
pub fn groups(cpus: &[Cpu]) -> (Vec<NodeCores>, Vec<Vec<usize>>) {
    let mut nodes: Vec<NodeId> = cpus.iter().map(|cpu| cpu.node).collect();
    nodes.sort_unstable();
    nodes.dedup();
    let slots_of = |node: &NodeId| (0..cpus.len()).filter(|&slot| cpus[slot].node == *node).collect();
    let slots: Vec<Vec<usize>> = nodes.iter().map(slots_of).collect();
    let groups = nodes
        .iter()
        .zip(&slots)
        .map(|(&node, slots)| NodeCores { node, socket: cpus[slots[0]].socket, cores: slots.len() })
        .collect();
    (groups, slots)
}
