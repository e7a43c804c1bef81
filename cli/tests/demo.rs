//! `phub-server demo`: it names the slow worker, its page opens at the printed address, and it ends cleanly.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

use crate::support::{failure, phub_server, says};
use authority::Token;
use fabric::conformance::Watchdog;
use membership::Named;
use pbox_core::control::HubReply;
use phub_server::client::Address;
use rustix::process::{Pid, Signal, kill_process};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(5);

fn piped(command: &mut Command) -> (Child, impl Iterator<Item = String> + use<>) {
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    (child, lines)
}

#[test]
fn the_slow_worker_is_named_and_a_signal_ends_all() {
    let _watchdog = Watchdog::start();
    let demo = ["demo", "--workers", "2", "--slow-after", "1"];
    let (mut child, mut lines) = piped(phub_server(&demo).stderr(Stdio::piped()));
    let page = lines.find_map(|line| line.strip_prefix("The page: http://").map(str::to_owned)).unwrap();
    let (hub, token) = page.split_once("/#token=").unwrap();

    lines.find(|line| line.contains("from now on worker 1 sleeps 40 ms")).unwrap();
    lines.find(|line| line.contains("waiting for rank 1: last in")).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let ask = |token: Option<Token>| {
        let hub = Address::new(hub, Named::Here);
        runtime.block_on(async { hub.get::<HubReply>("/v1/hub", token, PATIENCE).await })
    };
    assert_eq!(ask(Some(token.parse().unwrap())).unwrap().jobs[0].members.len(), 2);
    says(ask(None).unwrap_err(), &["token"]);

    kill_process(Pid::from_raw(child.id() as i32).unwrap(), Signal::INT).unwrap();
    let rest: Vec<String> = lines.collect();
    assert!(child.wait().unwrap().success());
    let picture = rest.iter().filter(|line| line.trim_start().starts_with(['.', '#'])).count();
    assert_eq!(picture, 26, "{rest:?}");
    says(
        rest.join("\n"),
        &["2 workers made", "Worker 1 was slow from second 1 on, and the verdict named it in second"],
    );
    let mut log = String::new();
    child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    assert!(!log.contains("job"), "a worker did not leave after the round of the others: {log}");
    says(ask(Some(token.parse().unwrap())).unwrap_err(), &["cannot be reached"]);
}

#[test]
fn it_learns_and_ends_by_itself() {
    let _watchdog = Watchdog::start();
    let demo = ["demo", "--seconds", "3", "--workers", "2"];
    let output = phub_server(&demo).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    says(&said, &["% right", "2 workers made"]);
    assert!(!said.contains("was slow"), "{said}");
    says(failure(&["demo", "--workers", "1"]), &["1 is not in 2..=16"]);
}
