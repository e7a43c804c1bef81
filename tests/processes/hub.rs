//! A hub in its own process: this test program again, which runs only [`hub_process`]. Its settings are the environment
//! variables of `phub-server`.

use std::io;
use std::process::Command;

use fabric::conformance::rerun;
use hub_tests::PATIENT_S;
use hub_tests::program::Program;
use phub_server::{Hub, HubSettings};

const VARIABLE: &str = "PHUB_TEST_HUB";

/// Starts a hub on a free port. It has one core, which sleeps when idle, unless `variables` have other settings. Returns
/// its process and its address.
pub fn start_hub(variables: &[(&str, &str)]) -> (Program, String) {
    let mut program = begin_hub(variables);
    let address = program.read_reply();
    (program, address)
}

/// Works like [`start_hub`], with a program that starts the hub's program.
pub fn start_hub_under(starter: &[&str], variables: &[(&str, &str)]) -> (Program, String) {
    let hub = rerun(hub_process);
    let mut command = Command::new(starter[0]);
    command.args(&starter[1..]).arg(hub.get_program()).args(hub.get_args());
    let mut program = begin(&mut command, variables);
    let address = program.read_reply();
    (program, address)
}

/// Works like [`start_hub`], without waiting until it listens.
pub fn begin_hub(variables: &[(&str, &str)]) -> Program {
    begin(&mut rerun(hub_process), variables)
}

fn begin(command: &mut Command, variables: &[(&str, &str)]) -> Program {
    command
        .env(VARIABLE, "1")
        .env("PHUB_LISTEN", "127.0.0.1:0")
        .env("PHUB_CORES", "1")
        .env("PHUB_IDLE", "sleep");
    command.env("PHUB_HEARTBEAT_LIMIT_S", PATIENT_S.to_string()).envs(variables.iter().copied());
    Program::start(command)
}

/// The main function of a hub's process, which is no test. It does nothing if [`VARIABLE`] is not set.
#[test]
fn hub_process() {
    if std::env::var_os(VARIABLE).is_none() {
        return;
    }
    let hub = Hub::start(&HubSettings::default()).expect("a hub starts on a free port");
    println!("@{}", hub.address());
    // Standard input is closed when the test ends, whatever ends the test.
    io::copy(&mut io::stdin(), &mut io::sink()).expect("standard input is a pipe");
}
