//! GIDs: the addresses of an RDMA port, and the choice among them. This module does no input or output,
//! except that it reads sysfs, and checks whether an interface of this namespace has an address.
//!
//! A RoCE port has two GIDs for each address of its interfaces: one for RoCE v1 and one for v2. A queue pair
//! with the wrong GID connects to nobody. Other systems ask their users for the right index
//! (`NCCL_IB_GID_INDEX`). This module finds it.

use std::io::ErrorKind;
use std::net::{Ipv6Addr, UdpSocket};
use std::path::Path;

use super::address::{Gid, LinkLayer};

/// The directory in which Linux shows RDMA devices.
pub(super) const SYSFS: &str = "/sys/class/infiniband";

/// An entry of a port's GID table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// The index, which is an attribute of a queue pair.
    pub index: u8,
    /// The address.
    pub gid: Gid,
    /// Whether packets are RoCE v2, which is UDP over IP. Otherwise they are InfiniBand or RoCE v1.
    pub roce_v2: bool,
    /// The network interface that has the address. InfiniBand has none.
    pub netdev: Option<String>,
    /// Whether the interface is in another network namespace. In a container with its own network, this holds for the
    /// host's interfaces.
    pub elsewhere: bool,
}

/// A GID that was chosen, with the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// The entry.
    pub entry: GidEntry,
    /// The reason for the choice in words, for logs.
    pub reason: String,
}

/// The error of a port without a usable GID.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{device} port {port}: {what}; its GID table is:\n{}", table(.entries))]
pub struct GidError {
    /// The device.
    pub device: String,
    /// The port.
    pub port: u8,
    /// What is missing, and the advice.
    pub what: String,
    /// The whole table.
    pub entries: Vec<GidEntry>,
}

/// Returns a GID table as text, with one line per entry.
pub fn table(entries: &[GidEntry]) -> String {
    if entries.is_empty() {
        return "  (empty)".into();
    }
    let line = |entry: &GidEntry| {
        let kind = if entry.roce_v2 { "RoCE v2" } else { "IB/RoCE v1" };
        let netdev = entry.netdev.as_deref().unwrap_or("-");
        format!("  {:>3}  {:<10}  {:<8}  {}", entry.index, kind, netdev, entry.gid)
    };
    entries.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Whether this process can bind a socket to an address. If so, an interface of its network namespace has the
/// address.
pub(super) fn is_here(address: Ipv6Addr) -> bool {
    match UdpSocket::bind((address.to_canonical(), 0)) {
        Ok(_) => true,
        Err(error) => error.kind() != ErrorKind::AddrNotAvailable,
    }
}

/// Reads the GID table of a port. Leaves out entries that are empty, or that vanish during the call. RDMA
/// devices are in all network namespaces, but an interface is in one. So the table may have addresses of
/// another namespace, which `is_here` finds. `is_here` cannot judge link-local addresses, because every
/// interface has one. A link-local address is in this namespace if the directory `net` beside `sysfs` has the
/// name of its interface.
pub(super) fn read(
    sysfs: &Path,
    device: &str,
    port: u8,
    is_here: impl Fn(Ipv6Addr) -> bool,
) -> Vec<GidEntry> {
    let port = sysfs.join(device).join("ports").join(port.to_string());
    let text = |kind: &str, index: u8| {
        let text = std::fs::read_to_string(port.join(kind).join(index.to_string())).ok()?;
        Some(text.trim().to_owned())
    };
    let interfaces = sysfs.with_file_name("net");
    let mut entries = Vec::new();
    // A queue pair accepts no larger index.
    for index in 0..=u8::MAX {
        let Some(gid) = text("gids", index) else { break };
        let Ok(address) = gid.parse::<Ipv6Addr>() else { continue };
        if address.is_unspecified() {
            continue;
        }
        let roce_v2 = text("gid_attrs/types", index).is_some_and(|kind| kind == "RoCE v2");
        let netdev = text("gid_attrs/ndevs", index).filter(|name| !name.is_empty());
        let elsewhere = netdev.as_ref().is_some_and(|name| match address.is_unicast_link_local() {
            true => !interfaces.join(name).exists(),
            false => !is_here(address),
        });
        // The driver has not filled in an entry with fe80:: and no interface identifier.
        if address.octets()[8..] == [0; 8] {
            continue;
        }
        entries.push(GidEntry { index, gid: Gid(address.octets()), roce_v2, netdev, elsewhere });
    }
    entries
}

/// Chooses the GID of a port: the index that the user requests, or the best by rule.
pub(super) fn choose(
    device: &str,
    port: u8,
    link_layer: LinkLayer,
    entries: &[GidEntry],
    wanted: Option<u8>,
) -> Result<Chosen, GidError> {
    let fail = |what: String| GidError { device: device.into(), port, what, entries: entries.to_vec() };
    if let Some(index) = wanted {
        let entry = entries.iter().find(|entry| entry.index == index);
        let entry = entry.ok_or_else(|| fail(format!("the requested GID index {index} is empty")))?;
        return Ok(Chosen { entry: entry.clone(), reason: format!("GID index {index} was requested") });
    }
    if link_layer == LinkLayer::InfiniBand {
        let entry = entries.first().ok_or_else(|| {
            fail("there is no GID; a subnet manager gives GIDs: is one running (sminfo)?".into())
        })?;
        return Ok(Chosen { entry: entry.clone(), reason: "the port's own on InfiniBand".into() });
    }
    // The first entry is the port's default, which belongs to the port's own interface. Other entries may
    // belong to VLANs on it.
    let own = entries.first().and_then(|entry| entry.netdev.clone());
    let is_own = |entry: &GidEntry| own.is_some() && entry.netdev == own;
    let is_v4 = |entry: &GidEntry| entry.gid.ip().to_ipv4_mapped().is_some();
    let is_global = |entry: &GidEntry| !entry.gid.is_link_local() && !is_v4(entry);
    type Rule<'a> = (&'a dyn Fn(&GidEntry) -> bool, &'a str);
    let rules: [Rule; 5] = [
        (&|entry| is_v4(entry) && is_own(entry), "RoCE v2 with an IPv4 address of the port's own interface"),
        (&is_v4, "RoCE v2 with an IPv4 address of an interface on the port"),
        (
            &|entry| is_global(entry) && is_own(entry),
            "RoCE v2 with a global IPv6 address, because there is no IPv4 address",
        ),
        (
            &is_global,
            "RoCE v2 with a global IPv6 address of an interface on the port, because there is no IPv4 address",
        ),
        (
            &|_| true,
            "RoCE v2 with a link-local address, which no router forwards, because there is no other address",
        ),
    ];
    let places = [(false, ""), (true, ", although its interface is in another network namespace")];
    for ((elsewhere, although), (fits, reason)) in
        places.into_iter().flat_map(|place| rules.map(|rule| (place, rule)))
    {
        let is = |entry: &&GidEntry| entry.roce_v2 && entry.elsewhere == elsewhere && fits(entry);
        if let Some(entry) = entries.iter().find(is) {
            return Ok(Chosen { entry: entry.clone(), reason: format!("{reason}{although}") });
        }
    }
    Err(fail(if entries.is_empty() {
        "there is no GID; give the port's network interface an address, and set the interface up (ip link set ... up)".into()
    } else {
        "no GID is for RoCE v2, which routers forward; switch the port to RoCE v2, or name a GID by its index"
            .into()
    }))
}

#[cfg(test)]
mod tests {
    //! GID tables of real machines, and the choice from each.

    use std::fs;

    use super::*;

    fn entry(index: u8, kind: &str, netdev: &str, gid: &str) -> GidEntry {
        GidEntry {
            index,
            gid: Gid(gid.parse::<Ipv6Addr>().unwrap().octets()),
            roce_v2: kind == "v2",
            netdev: (!netdev.is_empty()).then(|| netdev.to_owned()),
            elsewhere: false,
        }
    }

    /// Returns a ConnectX port on Ethernet: link-local, IPv4 and global IPv6 addresses, each for RoCE v1 and
    /// v2, and a VLAN.
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
    fn an_interface_of_another_namespace_comes_after_all_that_are_here() {
        let mut table = mlx5();
        for entry in &mut table {
            entry.elsewhere = entry.index != 1;
        }
        let (index, reason) = choice(&table);
        assert_eq!(index, 1);
        assert!(reason.contains("link-local") && !reason.contains("namespace"), "{reason}");
        table[1].elsewhere = true;
        let (index, reason) = choice(&table);
        assert_eq!(index, 7);
        assert!(reason.contains("IPv4") && reason.contains("another network namespace"), "{reason}");
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
    fn an_address_is_here_if_a_socket_can_have_it() {
        assert!(is_here("::ffff:127.0.0.1".parse().unwrap()));
        assert!(!is_here("::ffff:192.0.2.1".parse().unwrap()), "it is for documentation");
    }

    #[test]
    fn a_table_is_read_from_sysfs_without_its_empty_entries() {
        let class = std::env::temp_dir().join(format!("phub-gids-{}", std::process::id()));
        let port = class.join("infiniband/mlx5_0/ports/1");
        fs::create_dir_all(class.join("net/ens1")).unwrap();
        let gids = [
            ("fe80:0000:0000:0000:0e42:a1ff:fe12:3456", Some("IB/RoCE v1"), Some("ens1")),
            ("fe80:0000:0000:0000:0000:0000:0000:0000", None, None),
            ("0000:0000:0000:0000:0000:ffff:0a01:0005", Some("RoCE v2"), Some("ens1")),
            ("0000:0000:0000:0000:0000:0000:0000:0000", None, None),
            ("0000:0000:0000:0000:0000:ffff:0a02:0005", Some("RoCE v2"), Some("ens1")),
            ("fe80:0000:0000:0000:0e42:a1ff:fe12:3457", Some("RoCE v2"), Some("of-the-host")),
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
        let ours: Ipv6Addr = "::ffff:10.1.0.5".parse().unwrap();
        let entries = read(&class.join("infiniband"), "mlx5_0", 1, |address| address == ours);
        fs::remove_dir_all(&class).unwrap();
        let of_the_host = |entry| GidEntry { elsewhere: true, ..entry };
        let expected = [
            entry(0, "v1", "ens1", "fe80::e42:a1ff:fe12:3456"),
            entry(2, "v2", "ens1", "::ffff:10.1.0.5"),
            of_the_host(entry(4, "v2", "ens1", "::ffff:10.2.0.5")),
            of_the_host(entry(5, "v2", "of-the-host", "fe80::e42:a1ff:fe12:3457")),
        ];
        assert_eq!(entries, expected);
    }
}
