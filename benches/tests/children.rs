//! The probe's children. No child outlives the probe, in whatever way the probe ends. If a child dies, the probe ends
//! with an error that names the child.

use std::fs::File;
use std::path::Path;

use fabric::conformance::Watchdog;
use hub_tests::program::{Program, children, interruptible, is_dead, kill, until, write_manifest};
use hub_tests::says;
use pbox_core::Key;
use rustix::process::Signal;

/// Starts a probe with a hub and two workers, whose rounds would take minutes. Returns the probe and its
/// children, the hub first. The directory holds the probe's model and stderr.
fn running_probe(dir: &Path) -> (Program, Vec<u32>) {
    let model = dir.join("model.safetensors");
    write_manifest(&model, &[Key::f32("a", [100_000])]);
    let mut command = interruptible(env!("CARGO_BIN_EXE_phub-probe"));
    command
        .args(["--workers", "2", "--rounds", "1000000", "--cores", "1", "--json", "--manifest"])
        .arg(model);
    let program = Program::start(command.stderr(File::create(dir.join("stderr")).unwrap()));
    let mut found = Vec::new();
    until("hub and workers have started", || {
        let said = || std::fs::read_to_string(dir.join("stderr")).unwrap();
        assert!(!is_dead(program.pid()), "the probe ended: {}", said());
        found = children(program.pid());
        found.len() == 3
    });
    // A worker is found by the rank and the hub in its command line. The order of process ids does not show the order
    // of the starts: after the largest id the kernel begins again with small ids.
    let given = |pid: u32, option: &str| {
        let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split('\0').skip_while(|&word| word != option).nth(1).map(str::to_owned)
    };
    until("two workers know the hub", || {
        found.iter().filter(|&&pid| given(pid, "--hub").is_some()).count() == 2
    });
    found.sort_by_key(|&pid| given(pid, "--rank"));
    let address = given(found[2], "--hub").expect("a worker has a rank and a hub");
    // Waits until the hub has stepped more chunks than the warm-up has.
    until("rounds are run", || hub_tests::describe(&address).cores[0].chunks > 1000);
    (program, found)
}

fn nobody_survives(signal: Signal) {
    let dir = tempfile::tempdir().unwrap();
    let (mut program, children) = running_probe(dir.path());
    program.signal(signal);
    assert!(!program.end().success());
    until("all children are dead", || children.iter().all(|&child| is_dead(child)));
    let files = std::fs::read_dir(dir.path()).unwrap().flatten().map(|file| file.file_name());
    let left: std::collections::BTreeSet<_> = files.collect();
    assert_eq!(
        left,
        ["model.safetensors", "stderr"].map(Into::into).into(),
        "nothing is left but its own files"
    );
}

#[test]
fn none_outlives_an_interrupt() {
    let _watchdog = Watchdog::start();
    nobody_survives(Signal::INT);
}

#[test]
fn none_outlives_a_kill() {
    let _watchdog = Watchdog::start();
    nobody_survives(Signal::KILL);
}

#[test]
fn a_child_that_is_killed_ends_the_probe_program() {
    let _watchdog = Watchdog::start();
    for (victim, words) in [(0, ["lost the hub", "worker 0"]), (2, ["worker 1 is gone", "worker 0"])] {
        let dir = tempfile::tempdir().unwrap();
        let (mut program, found) = running_probe(dir.path());
        kill(found[victim], Signal::KILL);
        assert!(!program.end().success());
        says(std::fs::read_to_string(dir.path().join("stderr")).unwrap(), &words);
        until("all children are dead", || found.iter().all(|&child| is_dead(child)));
    }
}
