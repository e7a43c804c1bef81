//! Verbs on a machine with faults: a limit on locked memory, a missing device, a NIC whose port goes down.
//! The tests use the devices of `PHUB_TEST_DEVICE`. The last test also needs `PHUB_TEST_LINK_DOWN`, the
//! network interface of the first device. That test takes the interface down for a moment.

use std::process::Command;

use super::bed::{self, TIMEOUT, Verbs};
use fabric::conformance::{Bed, Far, HubAndWorkers, Meeting, Role, Shape, Watchdog};
use fabric::verbs::{GroupOptions, NicOptions, PathFlags, devices, group, loopback};
use fabric::{CloseReason, Port, Posted, Until};

const LIMITED: &str = "PHUB_TEST_LIMITED";
const SHAPE: Shape = Shape { peers: 1, links: 1, capacity: 8, chunks: 64, chunk_bytes: 4096 };

#[test]
fn memory_that_may_not_be_locked_is_an_error_with_the_fix() {
    let _watchdog = Watchdog::start();
    let Some(device) = bed::devices().into_iter().next() else { return };
    // Root may lock any amount of memory, unless it drops that capability.
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock", "prlimit", "--memlock=65536:65536"]);
    command.arg(std::env::current_exe().unwrap());
    command.args(["--exact", "faults::limited_process", "--nocapture"]).env(LIMITED, &device);
    let output = command.output().expect("util-linux is installed");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let expected = [
        "cannot register 1048576 bytes of the window that",
        &device,
        "65536 bytes (RLIMIT_MEMLOCK)",
        "ulimit -l unlimited",
        "--ulimit memlock=-1",
        "LimitMEMLOCK=infinity",
    ];
    for expected in expected {
        assert!(said.contains(expected), "{said:?} lacks {expected:?}; {output:?}");
    }
}

/// The main function of a process that may lock 64 KiB. It is not a test.
#[test]
fn limited_process() {
    let Ok(device) = std::env::var(LIMITED) else { return };
    match loopback(&NicOptions::new(device), 1 << 20, 64, &PathFlags::default()) {
        Ok(_) => println!("no limit held"),
        Err(error) => println!("{error}"),
    }
}

#[test]
fn a_device_that_is_not_there_is_named_with_those_that_are() {
    let present = bed::devices();
    if present.is_empty() {
        return;
    }
    let error = group(&[NicOptions::new("mlx5_77")], GroupOptions::default()).err().unwrap().to_string();
    assert!(error.contains("mlx5_77"), "{error}");
    for device in &present {
        assert!(error.contains(device.as_str()), "{error}");
    }
}

#[test]
fn devices_are_listed_with_what_their_ports_are() {
    let named = bed::devices();
    if named.is_empty() {
        return;
    }
    let listed = devices().unwrap();
    for name in named {
        let device = listed.iter().find(|device| device.name == name).expect("a device to test on is listed");
        let port = device.ports.iter().find(|port| port.active).expect("its port is active");
        assert!(port.mtu.is_some() && port.gid.is_ok() && !port.gids.is_empty(), "{port:?}");
        println!("{name}: {port:?}");
    }
}

#[test]
fn a_gid_that_is_not_there_is_refused_with_the_table() {
    let Some(device) = bed::devices().into_iter().next() else { return };
    let nic = NicOptions { gid_index: Some(254), ..NicOptions::new(&device) };
    let error = group(&[nic], GroupOptions::default()).err().unwrap().to_string();
    assert!(error.contains("254") && error.contains("RoCE v2") | error.contains("IB/RoCE"), "{error}");
}

#[test]
fn a_port_that_comes_back_keeps_its_links_and_one_that_stays_down_loses_what_posts() {
    let _watchdog = Watchdog::start();
    let Some(device) = bed::devices().into_iter().next() else { return };
    let Ok(interface) = std::env::var("PHUB_TEST_LINK_DOWN") else {
        println!("skipped: PHUB_TEST_LINK_DOWN names no interface to take down");
        return;
    };
    let bed = HubAndWorkers { transport: Verbs(vec![device.clone()]), near: Role::Hub, far: Far::Here };
    let Meeting { mut near, mut peers } = bed.meet(SHAPE);
    near.attach_all();
    assert_eq!(peers[0].post(0, 7), Posted::Accepted);
    peers[0].flush();
    assert_eq!(near.collect(1)[0].value, 7);
    let set = |state| {
        let status = Command::new("ip").args(["link", "set", &interface, state]).status().unwrap();
        assert!(status.success());
    };
    // No post is in flight while the interface is down.
    set("down");
    set("up");
    assert_eq!(peers[0].post(0, 8), Posted::Accepted);
    peers[0].flush();
    assert_eq!(near.collect(1)[0].value, 8);

    set("down");
    assert_eq!(near.post(0, 9), Posted::Accepted);
    near.port.flush();
    let closed = loop {
        near.poll();
        if let Some(closed) = near.port.closed() {
            break closed;
        }
        near.port.wait(Until::Any, TIMEOUT);
    };
    set("up");
    let CloseReason::Failed(why) = &closed.reason else { panic!("{closed:?}") };
    assert!(why.contains("completed with") && why.contains(&device), "{why}");
}
