//! The raw findings of a reader before they become a [`Host`]: unsorted, with gaps.
//!
//! The findings of every reader need the same steps: sorting, core numbers without gaps, and the socket of each node.
//! Also, a cpu for which the source names no node gets a node. This module must not depend on which reader made the
//! findings.

use crate::host::{
    Cache, CoreId, Cpu, CpuId, Host, Nic, Node, NodeId, Socket, SocketId, Source, natural_order,
};
use std::collections::{BTreeMap, BTreeSet};

pub(crate) struct Survey {
    pub name: Option<String>,
    pub source: Source,
    pub nodes: Vec<FoundNode>,
    pub cpus: Vec<FoundCpu>,
    /// The cpus whose cores are slower than the fastest, ascending.
    pub slow: Vec<u32>,
    pub caches: Vec<Cache>,
    pub nics: Vec<Nic>,
    pub notes: Vec<String>,
}

pub(crate) struct FoundNode {
    pub id: NodeId,
    pub memory_bytes: Option<u64>,
}

pub(crate) struct FoundCpu {
    pub id: CpuId,
    pub socket: SocketId,
    /// Any number that is the same for all threads of a core, and different for each core of a socket.
    pub core: u64,
    pub node: Option<NodeId>,
    pub allowed: bool,
}

impl Survey {
    pub fn new(source: Source) -> Self {
        Self {
            name: None,
            source,
            nodes: Vec::new(),
            cpus: Vec::new(),
            slow: Vec::new(),
            caches: Vec::new(),
            nics: Vec::new(),
            notes: Vec::new(),
        }
    }

    pub fn into_host(mut self) -> Host {
        if self.nodes.is_empty() {
            self.nodes.push(FoundNode { id: NodeId(0), memory_bytes: None });
        }
        self.nodes.sort_by_key(|node| node.id);
        self.nodes.dedup_by_key(|node| node.id);
        self.cpus.sort_by_key(|cpu| cpu.id);
        self.cpus.dedup_by_key(|cpu| cpu.id);
        self.give_every_cpu_a_node();
        let nodes = self.nodes_with_sockets();
        self.place_nics(&nodes);
        self.caches.retain(|cache| !cache.cpus.is_empty());
        self.caches.sort_by_key(|cache| (cache.level, cache.kind, cache.cpus[0]));
        let sockets: BTreeSet<SocketId> = self.cpus.iter().map(|cpu| cpu.socket).collect();
        Host {
            name: self.name,
            source: self.source,
            sockets: sockets.into_iter().map(|id| Socket { id }).collect(),
            nodes,
            cpus: dense_cores(&self.cpus, &self.slow),
            caches: self.caches,
            nics: self.nics,
            notes: self.notes,
        }
    }

    fn give_every_cpu_a_node(&mut self) {
        let known: BTreeSet<NodeId> = self.nodes.iter().map(|node| node.id).collect();
        let first = self.nodes[0].id;
        let mut node_of_socket: BTreeMap<SocketId, NodeId> = BTreeMap::new();
        for cpu in &mut self.cpus {
            cpu.node = cpu.node.filter(|node| known.contains(node));
            if let Some(node) = cpu.node {
                node_of_socket.entry(cpu.socket).or_insert(node);
            }
        }
        for cpu in &mut self.cpus {
            if cpu.node.is_none() {
                let node = *node_of_socket.get(&cpu.socket).unwrap_or(&first);
                cpu.node = Some(node);
                if self.nodes.len() > 1 {
                    self.notes.push(format!("No NUMA node lists {}: the cpu counts as on {node}.", cpu.id));
                }
            }
        }
    }

    fn nodes_with_sockets(&self) -> Vec<Node> {
        let mut sockets_of: BTreeMap<NodeId, BTreeSet<SocketId>> = BTreeMap::new();
        for cpu in &self.cpus {
            if let Some(node) = cpu.node {
                sockets_of.entry(node).or_default().insert(cpu.socket);
            }
        }
        let only = |node: &NodeId| {
            let sockets = sockets_of.get(node).filter(|sockets| sockets.len() == 1)?;
            sockets.first().copied()
        };
        let node = |found: &FoundNode| Node {
            id: found.id,
            socket: only(&found.id),
            memory_bytes: found.memory_bytes,
        };
        self.nodes.iter().map(node).collect()
    }

    fn place_nics(&mut self, nodes: &[Node]) {
        for nic in &mut self.nics {
            if let Some(id) = nic.node {
                match nodes.iter().find(|node| node.id == id) {
                    Some(node) => nic.socket = node.socket,
                    None => {
                        self.notes.push(format!(
                            "{} names {id}, which does not exist: the node of the NIC is unknown.",
                            nic.name
                        ));
                        nic.node = None;
                    }
                }
            }
            // If there is a single node, every NIC is on it.
            if let ([only], None) = (nodes, nic.node) {
                (nic.node, nic.socket) = (Some(only.id), only.socket);
            }
        }
        self.nics.sort_by(|a, b| natural_order(&a.name, &b.name));
    }
}

fn dense_cores(found: &[FoundCpu], slow: &[u32]) -> Vec<Cpu> {
    // Cores are numbered by socket, and then by their first cpu, so that cores are in the same order as their cpus.
    let mut first_cpu: BTreeMap<(SocketId, u64), CpuId> = BTreeMap::new();
    for cpu in found {
        first_cpu.entry((cpu.socket, cpu.core)).or_insert(cpu.id);
    }
    let mut order: Vec<((SocketId, u64), CpuId)> = first_cpu.into_iter().collect();
    order.sort_by_key(|&((socket, _), cpu)| (socket, cpu));
    let number: BTreeMap<(SocketId, u64), CoreId> =
        order.into_iter().enumerate().map(|(at, (key, _))| (key, CoreId(at as u32))).collect();
    found
        .iter()
        .map(|cpu| Cpu {
            id: cpu.id,
            core: number[&(cpu.socket, cpu.core)],
            socket: cpu.socket,
            node: cpu.node.unwrap_or(NodeId(0)),
            allowed: cpu.allowed,
            slow: slow.binary_search(&cpu.id.0).is_ok(),
        })
        .collect()
}
