//! Machines from XML: small files of this crate, files of real machines if available, and files that are not a
//! topology.

use std::path::{Path, PathBuf};
use topology::Host;

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

#[cfg(not(feature = "hwloc"))]
#[test]
fn without_hwloc_the_error_says_how_to_build_with_it() {
    let error = Host::from_xml(data("two-packages.xml")).unwrap_err().to_string();
    assert!(error.contains("two-packages.xml") && error.contains("rebuild with --features hwloc"), "{error}");
}

#[cfg(feature = "hwloc")]
mod with_hwloc {
    use super::*;
    use topology::{
        CpuId, NicKind, NodeId, Request, SocketId, Source, Speed, SpeedSource, XmlError, place, render,
    };

    #[test]
    fn sockets_nodes_cores_and_caches_are_read() {
        let host = Host::from_xml(data("two-packages.xml")).unwrap();
        assert_eq!((host.sockets.len(), host.nodes.len(), host.core_count(), host.cpus.len()), (2, 2, 4, 8));
        assert_eq!(host.nodes[1].memory_bytes, Some(1 << 30));
        assert_eq!(host.cpu(CpuId(7)).unwrap().node, NodeId(1));
        assert_eq!((host.caches.len(), host.caches[0].level, host.caches[0].cpus.len()), (2, 3, 4));
        assert!(host.nics.is_empty());
        assert_eq!(host.source, Source::Xml(data("two-packages.xml")));
    }

    #[test]
    fn an_rdma_device_and_its_net_device_are_one_nic() {
        let host = Host::from_xml(data("two-packages-with-nics.xml")).unwrap();
        let names: Vec<&str> = host.nics.iter().map(|nic| nic.name.as_str()).collect();
        assert_eq!(names, ["eno1", "mlx5_0"]);
        let mlx = &host.nics[1];
        assert_eq!((mlx.kind, mlx.node, mlx.socket), (NicKind::Roce, Some(NodeId(1)), Some(SocketId(1))));
        assert_eq!(mlx.netdevs, ["ens1"]);
        assert_eq!(mlx.pci.unwrap().to_string(), "0000:81:00.0");
        assert_eq!(mlx.speed.unwrap().source, SpeedSource::PciLink);
        assert!((126_000_000_000..126_100_000_000).contains(&mlx.bits_per_s().unwrap()));
        assert_eq!(host.nics[0].speed, None::<Speed>);
    }

    #[test]
    fn ethernet_ports_beside_an_rdma_nic_of_no_known_speed_get_no_chunks() {
        let host = Host::from_xml(data("whole-io-without-speeds.xml")).unwrap();
        let names: Vec<&str> = host.nics.iter().map(|nic| nic.name.as_str()).collect();
        assert_eq!(names, ["enp130s0f0", "enp130s0f1", "mlx5_0"], "and no disk");
        assert!(host.nics.iter().all(|nic| nic.speed.is_none()));
        let plan = place(&host, &Request::new(&[4096; 64])).unwrap();
        let mlx = host.nic_named("mlx5_0").unwrap();
        assert!(plan.cores().iter().all(|core| core.nic() == Some(mlx)));
        for name in ["enp130s0f0", "enp130s0f1"] {
            let words = format!("{name} has no RDMA, but mlx5_0 has");
            assert!(plan.reasons().iter().any(|reason| reason.contains(&words)), "{:?}", plan.reasons());
        }
    }

    #[test]
    fn files_that_are_no_topology_are_named_in_the_error() {
        let dir = tempfile::tempdir().unwrap();
        let whole = std::fs::read_to_string(data("two-packages.xml")).unwrap();
        let of_hwloc_1 = whole.replace("hwloc2.dtd", "hwloc.dtd").replace(" version=\"2.0\"", "");
        let of_hwloc_3 = whole.replacen("version=\"2.0\"", "version=\"3.0\"", 1);
        let cases: [(&str, Vec<u8>, &str); 10] = [
            ("empty.xml", Vec::new(), "is empty"),
            ("blank.xml", b" \n\n".to_vec(), "is empty"),
            ("old.xml", of_hwloc_1.into_bytes(), "written by hwloc 1.x, expected the format of hwloc 2"),
            ("new.xml", of_hwloc_3.into_bytes(), "written by hwloc 3, expected the format of hwloc 2"),
            ("html.xml", b"<html><body/></html>".to_vec(), "line 1: the root element is <html>"),
            ("cut.xml", whole.as_bytes()[..whole.len() / 2].to_vec(), "line"),
            ("binary.xml", vec![0xff, 0xfe, 0, 1], "cannot be read"),
            ("words.xml", b"pack:2 core:4".to_vec(), "line 1"),
            ("hollow.xml", b"<topology version=\"2.0\"></topology>".to_vec(), "hwloc refuses"),
            (
                "strange.xml",
                b"<topology version=\"2.0\"><object type=\"Wheel\"/></topology>".to_vec(),
                "line 1: an object of type Wheel",
            ),
        ];
        for (name, bytes, word) in cases {
            let path = dir.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            let error = Host::from_xml(&path).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains(word), "{error}");
        }
        let error = Host::from_xml(dir.path().join("absent.xml")).unwrap_err().to_string();
        assert!(error.contains("absent.xml") && error.contains("No such file"), "{error}");
        let error = Host::from_xml(dir.path()).unwrap_err();
        assert!(matches!(error, topology::HostError::Xml(XmlError::Unreadable { .. })), "{error}");
    }

    #[test]
    fn every_truncation_is_an_error_and_no_panic() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cut.xml");
        let whole = std::fs::read(data("two-packages-with-nics.xml")).unwrap();
        for length in (0..whole.len() - 12).step_by(97) {
            std::fs::write(&path, &whole[..length]).unwrap();
            assert!(Host::from_xml(&path).is_err(), "{length} bytes");
        }
    }

    /// Returns a file of a real machine, which is kept outside the repository.
    fn real(name: &str) -> Option<Host> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/topologies").join(name);
        if !path.exists() {
            println!("skipped: {name} is not beside the checkout");
            return None;
        }
        Some(Host::from_xml(path).unwrap())
    }

    #[test]
    fn two_sockets_with_one_infiniband_card() {
        let Some(host) = real("24em64t-2n6c2t-pci.xml") else { return };
        assert_eq!(
            (host.sockets.len(), host.nodes.len(), host.core_count(), host.cpus.len()),
            (2, 2, 12, 24)
        );
        let mlx = &host.nics[host.nic_named("ib0").unwrap().index()];
        assert_eq!((mlx.name.as_str(), mlx.kind, mlx.node), ("mlx4_0", NicKind::Infiniband, Some(NodeId(0))));
        assert_eq!(mlx.bits_per_s(), Some(16_000_000_000));
        let plan = place(&host, &Request::new(&[4096; 600])).unwrap();
        assert_eq!((plan.cores().len(), plan.nics().len()), (12, 1));
        assert!(
            plan.reasons()
                .iter()
                .any(|reason| reason.contains("No NIC on node 1: its cores use mlx4_0 of node 0"))
        );
        assert!(plan.reasons().iter().any(|reason| reason.contains("eth0 has no RDMA, but mlx4_0 has")));
    }

    #[test]
    fn four_nodes_of_four_sockets_each() {
        let Some(host) = real("96em64t-4n4d3ca2co-pci.xml") else { return };
        assert_eq!((host.sockets.len(), host.nodes.len(), host.core_count()), (16, 4, 96));
        assert!(host.nodes.iter().all(|node| node.socket.is_none()));
        let plan = place(&host, &Request::new(&[4096; 9600])).unwrap();
        assert_eq!(plan.nics().len(), 8);
        for core in plan.cores() {
            assert_eq!(host.nic(core.nic().unwrap()).unwrap().node, Some(core.node));
        }
        assert_eq!(plan.nic_balance().unwrap().max_over_mean, 1.0);
        assert!(render::text(&host, Some(&plan), "item").contains("sockets 4-7"));
    }
}
