//! The order in which a member uses the NICs of its machine. NICs of the member's NUMA node come first, and the members
//! of a machine begin with different NICs. This file also finds the number of members on the machine.
//!
//! Used once, at the join. Reads /proc and /sys; does not depend on hubs.

use std::ops::RangeInclusive;
use std::path::Path;

use fabric::verbs::Device;

/// The variables in which launchers give a member's number on its machine. The first variable that is set counts.
const LOCAL_RANK: [&str; 4] =
    ["PHUB_LOCAL_RANK", "LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"];

/// The variables in which launchers give the number of members on this machine. The first variable that is set counts.
const LOCAL_SIZE: [&str; 4] =
    ["PHUB_LOCAL_WORLD_SIZE", "LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"];

/// Returns the number of a job's workers on this machine. If no launcher gives the number, returns the number of all workers.
pub fn workers_here(workers: u32, environment: impl Fn(&str) -> Option<String>) -> u32 {
    let said = LOCAL_SIZE.iter().find_map(|name| environment(name)?.parse().ok());
    said.filter(|here| (1..=workers).contains(here)).unwrap_or(workers)
}

/// Returns a member's number on its machine. If no launcher gives the number, returns the member's rank. If each
/// machine has consecutive ranks, its members then begin with different NICs, too.
pub(crate) fn local_rank(rank: u32, environment: impl Fn(&str) -> Option<String>) -> u32 {
    LOCAL_RANK.iter().find_map(|name| environment(name)?.parse().ok()).unwrap_or(rank)
}

/// Orders NICs, with near NICs first. The near NICs and the far NICs are each rotated by the member's number, so that
/// members begin with different NICs.
pub(crate) fn order<T>(nics: Vec<T>, is_near: impl Fn(&T) -> bool, local_rank: u32) -> Vec<T> {
    let (mut near, mut far): (Vec<T>, Vec<T>) = nics.into_iter().partition(is_near);
    for nics in [&mut near, &mut far] {
        let turn = local_rank as usize % nics.len().max(1);
        nics.rotate_left(turn);
    }
    near.into_iter().chain(far).collect()
}

/// Returns the NUMA node on which this process may run, from the files below `root`. `None` if it may run on several nodes.
pub(crate) fn own_node(root: &Path) -> Option<u32> {
    let status = std::fs::read_to_string(root.join("proc/self/status")).ok()?;
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    let nodes = std::fs::read_dir(root.join("sys/devices/system/node")).ok()?;
    nodes.flatten().find_map(|node| {
        let number = node.file_name().to_str()?.strip_prefix("node")?.parse().ok()?;
        let here: Vec<_> = cpus(&std::fs::read_to_string(node.path().join("cpulist")).ok()?).collect();
        let is_here = |allowed: RangeInclusive<u32>| {
            here.iter().any(|here| here.contains(allowed.start()) && here.contains(allowed.end()))
        };
        cpus(allowed).all(is_here).then_some(number)
    })
}

/// Returns the NUMA node of a device. For an RDMA device in software, returns the node of its network interface.
pub(crate) fn node_of(root: &Path, device: &Device) -> Option<u32> {
    let netdevs = device.ports.iter().filter_map(|port| port.netdev.as_deref());
    let netdevs = netdevs.map(|netdev| root.join("sys/class/net").join(netdev));
    let homes = std::iter::once(root.join("sys/class/infiniband").join(&device.name)).chain(netdevs);
    let read = |home: std::path::PathBuf| std::fs::read_to_string(home.join("device/numa_node")).ok();
    homes.filter_map(read).find_map(|text| text.trim().parse().ok()) // the kernel writes -1 if it does not know the node
}

/// Parses the kernel's list of cpus, like 0-3,8.
fn cpus(list: &str) -> impl Iterator<Item = RangeInclusive<u32>> {
    list.trim().split(',').filter_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse().ok()?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_of_other_machines_do_not_count() {
        let said =
            |text: &'static str| move |name: &str| (name == "LOCAL_WORLD_SIZE").then(|| text.to_owned());
        assert_eq!(workers_here(16, said("4")), 4);
        for unlikely in ["17", "0", "-1", "many", ""] {
            assert_eq!(workers_here(16, said(unlikely)), 16, "{unlikely:?}");
        }
        assert_eq!(workers_here(16, |_| None), 16);
    }

    #[test]
    fn each_member_begins_at_another_near_nic() {
        let order = |rank| order(vec![0, 1, 2, 3], |&nic| nic >= 2, rank);
        assert_eq!([order(0), order(1), order(2)], [[2, 3, 0, 1], [3, 2, 1, 0], [2, 3, 0, 1]]);
        let nowhere = |rank| super::order(vec![0, 1, 2], |_| false, rank);
        assert_eq!([nowhere(0), nowhere(1), nowhere(5)], [[0, 1, 2], [1, 2, 0], [2, 0, 1]]);
        assert_eq!(super::order(Vec::<u8>::new(), |_| true, 3), [0u8; 0]);
    }

    #[test]
    fn a_launcher_says_the_number_on_the_machine() {
        let slurm = |name: &str| (name == "SLURM_LOCALID").then(|| "3".to_owned());
        assert_eq!((local_rank(11, slurm), local_rank(11, |_| None)), (3, 11));
    }

    #[test]
    fn nodes_are_read_from_the_kernels_trees() {
        let root = std::env::temp_dir().join(format!("phub-nearest-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("sys/devices/system/node/node0/cpulist", "0-3,8-11\n");
        write("sys/devices/system/node/node1/cpulist", "4-7,12-15\n");
        write("sys/class/infiniband/mlx5_0/device/numa_node", "1\n");
        write("sys/class/infiniband/rxe0/ports", "");
        let device = |name: &str| Device { name: name.into(), ports: Vec::new(), fault: None };
        assert_eq!(node_of(&root, &device("mlx5_0")), Some(1));
        assert_eq!(node_of(&root, &device("rxe0")), None);
        for (allowed, node) in [("4-7,12-15", Some(1)), ("9", Some(0)), ("0-15", None), ("3-4", None)] {
            write("proc/self/status", &format!("Name:\tx\nCpus_allowed_list:\t{allowed}\n"));
            assert_eq!(own_node(&root), node, "{allowed}");
        }
        std::fs::remove_dir_all(&root).unwrap();
    }
}
