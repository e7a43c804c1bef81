//! The example `train`, run as a user runs it: hub and workers are processes.
//!
//! `cargo test` and `cargo nextest run` build examples beside the tests. So the program is at
//! `<target>/<profile>/examples/train`, while this test is in `<target>/<profile>/deps`. If only this test
//! program is requested (`--test programs`), cargo does not build the example again. Then run
//! `cargo build --release --example train` first.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// The time after which a run counts as hanging. A run takes about a second.
const WATCHDOG: Duration = Duration::from_secs(60);

fn program() -> PathBuf {
    let test = std::env::current_exe().expect("this test has a file");
    let profile = test.parent().and_then(|deps| deps.parent()).expect("<profile>/deps/<test>");
    let program = profile.join("examples/train");
    assert!(program.exists(), "{} is not built: cargo build --release --example train", program.display());
    program
}

/// Runs the example to its end. Kills the example if it hangs; the example's child processes then end, too.
fn train(args: &[&str]) -> Output {
    let mut command = Command::new(program());
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().expect("the example starts");
    let pid = Pid::from_child(&child);
    let (ended, watch) = channel::<()>();
    let watchdog = thread::spawn(move || {
        let hangs = watch.recv_timeout(WATCHDOG) == Err(RecvTimeoutError::Timeout);
        if hangs {
            let _ = kill_process(pid, Signal::KILL);
        }
        hangs
    });
    let output = child.wait_with_output().expect("our own child");
    drop(ended);
    let hung = watchdog.join().expect("the watchdog does not panic");
    assert!(!hung, "{args:?} did not end within {WATCHDOG:?}: {output:?}");
    output
}

/// Runs the example, which must succeed. Returns its report and its fingerprint.
fn good_run(workers: &str) -> (String, String) {
    let output = train(&["--workers", workers, "--epochs", "8"]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{workers} workers: {}\n{said}\n{complaints}", output.status);
    let fingerprint =
        said.lines().find_map(|line| line.trim().strip_prefix("fingerprint")).expect("a fingerprint");
    (said.clone(), fingerprint.trim().to_owned())
}

fn losses(said: &str) -> Vec<f64> {
    let loss = |line: &str| line.split_once("loss ")?.1.split(' ').next()?.parse().ok();
    said.lines().filter_map(loss).collect()
}

#[test]
fn any_number_of_workers_ends_with_the_weights_of_one_process() {
    for workers in ["1", "2", "4"] {
        // The exit status also shows that the accuracy is good enough.
        let (said, _) = good_run(workers);
        assert!(said.contains("the same weights, bit for bit"), "{said}");
        let losses = losses(&said);
        assert_eq!(losses.len(), 8, "a loss for each epoch:\n{said}");
        assert!(losses[7] < 0.8 * losses[0], "the loss falls: {losses:?}");
    }
}

/// Checks that every codec trains. After 12 epochs, the loss is below 0.49 (without compression it is 0.46),
/// and all workers have the same bits. A second run gives the same result.
#[test]
fn every_codec_trains() {
    for codec in
        ["f16", "bf16", "qsgd:4:64", "onebit", "terngrad", "topk:0.05", "randomk:0.2", "dgc:0.05:0.9:none:20"]
    {
        let run = || {
            let output = train(&["--workers", "3", "--epochs", "12", "--compress", codec]);
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            let complaints = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{codec}: {}\n{said}\n{complaints}", output.status);
            said
        };
        let said = run();
        assert!(said.contains("the same weights, bit for bit"), "{said}");
        let losses = losses(&said);
        assert!(losses[11] < 0.49, "{codec}: {losses:?}");
        let fingerprint = |said: &str| said.lines().last().map(str::to_owned);
        assert_eq!(fingerprint(&run()), fingerprint(&said), "{codec}");
    }
}

#[test]
fn a_run_repeats() {
    assert_eq!(good_run("3").1, good_run("3").1);
}

#[test]
fn too_low_an_accuracy_is_an_error() {
    let output = train(&["--workers", "2", "--epochs", "1", "--min-accuracy", "1"]);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(complaint.contains("on the test set is below 1.000"), "{complaint}");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("the same weights, bit for bit"), "{said}");
}

#[test]
fn a_hub_that_is_not_there_is_named() {
    let output = train(&["--workers", "1", "--hub", "127.0.0.1:1"]);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(complaint.contains("127.0.0.1:1"), "{complaint}");
}
