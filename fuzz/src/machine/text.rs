//! Descriptions of machines, lists of cpus, and sysfs trees. The first byte chooses among the three.
//!
//! ```text
//!   a tree:  [path][text ...]0x00[path][text ...]0x00 ...     below a directory in TMPDIR
//! ```

use std::path::Path;

use topology::Host;

/// The files that the sysfs reader reads, and files in directories that it lists.
const PATHS: [&str; 24] = [
    "devices/system/cpu/online",
    "devices/system/cpu/cpu0/topology/physical_package_id",
    "devices/system/cpu/cpu0/topology/core_cpus_list",
    "devices/system/cpu/cpu0/cache/index0/level",
    "devices/system/cpu/cpu0/cache/index0/type",
    "devices/system/cpu/cpu0/cache/index0/size",
    "devices/system/cpu/cpu0/cache/index0/shared_cpu_list",
    "devices/system/cpu/cpu1/topology/physical_package_id",
    "devices/system/cpu/cpu1/topology/core_cpus_list",
    "devices/system/cpu/cpu1/topology/thread_siblings_list",
    "devices/system/node/node0/cpulist",
    "devices/system/node/node0/meminfo",
    "devices/system/node/node1/cpulist",
    "devices/system/node/node1/meminfo",
    "devices/system/node/node4294967295/cpulist",
    "class/net/eth0/speed",
    "class/net/eth0/operstate",
    "class/net/eth0/type",
    "class/net/eth0/device/numa_node",
    "class/net/eth0/device/local_cpulist",
    "class/infiniband/mlx5_0/ports/1/rate",
    "class/infiniband/mlx5_0/ports/1/state",
    "class/infiniband/mlx5_0/ports/1/link_layer",
    "class/infiniband/mlx5_0/device/numa_node",
];

/// Parses any bytes.
pub fn run(bytes: &[u8]) {
    let Some((kind, rest)) = bytes.split_first() else { return };
    match kind % 3 {
        0 => {
            if let Ok(host) = Host::from_synthetic(&String::from_utf8_lossy(rest)) {
                super::check_placement(&host);
            }
        }
        1 => {
            if let Some(list) = topology::fuzzing::cpulist(&String::from_utf8_lossy(rest)) {
                assert_eq!(topology::fuzzing::cpulist(&list).as_ref(), Some(&list));
            }
        }
        _ => read_tree(rest),
    }
}

fn read_tree(bytes: &[u8]) {
    let root = tempfile::tempdir().expect("a directory in TMPDIR");
    for file in bytes.split(|&byte| byte == 0).take(PATHS.len()) {
        if let Some((path, text)) = file.split_first() {
            write_file(&root.path().join(PATHS[usize::from(*path) % PATHS.len()]), text);
        }
    }
    if let Ok(host) = Host::from_sysfs(root.path()) {
        super::check_placement(&host);
    }
}

fn write_file(path: &Path, text: &[u8]) {
    std::fs::create_dir_all(path.parent().expect("a path below the root")).expect("TMPDIR is writable");
    std::fs::write(path, text).expect("TMPDIR is writable");
}
