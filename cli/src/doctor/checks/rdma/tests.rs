//! The doctor's judgements of RDMA on made-up devices: which of them pass, warn or fail, and with which fix.

use fabric::verbs::{DeviceError, Gid, GidEntry, Mtu};

use super::*;

fn entry(index: u8, address: &str, roce_v2: bool) -> GidEntry {
    let gid = Gid(address.parse::<std::net::Ipv6Addr>().unwrap().octets());
    GidEntry { index, gid, roce_v2, netdev: Some("eth7".into()), elsewhere: false }
}

/// Returns a device with one port of RoCE.
fn device(name: &str, active: bool, mtu_code: u32, gids: Vec<GidEntry>) -> Device {
    let gid = Err(GidError { device: name.into(), port: 1, what: "not asked".into(), entries: Vec::new() });
    let port = DevicePort {
        number: 1,
        active,
        state: if active { "ACTIVE" } else { "DOWN" },
        link_layer: LinkLayer::Ethernet,
        mtu: Mtu::from_code(mtu_code),
        gbps: Some(100.0),
        lid: 0,
        netdev: Some("eth7".into()),
        gids,
        gid,
    };
    Device { name: name.into(), ports: vec![port], fault: None }
}

fn candidate(device: &Device) -> Candidate<'_> {
    let options = Some(NicOptions::new(device.name.clone()));
    Candidate { device, options, named: false, planned: true, plan_has_nics: true, netdev: None }
}

fn found(kernel: &[&str], devices: Result<Vec<Device>, VerbsError>) -> Found {
    let kernel = KernelRdma { devices: kernel.iter().map(|&name| name.into()).collect(), for_programs: true };
    Found { kernel, devices, library: vec!["libibverbs.so.1".into()] }
}

#[track_caller]
fn says(check: &Check, verdict: Verdict, seen: &str, fix: &str) {
    assert_eq!(check.verdict, verdict, "{check:?}");
    assert!(check.seen.contains(seen), "{check:?} has not seen {seen:?}");
    assert!(check.fix.as_deref().unwrap_or_default().contains(fix), "{check:?} has no fix {fix:?}");
}

#[test]
fn a_missing_library_matters_where_rdma_is_wanted() {
    let missing = LibraryError::Missing { name: "libibverbs.so.1", why: "no such file".into() };
    let found = found(&[], Err(missing.into()));
    says(
        &library(Need::Wanted, &found),
        Verdict::Fail,
        "libibverbs.so.1 cannot be loaded",
        "apt-get install libibverbs1",
    );
    says(&library(Need::Idle, &found), Verdict::Note, "no such file", "ibverbs-providers");
    assert_eq!(devices(Need::Wanted, &found), None);
}

#[test]
fn devices_that_are_not_shown_are_named_with_the_way_to_them() {
    let none = devices(Need::Wanted, &found(&[], Ok(vec![]))).unwrap();
    says(&none, Verdict::Fail, "has none", "rdma link add rxe0");
    assert_eq!(devices(Need::Idle, &found(&[], Ok(vec![]))).unwrap().verdict, Verdict::Note);
    let provider = devices(Need::Wanted, &found(&["mlx5_0"], Ok(vec![]))).unwrap();
    says(&provider, Verdict::Fail, "kernel has mlx5_0, and no provider", "ibverbs-providers");
    let mut uverbs = found(&["mlx5_0"], Ok(vec![]));
    uverbs.kernel.for_programs = false;
    says(
        &devices(Need::Wanted, &uverbs).unwrap(),
        Verdict::Fail,
        "ib_uverbs is not loaded",
        "modprobe ib_uverbs",
    );
    let one = device("mlx5_0", true, 5, vec![]);
    let some = devices(Need::Wanted, &found(&["irdma0", "mlx5_0"], Ok(vec![one.clone()]))).unwrap();
    says(&some, Verdict::Warn, "supports irdma0", "ibverbs-providers");
    let all = devices(Need::Wanted, &found(&["mlx5_0"], Ok(vec![one]))).unwrap();
    says(&all, Verdict::Pass, "mlx5_0", "");
}

#[test]
fn a_device_that_does_not_open_fails_where_the_hub_has_no_other() {
    let fault = DeviceError::Open { device: "mlx5_0".into(), error: "Permission denied".into() };
    let shut = Device { ports: vec![], fault: Some(fault), ..device("mlx5_0", true, 5, vec![]) };
    let others = Candidate { planned: false, ..candidate(&shut) };
    says(&port(&others), Verdict::Warn, "Permission denied", "/dev/infiniband/uverbs*");
    says(&port(&Candidate { plan_has_nics: false, ..others }), Verdict::Fail, "Permission denied", "uverbs*");
    // The plan does not use a port that is active but has no address.
    let bare = device("mlx5_1", true, 5, vec![]);
    let bare = Candidate { planned: false, ..candidate(&bare) };
    says(&port(&bare), Verdict::Warn, "there is no GID", "ip address add IP/BITS dev eth7");
}

#[test]
fn a_port_says_state_link_layer_mtu_and_speed() {
    let fine = device("mlx5_0", true, 5, vec![]);
    says(
        &port(&candidate(&fine)),
        Verdict::Pass,
        "port 1 ACTIVE, Ethernet, MTU 4096, 100 Gb/s, interface eth7",
        "",
    );
    let usual = device("mlx5_0", true, 3, vec![]);
    says(&port(&candidate(&usual)), Verdict::Note, "MTU 1024", "ip link set eth7 mtu 4200");
    let small = device("mlx5_0", true, 1, vec![]);
    says(&port(&candidate(&small)), Verdict::Warn, "MTU 256", "mtu 4200");
}

#[test]
fn a_port_that_is_down_fails_where_the_hub_needs_it() {
    let down = device("mlx5_0", false, 5, vec![]);
    let spare = Candidate { planned: false, ..candidate(&down) };
    says(&port(&spare), Verdict::Warn, "the hub does not use this NIC", "ip link set eth7 up");
    let named = Candidate { named: true, ..candidate(&down) };
    says(&port(&named), Verdict::Fail, "port 1 DOWN", "ip link set eth7 up");
    let only = Candidate { plan_has_nics: false, ..spare.clone() };
    says(&port(&only), Verdict::Fail, "expected an ACTIVE port", "cable");
    let unknown = NicOptions { port: Some(3), ..NicOptions::new("mlx5_0") };
    let unknown = Candidate { options: Some(unknown), named: true, ..candidate(&down) };
    says(&port(&unknown), Verdict::Fail, "expected an ACTIVE port 3", "without a port");
    assert!(named.port().is_none() && spare.port().is_none());
}

#[test]
fn a_nic_that_is_left_out_is_noted() {
    let fine = device("mlx5_0", true, 5, vec![]);
    let excluded = Candidate { options: None, planned: false, ..candidate(&fine) };
    says(&port(&excluded), Verdict::Note, "the list of NICs excludes it", "");
    let usable = device("mlx5_0", true, 5, vec![entry(3, "::ffff:10.0.0.1", true)]);
    let slow = Candidate { planned: false, ..candidate(&usable) };
    says(&port(&slow), Verdict::Note, "the hub would not use this NIC", "");
}

#[test]
fn a_gid_is_shown_with_its_reason_and_the_table_where_there_is_none() {
    let judge = |gids: Vec<GidEntry>, wanted: Option<u8>| {
        let device = device("mlx5_0", true, 5, gids);
        let options = NicOptions { gid_index: wanted, ..NicOptions::new("mlx5_0") };
        gid(&Candidate { options: Some(options), ..candidate(&device) }, &device.ports[0])
    };
    let (local, v4) = (entry(1, "fe80::1", true), entry(3, "::ffff:10.0.0.1", true));
    says(
        &judge(vec![local.clone(), v4], None),
        Verdict::Pass,
        "index 3, ::ffff:10.0.0.1: RoCE v2 with an IPv4",
        "",
    );
    says(&judge(vec![local.clone()], None), Verdict::Warn, "link-local", "ip address add IP/BITS dev eth7");
    let hosts = GidEntry { elsewhere: true, ..entry(3, "::ffff:10.0.0.1", true) };
    says(
        &judge(vec![hosts.clone()], None),
        Verdict::Warn,
        "another network namespace",
        "ip link set eth7 netns",
    );
    says(&judge(vec![hosts], Some(3)), Verdict::Pass, "was requested", "");
    says(&judge(vec![local.clone()], Some(1)), Verdict::Pass, "was requested", "");
    says(&judge(vec![local], Some(9)), Verdict::Fail, "fe80::1", "mlx5_0@INDEX");
    says(&judge(vec![entry(0, "fe80::1", false)], None), Verdict::Fail, "IB/RoCE v1", "--nics mlx5_0@INDEX");
    says(&judge(vec![], None), Verdict::Fail, "(empty)", "ip link set eth7 up");
}
