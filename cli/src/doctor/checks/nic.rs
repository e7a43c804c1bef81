//! The slot of a NIC, its IOMMU, the bridges above it, the other NICs in its subnet, and flow control. This
//! module judges facts that other modules read.

use std::collections::BTreeMap;

use crate::doctor::check::{Check, Verdict};
use crate::doctor::nic_facts::{NicFacts, REQUEST_REDIRECT};

/// Judges whether the slot can carry the bytes of a NIC whose port has this speed.
pub(crate) fn slot(nic: &NicFacts, port_gbps: Option<f64>) -> Option<Check> {
    let (now, best) = nic.slot?;
    let name = format!("slot of {}", nic.name);
    let seen = format!(
        "{} GT/s x{}, {:.0} Gb/s each way; the NIC could have {} GT/s x{}",
        now.gigatransfers,
        now.lanes,
        now.gbps(),
        best.gigatransfers,
        best.lanes
    );
    let port = port_gbps.unwrap_or(0.0);
    // Headers take about a tenth of the link's rate if packets have 256 bytes.
    if port > 0.9 * now.gbps() {
        let fix = "put the NIC into a slot with as many lanes as the NIC has, and set the lanes' full speed in the firmware (lspci -vv: LnkSta); the slot limits the port";
        return Some(Check::warn(name, format!("{seen}; its ports have {port} Gb/s"), fix));
    }
    if now.gbps() < 0.99 * best.gbps() {
        return Some(Check::note(name, format!("{seen}, and the port needs less")));
    }
    Some(Check::pass(name, seen))
}

/// Judges whether the IOMMU translates the addresses of these NICs.
pub(crate) fn iommu(nics: &[NicFacts]) -> Option<Check> {
    const NAME: &str = "IOMMU";
    let known: Vec<_> = nics.iter().filter_map(|nic| Some((nic, nic.iommu.as_deref()?))).collect();
    if known.is_empty() {
        return None;
    }
    let translated: Vec<String> = known
        .iter()
        .filter(|(_, kind)| *kind != "identity")
        .map(|(nic, kind)| format!("{} ({kind})", nic.name))
        .collect();
    if translated.is_empty() {
        return Some(Check::pass(NAME, "no IOMMU translates the addresses that NICs use"));
    }
    let seen = format!("every address is translated for {}", translated.join(", "));
    let fix = "set iommu=pt on the kernel's command line: with translation, a NIC with many regions may miss in the IOMMU's cache, and GPUs and NICs cannot reach each other directly";
    Some(Check { verdict: Verdict::Note, ..Check::warn(NAME, seen, fix) })
}

/// Judges whether bridges above these NICs send traffic between two devices up to the root complex.
pub(crate) fn acs(nics: &[NicFacts]) -> Option<Check> {
    const NAME: &str = "ACS";
    let bridges: BTreeMap<&str, Option<u16>> =
        nics.iter().flat_map(|nic| &nic.bridges).map(|(name, acs)| (&**name, *acs)).collect();
    if bridges.is_empty() {
        return None;
    }
    let redirects = |acs: &Option<u16>| acs.is_some_and(|bits| bits & REQUEST_REDIRECT != 0);
    let on: Vec<&str> = bridges.iter().filter(|(_, acs)| redirects(acs)).map(|(&name, _)| name).collect();
    if !on.is_empty() {
        let seen = format!(
            "request redirect is on at {}: traffic between a NIC and a GPU goes through the root complex",
            on.join(", ")
        );
        let set = on.iter().map(|name| format!("setpci -s {name} ECAP_ACS+6.w=0000"));
        let fix = format!(
            "{}\nor turn ACS off in the firmware's settings; virtual machines that own a device need ACS",
            set.collect::<Vec<_>>().join("\n")
        );
        return Some(Check { verdict: Verdict::Note, ..Check::warn(NAME, seen, fix) });
    }
    if bridges.values().any(Option::is_none) {
        return Some(Check::note(NAME, "ACS of the bridges above the NICs is not readable: run as root"));
    }
    Some(Check::pass(NAME, "devices below one bridge reach each other directly"))
}

/// Judges whether NICs in one subnet answer ARP requests for each other. If they do, RoCE sends to the wrong
/// NIC.
pub(crate) fn arp(nics: &[NicFacts]) -> Option<Check> {
    const NAME: &str = "ARP";
    let shares = |nic: &NicFacts| {
        nics.iter().any(|other| {
            other.netdev != nic.netdev && other.subnets.iter().any(|subnet| nic.subnets.contains(subnet))
        })
    };
    let sharing: Vec<&NicFacts> = nics.iter().filter(|nic| shares(nic)).collect();
    if sharing.is_empty() {
        return None;
    }
    let names = |nics: &[&NicFacts]| -> String {
        nics.iter().map(|nic| nic.netdev.as_deref().unwrap_or(&nic.name)).collect::<Vec<_>>().join(", ")
    };
    let all = format!("{} share a subnet", names(&sharing));
    let of = |is: fn(&NicFacts) -> bool| -> Vec<&NicFacts> {
        sharing.iter().copied().filter(|nic| is(nic)).collect()
    };
    let (flux, strict) = (of(|nic| nic.arp_ignore == Some(0)), of(|nic| nic.rp_filter == Some(1)));
    let (mut seen, mut fix) = (all, Vec::new());
    if !flux.is_empty() {
        seen.push_str(&format!("; each of {} answers ARP for the other NICs' addresses", names(&flux)));
        fix.push("sysctl -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2".to_owned());
    }
    if !strict.is_empty() {
        seen.push_str(&format!(
            "; {} drop packets if the answer would leave by another interface",
            names(&strict)
        ));
        let each = strict.iter().map(|nic| format!(" net.ipv4.conf.{}.rp_filter=2", names(&[nic])));
        fix.push(format!("sysctl -w net.ipv4.conf.all.rp_filter=2{}", each.collect::<String>()));
    }
    if fix.is_empty() {
        return Some(Check::pass(NAME, format!("{seen}, and each NIC answers ARP only for its own address")));
    }
    fix.push("or give each NIC a subnet of its own, and a source-address rule".to_owned());
    Some(Check::warn(NAME, seen, fix.join("\n")))
}

/// Judges whether a NIC's traffic has flow control. Returns `None` if the driver does not show it.
pub(crate) fn flow_control(nic: &NicFacts, traffic_class: u8) -> Option<Check> {
    let name = format!("flow control {}", nic.name);
    let (pfc, trust) = (nic.pfc.as_deref()?, nic.trust.as_deref().unwrap_or("pcp"));
    let has: Vec<String> = (0..)
        .zip(pfc.split(|c: char| c == ',' || c.is_whitespace()).filter(|each| !each.is_empty()))
        .filter(|(_, each)| *each == "1")
        .map(|(priority, _): (u32, _)| priority.to_string())
        .collect();
    let netdev = nic.netdev.as_deref().unwrap_or("ITS-INTERFACE");
    if has.is_empty() {
        let fix = format!(
            "mlnx_qos -i {netdev} --trust dscp --pfc 0,0,0,1,0,0,0,0, the same priority on the switch, and PHUB_RDMA_TC=106 at hub and workers; ECN without PFC also works"
        );
        return Some(Check {
            verdict: Verdict::Note,
            ..Check::warn(name, "no priority has PFC: a full switch drops packets", fix)
        });
    }
    let seen = format!("PFC on priority {}, by {trust}", has.join(", "));
    match (trust, traffic_class >> 2) {
        ("dscp", 0) => {
            let fix = "set PHUB_RDMA_TC at hub and workers (or --rdma-tc at the hub); its upper six bits are the DSCP (without PHUB_RDMA_TC, NCCL_IB_TC counts)";
            let seen = format!("{seen}; this hub's packets have DSCP 0, so PFC does not protect them");
            Some(Check { verdict: Verdict::Note, ..Check::warn(name, seen, fix) })
        }
        _ => Some(Check::pass(name, seen)),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// A tree of files, which is removed when the value is dropped.
    struct Tree(PathBuf);

    impl Tree {
        fn new(name: &str) -> Self {
            Tree(std::env::temp_dir().join(format!("phub-doctor-{name}-{}", std::process::id())))
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.0.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, format!("{text}\n")).unwrap();
        }

        fn slot(&self, device: &str, now: (&str, &str), best: (&str, &str)) {
            for (which, (speed, width)) in [("current", now), ("max", best)] {
                let home = format!("sys/class/infiniband/{device}/device");
                self.write(&format!("{home}/{which}_link_speed"), &format!("{speed} GT/s PCIe"));
                self.write(&format!("{home}/{which}_link_width"), width);
            }
        }

        fn nic(&self, device: &str, netdev: &str) -> NicFacts {
            NicFacts::read(&self.0, device, device.into(), Some(netdev.into()))
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_slot_that_is_slower_than_its_port_is_a_warning() {
        let tree = Tree::new("slot");
        tree.slot("mlx5_0", ("8.0", "8"), ("16.0", "16"));
        tree.slot("mlx5_1", ("16.0", "16"), ("16.0", "16"));
        let judge = |device, gbps| slot(&tree.nic(device, "eth0"), Some(gbps)).unwrap();
        let slow = judge("mlx5_0", 100.0);
        assert_eq!(slow.verdict, Verdict::Warn);
        assert!(
            slow.seen.contains("8 GT/s x8, 63 Gb/s each way; the NIC could have 16 GT/s x16"),
            "{}",
            slow.seen
        );
        assert_eq!(judge("mlx5_0", 25.0).verdict, Verdict::Note);
        assert_eq!(judge("mlx5_1", 200.0).verdict, Verdict::Pass);
        assert_eq!(slot(&tree.nic("rxe0", "eth0"), Some(100.0)), None);
    }

    #[test]
    fn an_iommu_that_translates_is_noted() {
        let tree = Tree::new("iommu");
        let judge = || iommu(&[tree.nic("mlx5_0", "eth0"), tree.nic("mlx5_1", "eth1")]);
        assert_eq!(judge(), None);
        tree.write("sys/class/infiniband/mlx5_0/device/iommu_group/type", "identity");
        assert_eq!(judge().unwrap().verdict, Verdict::Pass);
        tree.write("sys/class/infiniband/mlx5_1/device/iommu_group/type", "DMA-FQ");
        let check = judge().unwrap();
        assert_eq!(check.verdict, Verdict::Note);
        assert!(check.seen.ends_with("for mlx5_1 (DMA-FQ)") && check.fix.unwrap().contains("iommu=pt"));
    }

    #[test]
    fn bridges_that_redirect_requests_are_noted() {
        let tree = Tree::new("acs");
        let port = "sys/devices/pci0000:00/0000:00:01.0";
        let device = format!("{port}/0000:01:00.0");
        tree.write(&format!("{device}/class"), "0x020700");
        std::fs::create_dir_all(tree.0.join("sys/class/infiniband/mlx5_0")).unwrap();
        let link = tree.0.join("sys/class/infiniband/mlx5_0/device");
        std::os::unix::fs::symlink(tree.0.join(&device), link).unwrap();
        let judge = || acs(&[tree.nic("mlx5_0", "eth0")]);
        assert_eq!(judge(), None, "no bridge");
        tree.write(&format!("{port}/class"), "0x060400");
        let config = |bytes: &[u8]| std::fs::write(tree.0.join(port).join("config"), bytes).unwrap();
        config(&[0; 64]);
        assert!(judge().unwrap().seen.ends_with("run as root"));
        // The list of capabilities has advanced error reporting at 0x100, and then ACS.
        let mut bytes = vec![0; 4096];
        bytes[0x100..0x104].copy_from_slice(&[0x01, 0x00, 0x02, 0x14]);
        bytes[0x140..0x148].copy_from_slice(&[0x0d, 0x00, 0x01, 0x00, 0x5f, 0x00, 0x1d, 0x00]);
        config(&bytes);
        let check = judge().unwrap();
        assert_eq!(check.verdict, Verdict::Note);
        assert!(check.seen.starts_with("request redirect is on at 0000:00:01.0:"), "{}", check.seen);
        assert!(check.fix.unwrap().contains("setpci -s 0000:00:01.0 ECAP_ACS+6.w=0000"));
        bytes[0x146] = 0;
        config(&bytes);
        assert_eq!(judge().unwrap().verdict, Verdict::Pass);
        config(&[0; 256]);
        assert_eq!(judge().unwrap().verdict, Verdict::Pass, "a bridge without ACS");
        // The list leads back to itself.
        bytes[0x140..0x144].copy_from_slice(&[0x01, 0x00, 0x02, 0x14]);
        config(&bytes);
        assert_eq!(judge().unwrap().verdict, Verdict::Pass);
    }

    #[test]
    fn nics_of_one_subnet_that_answer_for_each_other_are_a_warning() {
        let tree = Tree::new("arp");
        let route =
            |netdev: &str, net: &str| format!("{netdev}\t{net}\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0");
        let routes = [route("eth0", "0000000A"), route("eth1", "0000000A"), route("eth2", "0001000A")];
        tree.write("proc/net/route", &routes.join("\n"));
        let nics = || [tree.nic("mlx5_0", "eth0"), tree.nic("mlx5_1", "eth1"), tree.nic("mlx5_2", "eth2")];
        let conf = |who: &str, name: &str, value: &str| {
            tree.write(&format!("proc/sys/net/ipv4/conf/{who}/{name}"), value);
        };
        for who in ["all", "eth0", "eth1", "eth2"] {
            conf(who, "arp_ignore", "0");
            conf(who, "rp_filter", "0");
        }
        conf("eth1", "rp_filter", "1");
        let check = arp(&nics()).unwrap();
        assert_eq!(check.verdict, Verdict::Warn);
        assert!(
            check.seen.starts_with("eth0, eth1 share a subnet; each of eth0, eth1 answers ARP"),
            "{}",
            check.seen
        );
        let fix = check.fix.unwrap();
        assert!(fix.contains("arp_ignore=1") && fix.contains("conf.eth1.rp_filter=2"), "{fix}");
        conf("all", "arp_ignore", "1");
        conf("all", "rp_filter", "2");
        assert_eq!(arp(&nics()).unwrap().verdict, Verdict::Pass);
        assert_eq!(arp(&nics()[1..]), None, "eth1 and eth2 share nothing");
    }

    #[test]
    fn flow_control_is_shown_where_the_driver_shows_it() {
        let tree = Tree::new("pfc");
        let judge = |class| flow_control(&tree.nic("mlx5_0", "eth0"), class);
        assert_eq!(judge(0), None);
        tree.write("sys/class/net/eth0/qos/pfc", "0,0,0,0,0,0,0,0");
        assert!(judge(0).unwrap().seen.contains("no priority has PFC"));
        tree.write("sys/class/net/eth0/qos/pfc", "0,0,0,1,0,0,0,0");
        tree.write("sys/class/net/eth0/qos/trust", "dscp");
        assert!(judge(0).unwrap().fix.unwrap().contains("PHUB_RDMA_TC"));
        let set = judge(106).unwrap();
        assert_eq!((set.verdict, &*set.seen), (Verdict::Pass, "PFC on priority 3, by dscp"));
    }
}
