//! The probe's children: none outlives it, however it ends; and one that dies ends the probe with
//! an error that names it.

mod support;

use std::process::Stdio;

use fabric::conformance::Watchdog;
use pbox_core::Key;
use rustix::process::Signal;
use support::program::{Program, children, is_dead, kill, probe, until, write_manifest};
use support::says;

/// A probe whose hub and two workers run, and who they are. The rounds would take minutes.
fn running_probe(manifest: &std::path::Path) -> (Program, Vec<u32>) {
    write_manifest(manifest, &[Key::f32("a", [100_000])]);
    let mut command = probe();
    command.args(["--workers", "2", "--rounds", "1000000", "--cores", "1", "--json", "--manifest"]).arg(manifest);
    let program = Program::start(command.stderr(Stdio::null()));
    let mut found = Vec::new();
    until("hub and workers have started", || {
        found = children(program.pid());
        found.len() == 3
    });
    (program, found)
}

fn nobody_survives(signal: Signal) {
    let dir = tempfile::tempdir().unwrap();
    let (mut program, children) = running_probe(&dir.path().join("model.safetensors"));
    program.signal(signal);
    assert!(!program.end().success());
    until("all children are dead", || children.iter().all(|&child| is_dead(child)));
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().flatten().map(|file| file.file_name()).collect();
    assert_eq!(left, ["model.safetensors"], "nothing is left but the manifest");
}

#[test]
fn none_outlives_an_interrupt() {
    let _watchdog = Watchdog::new("none_outlives_an_interrupt");
    nobody_survives(Signal::INT);
}

#[test]
fn none_outlives_a_kill() {
    let _watchdog = Watchdog::new("none_outlives_a_kill");
    nobody_survives(Signal::KILL);
}

#[test]
fn one_that_is_killed_ends_the_probe() {
    let _watchdog = Watchdog::new("one_that_is_killed_ends_the_probe");
    for (victim, words) in [(0, ["lost the hub", "worker 0"]), (2, ["worker 1 is gone", "worker 0"])] {
        let dir = tempfile::tempdir().unwrap();
        let stderr_path = dir.path().join("stderr");
        write_manifest(&dir.path().join("model.safetensors"), &[Key::f32("a", [100_000])]);
        let mut command = probe();
        command.args(["--workers", "2", "--rounds", "1000000", "--cores", "1", "--json", "--manifest"]);
        command.arg(dir.path().join("model.safetensors"));
        let mut program = Program::start(command.stderr(std::fs::File::create(&stderr_path).unwrap()));
        let mut found = Vec::new();
        until("hub and workers have started", || {
            found = children(program.pid());
            found.len() == 3
        });
        found.sort_unstable();
        // Beyond their joins: each worker's two windows and the hub's weights are mapped in the hub.
        until("both workers are connected", || {
            let maps = std::fs::read_to_string(format!("/proc/{}/maps", found[0])).unwrap_or_default();
            maps.matches("memfd:phub-window").count() == 3
        });
        kill(found[victim], Signal::KILL);
        assert!(!program.end().success());
        says(std::fs::read_to_string(&stderr_path).unwrap(), &words);
        until("all children are dead", || found.iter().all(|&child| is_dead(child)));
    }
}
