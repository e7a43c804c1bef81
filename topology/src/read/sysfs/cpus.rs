//! Processing units, their cores, sockets and caches below `devices/system/cpu`.
//!
//! This module must not depend on NUMA nodes, apart from the table `node_of_cpu`.

use super::{SysfsError, attribute};
use crate::host::{Cache, CacheKind, CpuId, NodeId, SocketId};
use crate::read::survey::{FoundCpu, Survey};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Adds the online cpus and their caches to the survey.
pub fn read(
    root: &Path,
    allowed: Option<&[u32]>,
    node_of_cpu: &BTreeMap<CpuId, NodeId>,
    survey: &mut Survey,
) -> Result<(), SysfsError> {
    let directory = root.join("devices/system/cpu");
    let online_path = directory.join("online");
    let online = attribute::list(&online_path)?;
    if online.is_empty() {
        return Err(SysfsError::NoCpus { path: online_path });
    }
    let mut caches = BTreeSet::new();
    for &cpu in &online {
        let home = directory.join(format!("cpu{cpu}"));
        survey.cpus.push(FoundCpu {
            id: CpuId(cpu),
            socket: socket(&home.join("topology/physical_package_id"))?,
            core: core(&home.join("topology"), cpu)?,
            node: node_of_cpu.get(&CpuId(cpu)).copied(),
            allowed: allowed.is_none_or(|list| list.binary_search(&cpu).is_ok()),
        });
        for index in attribute::names(&home.join("cache"))? {
            if let Some(cache) = cache(&home.join("cache").join(index)) {
                // sysfs shows a shared cache once for each of its cpus.
                if caches.insert((cache.level, cache.kind, cache.cpus.clone())) {
                    survey.caches.push(cache);
                }
            }
        }
    }
    Ok(())
}

fn socket(path: &Path) -> Result<SocketId, SysfsError> {
    if !path.exists() {
        return Ok(SocketId(0));
    }
    let id = attribute::integer(path)?;
    match u32::try_from(id) {
        Ok(id) => Ok(SocketId(id)),
        // The kernel writes -1 if the firmware does not name a socket, as on some ARM machines.
        Err(_) if id == -1 => Ok(SocketId(0)),
        Err(_) => Err(attribute::garbage(path, "a socket number, or -1", &id.to_string())),
    }
}

/// Returns the core's number: the number of its first thread, because `core_id` may repeat between dies.
fn core(topology: &Path, cpu: u32) -> Result<u64, SysfsError> {
    for name in ["core_cpus_list", "thread_siblings_list"] {
        let path = topology.join(name);
        if path.exists() {
            return Ok(u64::from(attribute::list(&path)?.first().copied().unwrap_or(cpu)));
        }
    }
    Ok(u64::from(cpu))
}

/// Returns the cpus with less than 0.7 of the capacity of the fastest cpu, ascending. On Arm the kernel reports
/// capacities; on x86 it lists the efficiency cores. A cpu whose files cannot be read is not in the list.
pub(crate) fn slow_cpus(root: &Path) -> Vec<u32> {
    let atoms = root.join("devices/cpu_atom/cpus");
    if root.join("devices/cpu_core/cpus").exists() {
        return attribute::list(&atoms).unwrap_or_default();
    }
    let directory = root.join("devices/system/cpu");
    let capacity = |cpu: u32| attribute::integer(&directory.join(format!("cpu{cpu}/cpu_capacity"))).ok();
    let online = attribute::list(&directory.join("online")).unwrap_or_default();
    let of: Vec<(u32, i64)> = online.into_iter().filter_map(|cpu| Some((cpu, capacity(cpu)?))).collect();
    let most = of.iter().map(|(_, capacity)| *capacity).max().unwrap_or(0);
    of.into_iter()
        .filter(|(_, capacity)| (*capacity as f64) < 0.7 * most as f64)
        .map(|(cpu, _)| cpu)
        .collect()
}

/// Reads a cache. Returns `None` if it cannot be read. Placement then takes the cache's cores in the order of their
/// numbers.
fn cache(path: &Path) -> Option<Cache> {
    let level = attribute::integer(&path.join("level")).ok()?;
    let kind = match attribute::text_if_readable(&path.join("type"))?.as_str() {
        "Data" => CacheKind::Data,
        "Instruction" => CacheKind::Instruction,
        "Unified" => CacheKind::Unified,
        _ => return None,
    };
    let cpus = attribute::list(&path.join("shared_cpu_list")).ok()?;
    Some(Cache {
        level: u8::try_from(level).ok()?,
        kind,
        size_bytes: attribute::text_if_readable(&path.join("size")).and_then(|text| size_bytes(&text)),
        cpus: cpus.into_iter().map(CpuId).collect(),
    })
}

/// Parses a size such as `1024K`. Returns bytes.
fn size_bytes(text: &str) -> Option<u64> {
    let (digits, unit) = match text.strip_suffix('K') {
        Some(digits) => (digits, 1 << 10),
        None => (text.strip_suffix('M')?, 1 << 20),
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}
