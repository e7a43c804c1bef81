//! The links of a connection, which both ends plan before the handshake. This module only computes.
//!
//! ```text
//!   a worker (one port)          a hub that joins a hub
//!   port 0 --+--> port 0         port 0 -----> port 0
//!            +--> port 1         port 1 -----> port 1
//! ```

use crate::ranges::Ranges;

/// A port of a group, by its index in the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortId(pub u16);

impl PortId {
    /// Returns the index into per-port tables.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// The two ports that a link joins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkPorts {
    /// The port of the end that connects.
    pub joiner: PortId,
    /// The port of the hub.
    pub hub: PortId,
}

/// A planned link of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedLink {
    /// The ports that the link joins.
    pub ports: LinkPorts,
    /// The number of posts for which the link has room in each direction, at least 1.
    pub capacity: u32,
    /// The ranges that the link carries. Only memory in these ranges needs registration with the link's NICs.
    pub carries: Carries,
}

/// The ranges that a link carries. All posts on the link lie in them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Carries {
    /// The ranges of the window that the joiner writes.
    pub up: Ranges,
    /// The ranges of the window that the hub writes.
    pub down: Ranges,
}

impl PlannedLink {
    /// Plans links. Port `i` of the hub has a link with room for `capacities[i]` posts, or no link if that number
    /// is 0. At the connecting end, the links take the ports of `joiner` in turn. Each link may carry all of both
    /// windows.
    ///
    /// # Panics
    /// Panics if `joiner` is empty and there is a link.
    pub fn dealt(capacities: &[u32], joiner: &[PortId]) -> Vec<Self> {
        let hub_ports = (0..).map(PortId).zip(capacities).filter(|&(_, &capacity)| capacity > 0);
        let link = |((hub, &capacity), turn): (_, usize)| {
            let joiner = joiner[turn % joiner.len()];
            PlannedLink { ports: LinkPorts { joiner, hub }, capacity, carries: Carries::default() }
        };
        hub_ports.zip(0..).map(link).collect()
    }

    /// Works like [`dealt`](Self::dealt), for a joiner with one port. A hub plans any joiner's links in this
    /// way, because the hub takes the joiner's ports from the hello.
    pub fn of_one_port(capacities: &[u32]) -> Vec<Self> {
        Self::dealt(capacities, &[PortId(0)])
    }
}

/// The most ports of an end, and the most links of a connection: more than any machine has cores.
pub(crate) const MAX_PORTS: usize = 4096;

/// Returns the ports of a plan, as a hello lists them.
pub(crate) fn ports_of(plan: &[PlannedLink]) -> Vec<LinkPorts> {
    plan.iter().map(|link| link.ports).collect()
}

/// Returns the ports of one end that have a link, each port once.
pub(crate) fn ports_with_links(plan: &[PlannedLink], end: impl Fn(LinkPorts) -> PortId) -> Vec<PortId> {
    let mut ports: Vec<PortId> = plan.iter().map(|link| end(link.ports)).collect();
    ports.sort_unstable();
    ports.dedup();
    ports
}

/// Checks that a hello names the links of the hub's plan. The joiner decides at which of its own ports each link ends.
pub(crate) fn check_ports(named: &[LinkPorts], plan: &[PlannedLink]) -> Result<(), String> {
    if named.len() != plan.len() {
        return Err(format!(
            "the hello names {} links, and the hub's plan has {}; install the same version at both ends",
            named.len(),
            plan.len()
        ));
    }
    let other = named.iter().zip(plan).position(|(named, link)| named.hub != link.ports.hub);
    other.map_or(Ok(()), |index| {
        let (seen, expected) = (named[index].hub.0, plan[index].ports.hub.0);
        Err(format!(
            "link {index} ends at the hub's port {seen} in the hello, and at port {expected} in the hub's plan; install the same version at both ends"
        ))
    })
}

impl LinkPorts {
    /// Returns the ports as a handshake writes them, little endian.
    pub(crate) fn encode(self) -> [u8; 4] {
        let ([a, b], [c, d]) = (self.joiner.0.to_le_bytes(), self.hub.0.to_le_bytes());
        [a, b, c, d]
    }

    /// Decodes ports: the reverse of [`encode`](Self::encode).
    pub(crate) fn decode([a, b, c, d]: [u8; 4]) -> Self {
        let port = |bytes| PortId(u16::from_le_bytes(bytes));
        LinkPorts { joiner: port([a, b]), hub: port([c, d]) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ports(joiner: u16, hub: u16) -> LinkPorts {
        LinkPorts { joiner: PortId(joiner), hub: PortId(hub) }
    }

    #[test]
    fn a_worker_has_links_where_there_is_a_capacity() {
        let plan = PlannedLink::of_one_port(&[3, 0, 8]);
        assert_eq!(ports_of(&plan), [ports(0, 0), ports(0, 2)]);
        assert_eq!(plan.iter().map(|link| link.capacity).collect::<Vec<_>>(), [3, 8]);
        assert_eq!(ports_with_links(&plan, |ports| ports.joiner), [PortId(0)]);
        assert_eq!(ports_with_links(&plan, |ports| ports.hub), [PortId(0), PortId(2)]);
    }

    #[test]
    fn links_are_dealt_to_the_joiners_ports_in_turn() {
        let plan = PlannedLink::dealt(&[1, 0, 1, 1], &[PortId(4), PortId(2)]);
        assert_eq!(ports_of(&plan), [ports(4, 0), ports(2, 2), ports(4, 3)]);
    }

    #[test]
    fn a_hello_of_other_links_is_told_the_first_difference() {
        let plan = PlannedLink::of_one_port(&[1, 1]);
        assert_eq!(check_ports(&[ports(0, 0), ports(3, 1)], &plan), Ok(()));
        let error = check_ports(&[ports(0, 0)], &plan).unwrap_err();
        assert!(error.contains("names 1 links, and the hub's plan has 2"), "{error}");
        let error = check_ports(&[ports(0, 0), ports(0, 3)], &plan).unwrap_err();
        assert!(
            error.contains("link 1 ends at the hub's port 3 in the hello, and at port 1 in the hub's plan"),
            "{error}"
        );
    }

    #[test]
    fn ports_survive_the_handshake() {
        let link = ports(0x0102, 0xfffe);
        assert_eq!(link.encode(), [2, 1, 0xfe, 0xff]);
        assert_eq!(LinkPorts::decode(link.encode()), link);
    }
}
