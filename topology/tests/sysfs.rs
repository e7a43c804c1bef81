//! The sysfs reader on a made-up tree: two nodes, every kind of device, and invalid files.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use topology::{CacheKind, CpuId, Host, HostError, NicKind, NodeId, SocketId, Speed, SpeedSource};

/// A sysfs root in a temporary directory.
struct Tree(TempDir);

impl Tree {
    /// Returns two sockets, each with one node of two cores with two threads: cpus 0-3, siblings 4-7.
    fn two_nodes() -> Self {
        let tree = Self(tempfile::tempdir().unwrap());
        tree.write("devices/system/cpu/online", "0-7\n");
        for cpu in 0..8u32 {
            let (core, home) = (cpu % 4, format!("devices/system/cpu/cpu{cpu}"));
            tree.write(&format!("{home}/topology/physical_package_id"), &format!("{}\n", core / 2));
            tree.write(&format!("{home}/topology/core_cpus_list"), &format!("{core},{}\n", core + 4));
            tree.write(&format!("{home}/cache/index0/level"), "1\n");
            tree.write(&format!("{home}/cache/index0/type"), "Data\n");
            tree.write(&format!("{home}/cache/index0/size"), "48K\n");
            tree.write(&format!("{home}/cache/index0/shared_cpu_list"), &format!("{core},{}\n", core + 4));
        }
        for node in 0..2 {
            let home = format!("devices/system/node/node{node}");
            let (first, second) = (2 * node, 2 * node + 4);
            tree.write(
                &format!("{home}/cpulist"),
                &format!("{first}-{},{second}-{}\n", first + 1, second + 1),
            );
            tree.write(
                &format!("{home}/meminfo"),
                &format!("Node {node} MemTotal:  65536 kB\nNode {node} MemFree: 1 kB\n"),
            );
        }
        tree
    }

    fn root(&self) -> &Path {
        self.0.path()
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.root().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn link(&self, from: &str, to: &str) {
        let from = self.root().join(from);
        fs::create_dir_all(from.parent().unwrap()).unwrap();
        symlink(self.root().join(to), from).unwrap();
    }

    /// Returns a PCI function with its node.
    fn pci(&self, address: &str, node: &str) -> PathBuf {
        let path = format!("devices/pci0000:00/{address}");
        self.write(&format!("{path}/numa_node"), node);
        path.into()
    }

    /// Writes a net device, with hardware if `device` is given.
    fn net(&self, name: &str, device: Option<&Path>, speed: &str) {
        let home = match device {
            Some(device) => format!("{}/net/{name}", device.display()),
            None => format!("devices/virtual/net/{name}"),
        };
        self.write(&format!("{home}/type"), "1\n");
        self.write(&format!("{home}/speed"), speed);
        self.write(&format!("{home}/operstate"), "up\n");
        if let Some(device) = device {
            self.link(&format!("{home}/device"), &device.display().to_string());
        }
        self.link(&format!("class/net/{name}"), &home);
    }

    /// Writes an RDMA device with one port on Ethernet.
    fn rdma(&self, name: &str, device: Option<&Path>, rate: &str, netdev: &str) {
        let home = match device {
            Some(device) => format!("{}/infiniband/{name}", device.display()),
            None => format!("devices/virtual/infiniband/{name}"),
        };
        self.write(&format!("{home}/node_type"), "1: CA\n");
        self.write(&format!("{home}/ports/1/rate"), rate);
        self.write(&format!("{home}/ports/1/state"), "4: ACTIVE\n");
        self.write(&format!("{home}/ports/1/link_layer"), "Ethernet\n");
        self.write(&format!("{home}/ports/1/gid_attrs/ndevs/0"), &format!("{netdev}\n"));
        if let Some(device) = device {
            self.link(&format!("{home}/device"), &device.display().to_string());
        }
        self.link(&format!("class/infiniband/{name}"), &home);
    }

    fn host(&self) -> Result<Host, HostError> {
        Host::from_sysfs(self.root())
    }
}

#[test]
fn cores_nodes_and_caches_are_found() {
    let host = Tree::two_nodes().host().unwrap();
    assert_eq!((host.sockets.len(), host.nodes.len(), host.core_count(), host.cpus.len()), (2, 2, 4, 8));
    let cpu = host.cpu(CpuId(7)).unwrap();
    assert_eq!((cpu.socket, cpu.node, cpu.core), (SocketId(1), NodeId(1), host.cpu(CpuId(3)).unwrap().core));
    assert_eq!(host.nodes[1].memory_bytes, Some(64 << 20));
    assert_eq!(host.nodes[1].socket, Some(SocketId(1)));
    assert_eq!(host.caches.len(), 4);
    assert_eq!((host.caches[0].kind, host.caches[0].size_bytes), (CacheKind::Data, Some(48 << 10)));
    assert!(host.cpus.iter().all(|cpu| cpu.allowed));
}

#[test]
fn cores_of_less_capacity_are_found() {
    let slow = |tree: &Tree| {
        let host = tree.host().unwrap();
        host.cpus.iter().filter(|cpu| cpu.slow).map(|cpu| cpu.id.0).collect::<Vec<_>>()
    };
    let arm = Tree::two_nodes();
    assert_eq!(slow(&arm), [], "nothing is known of them");
    for (cpu, capacity) in [1024, 1024, 717, 716, 1024, 1024, 717].iter().enumerate() {
        arm.write(&format!("devices/system/cpu/cpu{cpu}/cpu_capacity"), &format!("{capacity}\n"));
    }
    assert_eq!(slow(&arm), [3], "one is just fast enough, and of the last nothing is known");
    let intel = Tree::two_nodes();
    intel.write("devices/cpu_core/cpus", "0-1,4-5\n");
    intel.write("devices/cpu_atom/cpus", "2-3,6-7\n");
    assert_eq!(slow(&intel), [2, 3, 6, 7]);
}

#[test]
fn nics_are_found_where_their_hardware_is() {
    let tree = Tree::two_nodes();
    let ethernet = tree.pci("0000:03:00.0", "1\n");
    tree.net("eth0", Some(&ethernet), "25000\n");
    let mlx = tree.pci("0000:81:00.0", "0\n");
    tree.net("ens1np0", Some(&mlx), "100000\n");
    tree.rdma("mlx5_0", Some(&mlx), "100 Gb/sec (4X EDR)\n", "ens1np0");
    // A virtio device, whose parent in the tree is the PCI function.
    let function = tree.pci("0000:00:04.0", "1\n");
    let virtio = function.join("virtio2");
    tree.net("ens4", Some(&virtio), "-1\n");
    tree.rdma("rxe0", None, "2.5 Gb/sec (1X SDR)\n", "ens4");
    let lost = tree.pci("0000:05:00.0", "-1\n");
    tree.net("eth9", Some(&lost), "10000\n");
    for name in ["lo", "docker0", "veth12"] {
        tree.net(name, None, "10000\n");
    }
    tree.write("class/net/bonding_masters", "");

    let host = tree.host().unwrap();
    let names: Vec<&str> = host.nics.iter().map(|nic| nic.name.as_str()).collect();
    assert_eq!(names, ["eth0", "eth9", "mlx5_0", "rxe0"]);
    let gbps = |gbps: u64| Speed::new(gbps * 1_000_000_000, SpeedSource::Port);

    let [eth0, eth9, mlx5_0, rxe0] = &host.nics[..] else { panic!("four") };
    assert_eq!((eth0.kind, eth0.node, eth0.socket), (NicKind::Ethernet, Some(NodeId(1)), Some(SocketId(1))));
    assert_eq!((eth0.speed, eth0.link_up), (gbps(25), Some(true)));
    assert_eq!((eth9.node, eth9.socket, eth9.speed), (None, None, gbps(10)));
    assert_eq!((mlx5_0.kind, mlx5_0.node, mlx5_0.speed), (NicKind::Roce, Some(NodeId(0)), gbps(100)));
    assert_eq!(
        (mlx5_0.netdevs.as_slice(), mlx5_0.ibdev.as_deref()),
        (&["ens1np0".to_owned()][..], Some("mlx5_0"))
    );
    assert_eq!(mlx5_0.pci.unwrap().to_string(), "0000:81:00.0");
    // Locality and speed come from the net device, and not from the rate that the RDMA device reports.
    assert_eq!((rxe0.kind, rxe0.node, rxe0.speed), (NicKind::Rxe, Some(NodeId(1)), None));
    assert_eq!(rxe0.pci.unwrap().to_string(), "0000:00:04.0");
    assert_eq!(host.nic_named("ens4"), host.nic_named("rxe0"));
    assert!(host.notes.iter().any(|note| note.contains("docker0, lo, veth12")), "{:?}", host.notes);
}

#[test]
fn a_device_is_as_fast_as_its_active_ports_together() {
    let tree = Tree::two_nodes();
    let card = tree.pci("0000:81:00.0", "0\n");
    tree.net("ens1", Some(&card), "56000\n");
    tree.rdma("mlx4_0", Some(&card), "56 Gb/sec (4X FDR)\n", "ens1");
    let second = |text: &str| {
        let home = format!("{}/infiniband/mlx4_0/ports/2", card.display());
        tree.write(&format!("{home}/rate"), "40 Gb/sec (4X QDR)\n");
        tree.write(&format!("{home}/state"), text);
        tree.host().unwrap().nics[0].bits_per_s().unwrap() / 1_000_000_000
    };
    assert_eq!([second("1: DOWN\n"), second("4: ACTIVE\n")], [56, 96]);
}

#[test]
fn soft_roce_on_a_virtual_device_is_a_nic_of_unknown_node() {
    let tree = Tree::two_nodes();
    tree.net("veth0", None, "10000\n");
    tree.rdma("rxe1", None, "2.5 Gb/sec (1X SDR)\n", "veth0");
    let host = tree.host().unwrap();
    assert_eq!((host.nics.len(), host.nics[0].node), (1, None));
    assert_eq!(host.nics[0].bits_per_s(), Some(10_000_000_000));
}

#[test]
fn a_virtual_function_of_a_listed_nic_is_not_a_nic() {
    let tree = Tree::two_nodes();
    let physical = tree.pci("0000:03:00.0", "0\n");
    tree.net("eth0", Some(&physical), "25000\n");
    let function = tree.pci("0000:03:00.1", "0\n");
    tree.net("eth0v0", Some(&function), "25000\n");
    tree.link("devices/pci0000:00/0000:03:00.1/physfn", "devices/pci0000:00/0000:03:00.0");
    assert_eq!(tree.host().unwrap().nics.len(), 1);
    // If the physical function has no net device, as in a container, the virtual function is the NIC.
    fs::remove_dir_all(tree.root().join("devices/pci0000:00/0000:03:00.0/net")).unwrap();
    fs::remove_file(tree.root().join("class/net/eth0")).unwrap();
    assert_eq!(tree.host().unwrap().nics[0].name, "eth0v0");
}

#[test]
fn garbage_about_a_nic_leaves_it_unknown_with_a_note() {
    let tree = Tree::two_nodes();
    let ethernet = tree.pci("0000:03:00.0", "first\n");
    tree.net("eth0", Some(&ethernet), "very fast\n");
    let far = tree.pci("0000:04:00.0", "7\n");
    tree.net("eth1", Some(&far), "\u{fffd}\n");
    let mlx = tree.pci("0000:05:00.0", "-5\n");
    tree.rdma("mlx5_0", Some(&mlx), "NaN Gb/sec\n", "eth77");
    let host = tree.host().unwrap();
    assert_eq!(host.nics.len(), 3);
    assert!(host.nics.iter().all(|nic| nic.node.is_none() && nic.speed.is_none()));
    for (nic, word) in
        [("eth0", "first"), ("eth0", "very fast"), ("eth1", "node 7"), ("mlx5_0", "-5"), ("mlx5_0", "NaN")]
    {
        assert!(
            host.notes.iter().any(|note| note.contains(nic) && note.contains(word)),
            "{nic} {word}: {:?}",
            host.notes
        );
    }
}

#[test]
fn garbage_about_cpus_is_an_error_that_names_the_file() {
    for (path, text) in [
        ("devices/system/cpu/online", "0-\n"),
        ("devices/system/cpu/online", "0-4000000000\n"),
        ("devices/system/cpu/cpu3/topology/physical_package_id", "x\n"),
        ("devices/system/cpu/cpu3/topology/physical_package_id", "-7\n"),
        ("devices/system/cpu/cpu3/topology/core_cpus_list", "3;7\n"),
        ("devices/system/node/node1/cpulist", "\u{0}\u{1}\n"),
    ] {
        let tree = Tree::two_nodes();
        tree.write(path, text);
        let error = tree.host().unwrap_err().to_string();
        assert!(error.contains(path) && error.contains("expected"), "{error}");
    }
}

#[test]
fn a_missing_tree_and_a_tree_without_cpus_are_errors() {
    let error = Host::from_sysfs("/nonexistent").unwrap_err().to_string();
    assert!(error.contains("/nonexistent") && error.contains("is sysfs mounted there?"), "{error}");
    let tree = Tree::two_nodes();
    tree.write("devices/system/cpu/online", "\n");
    assert!(tree.host().unwrap_err().to_string().contains("no cpu is listed"));
}

#[test]
fn a_kernel_without_numa_counts_as_one_node() {
    let tree = Tree::two_nodes();
    fs::remove_dir_all(tree.root().join("devices/system/node")).unwrap();
    let ethernet = tree.pci("0000:03:00.0", "-1\n");
    tree.net("eth0", Some(&ethernet), "1000\n");
    let host = tree.host().unwrap();
    assert_eq!((host.nodes.len(), host.nodes[0].memory_bytes), (1, None));
    // The machine has one node, so the NIC must be on it.
    assert_eq!(host.nics[0].node, Some(NodeId(0)));
}

#[test]
fn a_node_without_cpus_is_kept() {
    let tree = Tree::two_nodes();
    tree.write("devices/system/node/node2/cpulist", "\n");
    tree.write("devices/system/node/node2/meminfo", "garbage\n");
    let host = tree.host().unwrap();
    assert_eq!((host.nodes.len(), host.nodes[2].socket), (3, None));
    assert!(host.notes.iter().any(|note| note.contains("node 2")));
}
