//! NUMA nodes, cores and NICs: whether the plan keeps them as near to each other as possible. This module
//! judges a host and a plan.

use topology::{Host, Plan, cpulist};

use crate::doctor::check::Check;
use crate::doctor::facts::Balancing;

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
        seen.push_str(&format!(
            "; the hub leaves {left} of the machine's {} to other programs",
            count(host.core_count(), "core")
        ));
    }
    for line in plan.reasons().iter().chain(&host.notes) {
        seen.push_str(&format!("\n{line}"));
    }
    let unknown = unknown_nodes(host, plan);
    let far = far_cores(host, plan);
    let mut fixes = Vec::new();
    if !unknown.is_empty() {
        fixes.push(format!(
            "{}: the firmware does not report the NUMA node; update the firmware, or in a virtual machine give the PCI bus a node (QEMU: pxb-pcie with numa_node); or choose near cores with --cores",
            unknown.join(", ")
        ));
    }
    if !far.is_empty() {
        let near: Vec<u32> =
            plan.cores().iter().map(|core| core.cpu.0).filter(|cpu| !far.contains(cpu)).collect();
        fixes.push(match near.is_empty() {
            false => format!(
                "cpus {} are on another socket than their NIC, so every byte crosses between sockets: give --cores {}, which are near a NIC, or put a NIC on each node",
                cpulist::format(far),
                cpulist::format(near)
            ),
            true => "no core that the hub may use is near a NIC: widen the hub's cpuset, or choose other cores with --cores".into(),
        });
    }
    if fixes.is_empty() { Check::pass(NAME, seen) } else { Check::warn(NAME, seen, fixes.join("\n")) }
}

/// Judges whether the kernel moves the hub's pages between nodes while cores sum them.
pub(crate) fn balancing(nodes: usize, facts: &Balancing) -> Check {
    const NAME: &str = "NUMA balancing";
    let setting = match facts.setting.as_deref() {
        None => return Check::pass(NAME, "this kernel has none"),
        Some("0") => return Check::pass(NAME, "off"),
        Some(setting) => setting,
    };
    let seen = format!("on (kernel.numa_balancing is {setting})");
    if nodes < 2 {
        return Check::pass(NAME, format!("{seen}; this machine has one node"));
    }
    if facts.has_policy {
        return Check::pass(
            NAME,
            format!("{seen}; the hub's memory has a policy, so its pages stay on their nodes"),
        );
    }
    Check::warn(
        NAME,
        format!(
            "{seen}, and this process may not give memory a policy (mbind): the kernel moves pages between nodes while cores sum their bytes"
        ),
        "as root on the host: sysctl -w kernel.numa_balancing=0, and the same line in /etc/sysctl.d\n\
         docker run --cap-add SYS_NICE lets the hub keep its pages",
    )
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
            check.fix.as_ref().unwrap().contains("cpus 4-7 are on another socket")
                && check.fix.unwrap().contains("--cores 0-3")
        );
    }

    #[test]
    fn a_nic_of_an_unknown_node_is_named_where_there_are_several() {
        let check = judge("sockets:2 cores:2 loose_nics:1");
        assert_eq!(check.verdict, Verdict::Warn);
        assert!(check.fix.unwrap().contains("nic0: the firmware does not report"));
        assert_eq!(judge("sockets:1 cores:2 loose_nics:1").verdict, Verdict::Pass);
    }

    #[test]
    fn balancing_is_a_warning_where_it_moves_pages_of_the_hub() {
        let judge = |nodes, setting: Option<&str>, has_policy| {
            balancing(nodes, &Balancing { setting: setting.map(Into::into), has_policy })
        };
        for (nodes, setting, has_policy) in
            [(1, Some("1"), false), (2, Some("0"), false), (2, None, false), (2, Some("1"), true)]
        {
            assert_eq!(
                judge(nodes, setting, has_policy).verdict,
                Verdict::Pass,
                "{nodes} {setting:?} {has_policy}"
            );
        }
        for setting in ["1", "2"] {
            let moved = judge(2, Some(setting), false);
            assert_eq!(moved.verdict, Verdict::Warn);
            assert!(moved.seen.contains(&format!("kernel.numa_balancing is {setting}")), "{moved:?}");
            assert!(moved.fix.as_ref().unwrap().contains("sysctl -w kernel.numa_balancing=0"), "{moved:?}");
        }
    }

    #[test]
    fn without_nics_there_is_nothing_to_be_near_to() {
        assert_eq!(judge("sockets:2 cores:2").verdict, Verdict::Pass);
    }
}
