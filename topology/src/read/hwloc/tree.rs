//! hwloc's sockets, nodes, cores and caches as parts of a survey.
//!
//! This module must not depend on devices.

use crate::host::{Cache, CacheKind, CpuId, NodeId, SocketId};
use crate::read::survey::{FoundCpu, FoundNode, Survey};
use hwlocality::Topology;
use hwlocality::object::TopologyObject;
use hwlocality::object::attributes::ObjectAttributes;
use hwlocality::object::types::{CacheType, ObjectType};

pub fn read(topology: &Topology, allowed: Option<&[u32]>, survey: &mut Survey) {
    for object in topology.objects_with_type(ObjectType::NUMANode) {
        let Some(id) = os_index(object) else { continue };
        let memory_bytes = match object.attributes() {
            Some(ObjectAttributes::NUMANode(node)) => node.local_memory().map(u64::from),
            _ => None,
        };
        survey.nodes.push(FoundNode { id: NodeId(id), memory_bytes });
    }
    let usable = topology.allowed_cpuset();
    for object in topology.objects_with_type(ObjectType::PU) {
        let Some(id) = os_index(object) else { continue };
        let socket = object.first_ancestor_with_type(ObjectType::Package).and_then(os_index);
        let core = object.first_ancestor_with_type(ObjectType::Core).unwrap_or(object);
        let in_cpuset = object.cpuset().is_none_or(|set| usable.includes(set));
        survey.cpus.push(FoundCpu {
            id: CpuId(id),
            socket: SocketId(socket.unwrap_or(0)),
            core: core.global_persistent_index(),
            node: nodes_of(object).first().copied(),
            allowed: allowed.map_or(in_cpuset, |list| list.binary_search(&id).is_ok()),
        });
    }
    survey.caches.extend(topology.objects().filter_map(cache));
}

/// Returns the nodes that are local to an object, ascending. A cpu may have several local nodes, with fast and with
/// slow memory. By default the kernel allocates from the first node.
pub fn nodes_of(object: &TopologyObject) -> Vec<NodeId> {
    let Some(set) = object.nodeset() else { return Vec::new() };
    // An infinite set says nothing about the object's locality.
    if set.weight().is_none() {
        return Vec::new();
    }
    set.iter_set().filter_map(|index| u32::try_from(usize::from(index)).ok()).map(NodeId).collect()
}

pub fn os_index(object: &TopologyObject) -> Option<u32> {
    object.os_index().and_then(|index| u32::try_from(index).ok())
}

fn cache(object: &TopologyObject) -> Option<Cache> {
    let Some(ObjectAttributes::Cache(attributes)) = object.attributes() else { return None };
    let set = object.cpuset().filter(|set| set.weight().is_some())?;
    Some(Cache {
        level: u8::try_from(attributes.depth()).ok()?,
        kind: match attributes.cache_type() {
            CacheType::Data => CacheKind::Data,
            CacheType::Instruction => CacheKind::Instruction,
            _ => CacheKind::Unified,
        },
        size_bytes: attributes.size().map(u64::from),
        cpus: set.iter_set().filter_map(|index| u32::try_from(usize::from(index)).ok()).map(CpuId).collect(),
    })
}
