//! Tests of `phub-peers`. No process that the program starts outlives it. The program names missing systems,
//! and runs the installed systems with a tiny model.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use fabric::conformance::Watchdog;
use hub_tests::program::{Program, failure, interruptible, is_dead, until, write_manifest};
use hub_tests::says;
use pbox_core::Key;
use rustix::process::Signal;

fn phub_peers() -> Command {
    Command::new(env!("CARGO_BIN_EXE_phub-peers"))
}

fn tiny_model(dir: &Path) -> PathBuf {
    let path = dir.join("tiny.safetensors");
    write_manifest(&path, &[Key::f32("first.weight", [300, 40]), Key::f32("second.bias", [7])]);
    path
}

/// A command that starts processes in its own group, in another session, and as an orphan. It prints their
/// ids, and does not end.
const FAMILY: &str = "sleep 1000 & echo $!; setsid sh -c 'sleep 1000 & echo $!; echo $$; wait' & \
                      (sleep 1000 & echo $!); echo leader $$; wait";

/// Returns a guard of the command above.
fn guarded(limit_s: &str) -> Program {
    Program::start(phub_peers().args(["--limit-s", limit_s, "--guard", "sh", "-c", FAMILY]))
}

#[test]
fn a_family_does_not_outlive_its_limit() {
    let _watchdog = Watchdog::start();
    let mut guard = guarded("1");
    let mut family: Vec<u32> = Vec::new();
    // All processes of the family hold the other end of the pipe, so the pipe ends when the last process ends. On a
    // slow machine, some processes are killed before they have printed their ids.
    while let Some(line) = guard.read_line() {
        family.push(line.trim_start_matches("leader ").parse().unwrap());
    }
    assert_eq!(guard.end().code(), Some(124));
    assert!(family.iter().all(|&pid| is_dead(pid)), "the guard ends after its family");
}

#[test]
fn a_family_does_not_outlive_its_leader() {
    let _watchdog = Watchdog::start();
    let mut guard = guarded("600");
    let (mut leader, mut family) = (0, Vec::new());
    while leader == 0 || family.len() < 4 {
        let line = guard.read_line().expect("the family says who it is");
        match line.strip_prefix("leader ") {
            Some(pid) => leader = pid.parse().unwrap(),
            None => family.push(line.parse().unwrap()),
        }
    }
    hub_tests::program::kill(leader, Signal::TERM);
    while guard.read_line().is_some() {} // must come before `end`, which ends the guard by closing its stdin
    assert_eq!(guard.end().code(), Some(128 + 15));
    assert!(family.iter().all(|&pid| is_dead(pid)), "the guard ends after its family");
}

/// Starts phub-peers with a run of hours, and waits for its five processes: a guard, the probe, its hub and two
/// workers. Then ends phub-peers by a signal. After that, no process may be left.
fn nobody_survives(signal: Signal) {
    let dir = tempfile::tempdir().unwrap();
    let mut program = Program::start(
        interruptible(env!("CARGO_BIN_EXE_phub-peers"))
            .args(["--workers", "2", "--rounds", "1000000", "--manifest"])
            .arg(tiny_model(dir.path())),
    );
    let mut below = Vec::new();
    until("a hub and two workers have started", || {
        below = descendants(program.pid());
        below.len() == 5
    });
    program.signal(signal);
    assert!(!program.end().success());
    until("all are dead", || below.iter().all(|&pid| is_dead(pid)));
}

fn descendants(pid: u32) -> Vec<u32> {
    let mut found = hub_tests::program::children(pid);
    let mut next = 0;
    while next < found.len() {
        found.extend(hub_tests::program::children(found[next]));
        next += 1;
    }
    found
}

#[test]
fn nobody_outlives_an_interrupt() {
    let _watchdog = Watchdog::start();
    nobody_survives(Signal::INT);
}

#[test]
fn nobody_outlives_a_kill() {
    let _watchdog = Watchdog::start();
    nobody_survives(Signal::KILL);
}

#[test]
fn a_missing_system_is_named() {
    let _watchdog = Watchdog::start();
    let dir = tempfile::tempdir().unwrap();
    // With a PATH that has only the shell, there is no mpirun.
    let path = std::env::var_os("PATH").unwrap();
    let bash = std::env::split_paths(&path).map(|folder| folder.join("bash")).find(|bash| bash.exists());
    symlink(bash.expect("bash is installed"), dir.path().join("bash")).unwrap();
    let mut command = phub_peers();
    command.env("PATH", dir.path()).args(["--peers", "openmpi"]);
    says(failure(&mut command), &["cannot compare with Open MPI", "openmpi-bin", "without --peers"]);
    says(failure(phub_peers().args(["--peers", "horovod"])), &["horovod", "openmpi", "gloo"]);
}

/// A lock by which systems run one after another, because each has its own watchdog.
static ONE: Mutex<()> = Mutex::new(());

/// Runs a tiny model on one system, or prints that it is not installed.
fn runs_where_installed(system: &str, script: &str) {
    let _one = ONE.lock().unwrap_or_else(|failed| failed.into_inner());
    let _watchdog = Watchdog::on(system);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers").join(script);
    let ready = Command::new(script).arg("--ready").output().expect("the script starts");
    if ready.status.code() == Some(3) {
        eprintln!("SKIPPED: {}", String::from_utf8_lossy(&ready.stderr).trim());
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let model = tiny_model(dir.path());
    let output = phub_peers()
        .args(["--json", "--repeats", "1", "--rounds", "3", "--workers", "3", "--peers", system])
        .arg("--manifest")
        .arg(model)
        .output()
        .expect("phub-peers starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["parameters"], 12_007);
    let systems = report["systems"].as_array().unwrap();
    assert!(systems.len() > 2, "the hub's two rows, and the peer's: {report}");
    for row in systems {
        assert!(row["goodput_gb_per_s"]["median"].as_f64().unwrap() > 0.0, "{row}");
    }
}

#[test]
fn open_mpi_runs_where_installed() {
    runs_where_installed("openmpi", "mpi_allreduce.sh");
}

#[test]
fn gloo_runs_where_installed() {
    runs_where_installed("gloo", "gloo_allreduce.sh");
}
