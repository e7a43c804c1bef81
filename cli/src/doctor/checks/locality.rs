//! NUMA nodes, cores and NICs: whether the plan keeps them as near to each other as possible. This module
//! judges a host and a plan.

use topology::{Host, Plan, cpulist};

use crate::doctor::check::Check;

/// Judges the placement on this machine.
pub(crate) fn locality(host: &Host, plan: &Plan) -> Check {
    const NAME: &str = "NUMA and NICs";
    let count = |n: usize, word: &str| format!("{n} {word}{}", if n == 1 { "" } else { "s" });
    let mut seen = format!(
        "{}, {}, {}",
        count(host.nodes.len(), "node"),
        count(plan.cores().len(), "core"),
        count(plan.nics().len(), "NIC")
    );
    let left = host.core_count().saturating_sub(plan.cores().len());
    if left > 0 {
        seen.push_str(&format!("; {left} of the machine's {} left over", count(host.core_count(), "core")));
    }
    for line in plan.reasons().iter().chain(&host.notes) {
        seen.push_str(&format!("\n{line}"));
    }
    let unknown = unknown_nodes(host, plan);
    let far = far_cores(host, plan);
    let mut fixes = Vec::new();
    if !unknown.is_empty() {
        fixes.push(format!(
            "{}: the firmware does not say which node they are on; update it, or in a virtual machine give their PCI bus a node (QEMU: pxb-pcie with numa_node); or choose near cores with --cores",
            unknown.join(", ")
        ));
    }
    if !far.is_empty() {
        let near: Vec<u32> =
            plan.cores().iter().map(|core| core.cpu.0).filter(|cpu| !far.contains(cpu)).collect();
        fixes.push(match near.is_empty() {
            false => format!(
                "cpus {} cross between sockets for every byte: --cores {} uses those near a NIC, or put a NIC on each node",
                cpulist::format(far),
                cpulist::format(near)
            ),
            true => "no core that the hub may use is near a NIC: widen its cpuset, or choose others with --cores".into(),
        });
    }
    if fixes.is_empty() { Check::pass(NAME, seen) } else { Check::warn(NAME, seen, fixes.join("\n")) }
}

/// Returns the used NICs whose node is unknown, if the machine has several nodes.
fn unknown_nodes(host: &Host, plan: &Plan) -> Vec<String> {
    if host.nodes.len() < 2 {
        return Vec::new();
    }
    let unknown = |nic: &&topology::PlacedNic| {
        host.nic(nic.nic).is_some_and(|nic| nic.node.is_none() && nic.socket.is_none())
    };
    plan.nics().iter().filter(unknown).map(|nic| nic.name.clone()).collect()
}

/// Returns the cpus, ascending, whose NICs are all on another socket.
fn far_cores(host: &Host, plan: &Plan) -> Vec<u32> {
    let is_far = |core: &&topology::PlacedCore| {
        let mut nics = core.nics.iter().filter_map(|&nic| host.nic(nic)).peekable();
        nics.peek().is_some() && nics.all(|nic| nic.socket.is_some_and(|socket| socket != core.socket))
    };
    let mut far: Vec<u32> = plan.cores().iter().filter(is_far).map(|core| core.cpu.0).collect();
    far.sort_unstable();
    far
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::check::Verdict;
    use topology::Request;

    fn judge(description: &str) -> Check {
        let host = Host::from_synthetic(description).unwrap();
        locality(&host, &topology::place(&host, &Request::new(&[])).unwrap())
    }

    #[test]
    fn a_pbox_is_as_it_should_be() {
        let check = judge("sockets:2 cores:4 nics:2");
        assert_eq!((check.verdict, check.fix), (Verdict::Pass, None));
        assert!(check.seen.starts_with("2 nodes, 8 cores, 4 NICs"), "{}", check.seen);
    }

    #[test]
    fn a_node_without_a_nic_is_pointed_out_with_the_near_cores() {
        let check = judge("sockets:2 cores:4 nics:2,0");
        assert_eq!(check.verdict, Verdict::Warn);
        assert!(check.seen.contains("No NIC on node 1"), "{}", check.seen);
        assert!(
            check.fix.as_ref().unwrap().contains("cpus 4-7 cross")
                && check.fix.unwrap().contains("--cores 0-3")
        );
    }

    #[test]
    fn a_nic_of_an_unknown_node_is_named_where_there_are_several() {
        let check = judge("sockets:2 cores:2 loose_nics:1");
        assert_eq!(check.verdict, Verdict::Warn);
        assert!(check.fix.unwrap().contains("nic0: the firmware does not say"));
        assert_eq!(judge("sockets:1 cores:2 loose_nics:1").verdict, Verdict::Pass);
    }

    #[test]
    fn without_nics_there_is_nothing_to_be_near_to() {
        assert_eq!(judge("sockets:2 cores:2").verdict, Verdict::Pass);
    }
}
