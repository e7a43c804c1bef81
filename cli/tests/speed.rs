//! The speed of links where NICs tell none: hubs measure it, one transfer at a time, and say so.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::support::{Serve, failure, phub_server, says};
use authority::{ALL_JOBS, Credential, Right};
use fabric::IdlePolicy;
use fabric::conformance::Watchdog;
use membership::{MEASURED_IN, MemberError, measure};
use pbox_core::{Key, Optimizer};
use topology::{Host, SpeedSource};
use worker_shim::{Session, SessionConfig};

const HUB: [&str; 5] = ["serve", "--listen", "127.0.0.1:0", "--cores", "1"];

#[test]
fn a_hub_below_logs_the_speed_that_it_measured_and_the_choice() {
    let _watchdog = Watchdog::start();
    let top = Serve::start(phub_server(&HUB).stderr(Stdio::null()));
    let below = [&HUB[..], &["--above", &top.address, "--machine", "0/1"]].concat();
    let mut hub = Serve::start(phub_server(&below).stderr(Stdio::piped()));
    let keys = vec![Key::f32("a", [100_000])];
    let mut config = SessionConfig::new(&hub.address, "job", 0, 1, keys, Optimizer::Average);
    config.idle = IdlePolicy::SHARED;
    let session = Session::join(config).unwrap();
    let logged = hub.stderr().map(Result::unwrap).find(|line| line.contains(" Gb/s, ")).unwrap();
    let host = Host::from_sysfs("/sys").unwrap();
    let told = host.nics.iter().any(|nic| nic.speed.is_some_and(|it| it.source != SpeedSource::PciLink));
    let known = if told { "as " } else { "measured from the hub at 127.0.0.1:" };
    says(logged, &["by links of ", known, ": use "]);
    session.leave().unwrap();
}

#[test]
fn one_link_at_a_time_is_measured_and_topology_does_it_too() {
    let _watchdog = Watchdog::start();
    let hub = Serve::start(phub_server(&HUB).stderr(Stdio::null()));
    let credential = Credential::find().unwrap();
    let shown = credential.token(Right::Join, ALL_JOBS);
    let begin = Instant::now();
    let refused = loop {
        // Its bytes are not read: the transfer lasts for 100 ms, in which another is refused.
        let mut stuck = TcpStream::connect(&hub.address).unwrap();
        write!(stuck, "GET /v1/speed HTTP/1.1\r\nHost: hub\r\nAuthorization: Bearer {shown}\r\n\r\n")
            .unwrap();
        stuck.read_exact(&mut [0; 15]).unwrap();
        match measure(&hub.address, MEASURED_IN, Some(&credential)) {
            Err(MemberError::Refused { why, .. }) => break why,
            other => assert!(begin.elapsed() < Duration::from_secs(60), "{other:?}"),
        }
    };
    says(refused, &["another hub measures the link to this one", "one may at a time"]);

    let job = ["topology", "--machines", "2", "--workers-per-machine", "4", "--model", "googlenet"];
    let measured = [&job[..], &["--measure", &hub.address]].concat();
    let said = loop {
        let output = phub_server(&measured).output().unwrap();
        if output.status.success() {
            break String::from_utf8(output.stdout).unwrap();
        }
        // The transfer above may not be over.
        assert!(begin.elapsed() < Duration::from_secs(60), "{}", String::from_utf8_lossy(&output.stderr));
    };
    says(said, &["Gb/s, measured from the hub at 127.0.0.1:", "use mesh"]);
    says(failure(&[&job[..], &["--measure", "127.0.0.1:1"]].concat()), &["cannot reach the hub"]);
    let read = Credential::parse(&credential.token(Right::Read, ALL_JOBS).to_string(), "a test").unwrap();
    says(measure(&hub.address, MEASURED_IN, Some(&read)).unwrap_err(), &["does not let", "to join"]);
}
