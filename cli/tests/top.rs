//! `phub-server top`: without a terminal it prints one line for each job, and it ends cleanly.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support::{Serve, failure, phub_server, says};
use fabric::IdlePolicy;
use fabric::conformance::Watchdog;
use pbox_core::{Key, Optimizer};
use rustix::process::{Pid, Signal, kill_process};
use worker_shim::{Session, SessionConfig};

fn said(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_verdict_comes_each_second_until_it_is_interrupted() {
    let _watchdog = Watchdog::start();
    let mut hub = Serve::start(
        phub_server(&["serve", "--listen", "127.0.0.1:0", "--cores", "1"]).stderr(Stdio::null()),
    );
    let once = ["top", "--once", &hub.address.clone()];
    assert_eq!(said(&mut phub_server(&once)), "no job is here\n");
    let keys = vec![Key::f32("a", [100])];
    let mut config = SessionConfig::new(&hub.address, "job", 0, 2, keys, Optimizer::Average);
    config.idle = IdlePolicy::SHARED;
    config.hub_wait = Duration::ZERO;
    let other = SessionConfig { rank: 1, ..config.clone() };
    let (mut session, _other) = std::thread::scope(|scope| {
        let other = scope.spawn(|| Session::join(other).unwrap());
        (Session::join(config).unwrap(), other.join().unwrap())
    });
    assert_eq!(said(&mut phub_server(&once)), "job: round 0: the hub has not waited for any worker yet\n");
    session.keys().try_for_each(|key| session.push(key)).unwrap();

    let mut top = phub_server(&["top", &hub.address]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(top.stdout.take().unwrap()).lines();
    let seen =
        lines.find(|line| line.as_ref().is_ok_and(|line| line.contains("has waited"))).unwrap().unwrap();
    says(&seen, &["job: round 0 has waited", "for rank 1"]);
    assert!(!seen.contains('\x1b'), "no terminal, no escapes");
    hub.signal(Signal::TERM);
    hub.end();
    says(
        lines.find(|line| !line.as_ref().unwrap().starts_with("job: ")).unwrap().unwrap(),
        &["the hub does not answer"],
    );
    kill_process(Pid::from_raw(top.id() as i32).unwrap(), Signal::INT).unwrap();
    assert!(top.wait().unwrap().success());
    says(failure(&once), &["hub 127.0.0.1", "the hub cannot be reached", "`phub-server serve` runs there"]);
}

#[test]
fn a_hub_that_ends_between_the_two_requests_is_an_error() {
    let _watchdog = Watchdog::start();
    let hub = Serve::start(
        phub_server(&["serve", "--listen", "127.0.0.1:0", "--cores", "1", "--insecure"])
            .stderr(Stdio::null()),
    );
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    // Passes one request on to the hub. Then nothing listens at the address.
    let proxy = std::thread::spawn(move || {
        let (client, _) = listener.accept().unwrap();
        let mut client = BufReader::new(client);
        client.by_ref().lines().map(Result::unwrap).find(String::is_empty).unwrap();
        let mut behind = TcpStream::connect(&hub.address).unwrap();
        write!(behind, "GET /v1/hub HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n", hub.address).unwrap();
        drop(listener);
        std::io::copy(&mut behind, client.get_mut()).unwrap();
    });
    says(failure(&["top", "--once", &address]), &[&address, "the hub cannot be reached"]);
    proxy.join().unwrap();
}
