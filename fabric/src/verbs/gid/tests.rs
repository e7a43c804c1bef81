//! Tables as real machines have them, and what is chosen from each.

use std::fs;

use super::*;

fn entry(index: u8, kind: &str, netdev: &str, gid: &str) -> GidEntry {
    GidEntry {
        index,
        gid: Gid(gid.parse::<Ipv6Addr>().unwrap().octets()),
        roce_v2: kind == "v2",
        netdev: (!netdev.is_empty()).then(|| netdev.to_owned()),
    }
}

/// A ConnectX port on Ethernet: link-local, IPv4 and global IPv6, each for RoCE v1 and v2, and a VLAN.
fn mlx5() -> Vec<GidEntry> {
    vec![
        entry(0, "v1", "ens1f0np0", "fe80::e42:a1ff:fe12:3456"),
        entry(1, "v2", "ens1f0np0", "fe80::e42:a1ff:fe12:3456"),
        entry(2, "v1", "ens1f0np0.100", "::ffff:192.168.100.5"),
        entry(3, "v2", "ens1f0np0.100", "::ffff:192.168.100.5"),
        entry(4, "v1", "ens1f0np0", "2001:db8::5"),
        entry(5, "v2", "ens1f0np0", "2001:db8::5"),
        entry(6, "v1", "ens1f0np0", "::ffff:10.1.0.5"),
        entry(7, "v2", "ens1f0np0", "::ffff:10.1.0.5"),
    ]
}

fn choice(entries: &[GidEntry]) -> (u8, String) {
    let chosen = choose("mlx5_0", 1, LinkLayer::Ethernet, entries, None).unwrap();
    (chosen.entry.index, chosen.reason)
}

fn without(entries: Vec<GidEntry>, gone: &str) -> Vec<GidEntry> {
    entries.into_iter().filter(|entry| !entry.gid.to_string().contains(gone)).collect()
}

#[test]
fn roce_v2_with_ipv4_of_the_ports_own_interface_comes_first() {
    let (index, reason) = choice(&mlx5());
    assert_eq!(index, 7);
    assert!(reason.contains("IPv4") && reason.contains("own interface"), "{reason}");
}

#[test]
fn a_vlans_ipv4_comes_before_ipv6_and_that_before_link_local() {
    let table = without(mlx5(), "10.1.0.5");
    assert_eq!(choice(&table).0, 3);
    let table = without(table, "192.168");
    let (index, reason) = choice(&table);
    assert_eq!(index, 5);
    assert!(reason.contains("global IPv6"), "{reason}");
    let table = without(table, "2001");
    let (index, reason) = choice(&table);
    assert_eq!(index, 1);
    assert!(reason.contains("link-local") && reason.contains("no router"), "{reason}");
}

#[test]
fn soft_roce_has_its_interfaces_addresses() {
    let table =
        [entry(0, "v2", "nic0", "fe80::5054:ff:fe12:3456"), entry(1, "v2", "nic0", "::ffff:10.77.0.1")];
    assert_eq!(choice(&table).0, 1);
}

#[test]
fn infiniband_has_one_of_its_own() {
    let table = [entry(0, "v1", "", "fe80::e42:a103:0:1234")];
    let chosen = choose("mlx5_0", 1, LinkLayer::InfiniBand, &table, None).unwrap();
    assert_eq!(chosen.entry.index, 0);
    let error = choose("mlx5_0", 1, LinkLayer::InfiniBand, &[], None).unwrap_err().to_string();
    assert!(error.contains("subnet manager"), "{error}");
}

#[test]
fn an_index_that_was_asked_for_is_taken_or_refused() {
    let wanted = |index| choose("mlx5_0", 1, LinkLayer::Ethernet, &mlx5(), Some(index));
    assert_eq!(wanted(2).unwrap().entry.index, 2);
    let error = wanted(9).unwrap_err().to_string();
    assert!(error.contains("index 9") && error.contains("::ffff:10.1.0.5"), "{error}");
}

#[test]
fn a_table_in_which_nothing_will_do_is_shown_whole() {
    let v1: Vec<GidEntry> = mlx5().into_iter().filter(|entry| !entry.roce_v2).collect();
    let error = choose("mlx5_0", 1, LinkLayer::Ethernet, &v1, None).unwrap_err().to_string();
    for entry in &v1 {
        assert!(error.contains(&entry.gid.to_string()), "{error}");
    }
    assert!(error.contains("mlx5_0 port 1") && error.contains("RoCE v1"), "{error}");
    let error = choose("mlx5_0", 1, LinkLayer::Ethernet, &[], None).unwrap_err().to_string();
    assert!(error.contains("(empty)"), "{error}");
}

#[test]
fn a_table_is_read_from_sysfs_without_its_empty_entries() {
    let root = std::env::temp_dir().join(format!("phub-gids-{}", std::process::id()));
    let port = root.join("mlx5_0/ports/1");
    let gids = [
        ("fe80:0000:0000:0000:0e42:a1ff:fe12:3456", Some("IB/RoCE v1"), Some("ens1")),
        ("fe80:0000:0000:0000:0000:0000:0000:0000", None, None),
        ("0000:0000:0000:0000:0000:ffff:0a01:0005", Some("RoCE v2"), Some("ens1")),
        ("0000:0000:0000:0000:0000:0000:0000:0000", None, None),
    ];
    for (index, (gid, kind, netdev)) in gids.iter().enumerate() {
        let values = [("gids", Some(*gid)), ("gid_attrs/types", *kind), ("gid_attrs/ndevs", *netdev)];
        for (folder, value) in values {
            fs::create_dir_all(port.join(folder)).unwrap();
            if let Some(value) = value {
                fs::write(port.join(folder).join(index.to_string()), format!("{value}\n")).unwrap();
            }
        }
    }
    let entries = read(&root, "mlx5_0", 1);
    fs::remove_dir_all(&root).unwrap();
    let expected =
        [entry(0, "v1", "ens1", "fe80::e42:a1ff:fe12:3456"), entry(2, "v2", "ens1", "::ffff:10.1.0.5")];
    assert_eq!(entries, expected);
}
