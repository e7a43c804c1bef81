//! A machine from a short description; the grammar is in [`Host::from_synthetic`](crate::Host::from_synthetic).
//!
//! hwloc also has synthetic strings, but without NICs, so this crate has its own grammar. This module must
//! not depend on any real machine.

use crate::host::{CpuId, Nic, NicKind, NodeId, SocketId, Source, Speed, SpeedSource};
use crate::read::survey::{FoundCpu, FoundNode, Survey};

/// The most cpus or NICs of a description.
const PARTS_LIMIT: u64 = 65_536;
const KEYS: &str = "sockets, nodes, cores, threads, memory_gib, nics, nic_gbps, nic_kind or loose_nics";

/// The error of a synthetic description, with its place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("synthetic topology, at byte {at}: expected {expected}, found \"{seen}\"")]
pub struct SyntheticError {
    /// The byte offset of the wrong word in the description, from 0.
    pub at: usize,
    /// The text that was expected there.
    pub expected: String,
    /// The text that was found there.
    pub seen: String,
}

pub(crate) fn read(description: &str) -> Result<Survey, SyntheticError> {
    let shape = Shape::parse(description)?;
    let mut survey = Survey::new(Source::Synthetic(description.to_owned()));
    let nodes = shape.sockets.value * shape.nodes.value;
    let mut cores = Vec::new();
    for node in 0..nodes {
        let memory_gib = shape.memory_gib.on_node(node);
        survey
            .nodes
            .push(FoundNode { id: NodeId(node as u32), memory_bytes: memory_gib.map(|gib| gib << 30) });
        cores.extend((0..shape.cores.on_node(node).unwrap_or(1)).map(|_| node));
        for _ in 0..shape.nics.on_node(node).unwrap_or(0) {
            let name = format!("nic{}", survey.nics.len());
            survey.nics.push(shape.nic(name, Some(node)));
        }
    }
    for _ in 0..shape.loose_nics.value {
        let name = format!("nic{}", survey.nics.len());
        survey.nics.push(shape.nic(name, None));
    }
    for thread in 0..shape.threads.value {
        for (core, &node) in cores.iter().enumerate() {
            survey.cpus.push(FoundCpu {
                id: CpuId((thread * cores.len() as u64) as u32 + core as u32),
                socket: SocketId((node / shape.nodes.value) as u32),
                core: core as u64,
                node: Some(NodeId(node as u32)),
                allowed: true,
            });
        }
    }
    Ok(survey)
}

/// One number, and its offset in the description.
struct Count {
    value: u64,
    at: usize,
}

/// One number for all nodes, or one for each.
struct PerNode {
    values: Vec<u64>,
    at: usize,
}

impl PerNode {
    fn on_node(&self, node: u64) -> Option<u64> {
        if self.values.len() == 1 { Some(self.values[0]) } else { self.values.get(node as usize).copied() }
    }
}

struct Shape {
    sockets: Count,
    nodes: Count,
    cores: PerNode,
    threads: Count,
    memory_gib: PerNode,
    nics: PerNode,
    nic_gbps: PerNode,
    nic_kind: NicKind,
    loose_nics: Count,
}

impl Shape {
    fn parse(text: &str) -> Result<Self, SyntheticError> {
        let one = || Count { value: 1, at: 0 };
        let unset = |values: &[u64]| PerNode { values: values.to_vec(), at: 0 };
        let mut shape = Self {
            sockets: one(),
            nodes: one(),
            cores: unset(&[1]),
            threads: one(),
            memory_gib: unset(&[]),
            nics: unset(&[0]),
            nic_gbps: unset(&[]),
            nic_kind: NicKind::Ethernet,
            loose_nics: Count { value: 0, at: 0 },
        };
        let mut seen_keys: Vec<&str> = Vec::new();
        for (at, word) in words(text) {
            let Some((key, value)) = word.split_once(':') else {
                return Err(error(at, format!("key:value with the key {KEYS}"), word));
            };
            if seen_keys.contains(&key) {
                return Err(error(at, format!("{key} only once"), word));
            }
            seen_keys.push(key);
            let value_at = at + key.len() + 1;
            match key {
                "sockets" => shape.sockets = count(value_at, value, 1, 1024)?,
                "nodes" => shape.nodes = count(value_at, value, 1, 64)?,
                "threads" => shape.threads = count(value_at, value, 1, 16)?,
                "loose_nics" => shape.loose_nics = count(value_at, value, 0, 4096)?,
                "cores" => shape.cores = per_node(value_at, value, 0, 4096)?,
                "memory_gib" => shape.memory_gib = per_node(value_at, value, 0, 1 << 20)?,
                "nics" => shape.nics = per_node(value_at, value, 0, 4096)?,
                "nic_gbps" => shape.nic_gbps = per_node(value_at, value, 1, 100_000)?,
                "nic_kind" => shape.nic_kind = kind(value_at, value)?,
                _ => return Err(error(at, KEYS.to_owned(), key)),
            }
        }
        if seen_keys.is_empty() {
            return Err(error(
                0,
                "at least one word, such as \"sockets:2 cores:4 nics:5 nic_gbps:56\"".into(),
                text,
            ));
        }
        shape.check()?;
        Ok(shape)
    }

    fn check(&self) -> Result<(), SyntheticError> {
        let nodes = self.sockets.value * self.nodes.value;
        for list in [&self.cores, &self.memory_gib, &self.nics, &self.nic_gbps] {
            if list.values.len() > 1 && list.values.len() as u64 != nodes {
                let seen = format!("{} values", list.values.len());
                return Err(error(list.at, format!("one value, or one for each of {nodes} nodes"), &seen));
            }
        }
        let total = |list: &PerNode| (0..nodes).filter_map(|node| list.on_node(node)).sum::<u64>();
        let cpus = total(&self.cores) * self.threads.value;
        if cpus == 0 || cpus > PARTS_LIMIT {
            return Err(error(self.cores.at, format!("1 to {PARTS_LIMIT} cpus in all"), &cpus.to_string()));
        }
        let nics = total(&self.nics) + self.loose_nics.value;
        if nics > PARTS_LIMIT {
            let at = self.nics.at.max(self.loose_nics.at);
            return Err(error(at, format!("at most {PARTS_LIMIT} NICs in all"), &nics.to_string()));
        }
        Ok(())
    }

    fn nic(&self, name: String, node: Option<u64>) -> Nic {
        let gbps = self.nic_gbps.on_node(node.unwrap_or(0));
        let device = name.clone();
        let verbs = self.nic_kind.has_verbs();
        Nic {
            node: node.map(|node| NodeId(node as u32)),
            speed: gbps.and_then(|gbps| Speed::new(gbps * 1_000_000_000, SpeedSource::Given)),
            netdevs: if verbs { Vec::new() } else { vec![device.clone()] },
            ibdev: verbs.then_some(device),
            link_up: Some(true),
            ..Nic::named(name, self.nic_kind)
        }
    }
}

fn words(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let start = text.as_ptr() as usize;
    text.split_whitespace().map(move |word| (word.as_ptr() as usize - start, word))
}

fn error(at: usize, expected: String, seen: &str) -> SyntheticError {
    SyntheticError { at, expected, seen: seen.to_owned() }
}

fn count(at: usize, text: &str, min: u64, max: u64) -> Result<Count, SyntheticError> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse() {
        Ok(value) if plain && (min..=max).contains(&value) => Ok(Count { value, at }),
        _ => Err(error(at, format!("a whole number from {min} to {max}"), text)),
    }
}

fn per_node(at: usize, text: &str, min: u64, max: u64) -> Result<PerNode, SyntheticError> {
    let mut values = Vec::new();
    let mut value_at = at;
    for part in text.split(',') {
        values.push(count(value_at, part, min, max)?.value);
        value_at += part.len() + 1;
    }
    Ok(PerNode { values, at })
}

fn kind(at: usize, text: &str) -> Result<NicKind, SyntheticError> {
    match text {
        "ethernet" => Ok(NicKind::Ethernet),
        "infiniband" => Ok(NicKind::Infiniband),
        "roce" => Ok(NicKind::Roce),
        "rxe" => Ok(NicKind::Rxe),
        _ => Err(error(at, "ethernet, infiniband, roce or rxe".into(), text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_pbox_has_five_nics_on_each_of_two_nodes() {
        let host = read("sockets:2 cores:10 threads:2 memory_gib:64 nics:5 nic_gbps:56 nic_kind:infiniband")
            .unwrap()
            .into_host();
        assert_eq!(
            (host.sockets.len(), host.nodes.len(), host.core_count(), host.cpus.len()),
            (2, 2, 20, 40)
        );
        assert_eq!(host.nics.iter().filter(|nic| nic.node == Some(NodeId(1))).count(), 5);
        assert_eq!(host.nics[9].bits_per_s(), Some(56_000_000_000));
        assert_eq!(host.nodes[1].memory_bytes, Some(64 << 30));
        // Linux numbering: cpu 20 is the second thread of cpu 0's core.
        assert_eq!(host.cpus[20].core, host.cpus[0].core);
    }

    #[test]
    fn lists_give_each_node_its_own() {
        let host = read("sockets:1 nodes:2 cores:3,1 nics:2,0 loose_nics:1").unwrap().into_host();
        assert_eq!(host.cpus.iter().map(|cpu| cpu.node.0).collect::<Vec<_>>(), [0, 0, 0, 1]);
        assert_eq!(
            host.nics.iter().map(|nic| nic.node).collect::<Vec<_>>(),
            [Some(NodeId(0)), Some(NodeId(0)), None]
        );
    }

    #[test]
    fn errors_point_at_the_word() {
        let cases = [
            ("", 0),
            ("cores", 0),
            ("sockets:2 cores:x", 16),
            ("sockets:2 cores:4,y", 18),
            ("sockets:2 cores:1,2,3", 16),
            ("cores:4 cores:4", 8),
            ("cores:4  wheels:4", 9),
            ("cores:4 nic_kind:token-ring", 17),
            ("cores:0", 6),
            ("sockets:1024 cores:4096", 19),
            ("cores:+4", 6),
            ("cores:4 threads:99999999999999999999", 16),
        ];
        for (text, at) in cases {
            let error = read(text).err().expect(text);
            assert_eq!(error.at, at, "{text}: {error}");
        }
        let text = read("cores:4 nics:many").err().unwrap().to_string();
        assert_eq!(
            text,
            "synthetic topology, at byte 13: expected a whole number from 0 to 4096, found \"many\""
        );
    }

    proptest! {
        #[test]
        fn never_panics(text in "((sockets|nodes|cores|nics|threads|x)?:?[0-9,]{0,3} ?){0,6}") {
            if let Ok(survey) = read(&text) {
                prop_assert!(!survey.into_host().cpus.is_empty());
            }
        }
    }
}
