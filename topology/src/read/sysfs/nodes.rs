//! NUMA nodes below `devices/system/node`.
//!
//! This module must not depend on sockets or cores. It has only the node of each cpu.

use super::{SysfsError, attribute};
use crate::host::{CpuId, NodeId};
use crate::read::survey::{FoundNode, Survey};
use std::collections::BTreeMap;
use std::path::Path;

/// Adds the nodes to the survey, and returns the node of each cpu.
pub fn read(root: &Path, survey: &mut Survey) -> Result<BTreeMap<CpuId, NodeId>, SysfsError> {
    let directory = root.join("devices/system/node");
    let mut node_of_cpu = BTreeMap::new();
    for name in attribute::names(&directory)? {
        let digits = name.strip_prefix("node").filter(|rest| rest.bytes().all(|byte| byte.is_ascii_digit()));
        let Some(id) = digits.and_then(|digits| digits.parse().ok()).map(NodeId) else { continue };
        let node = directory.join(&name);
        for cpu in attribute::list(&node.join("cpulist"))? {
            node_of_cpu.entry(CpuId(cpu)).or_insert(id);
        }
        let memory_bytes = memory_bytes(&node.join("meminfo"));
        if memory_bytes.is_none() {
            survey
                .notes
                .push(format!("The memory of {id} is unknown: its meminfo has no readable MemTotal."));
        }
        survey.nodes.push(FoundNode { id, memory_bytes });
    }
    if survey.nodes.is_empty() {
        survey.notes.push("The kernel shows no NUMA nodes: the machine counts as one node.".into());
    }
    Ok(node_of_cpu)
}

/// Reads a line such as `Node 0 MemTotal:  4417740 kB`. Returns bytes.
fn memory_bytes(meminfo: &Path) -> Option<u64> {
    let text = attribute::text_if_readable(meminfo)?;
    let (_, rest) = text.lines().find_map(|line| line.split_once("MemTotal:"))?;
    let kib: u64 = rest.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}
