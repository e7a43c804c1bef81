//! This test program as a child process. A test needs a separate process to kill it, to limit it, or to give
//! it a file system.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use fabric::conformance::rerun;

const VARIABLE: &str = "PHUB_CHECKPOINT_CHILD";

/// Returns `command`, extended by the arguments that run this program as `role` on a directory.
pub fn child(mut command: Command, role: &str, dir: &Path) -> Command {
    let again = rerun(child_process);
    command.arg(again.get_program()).args(again.get_args());
    command.env(VARIABLE, format!("{role}={}", dir.display())).stdin(Stdio::null());
    command
}

/// Returns a shell that runs `preparation` (with `$dir`) and then its arguments.
pub fn prepared(mut command: Command, preparation: &str, dir: &Path) -> Command {
    command.args(["-c", &format!("{preparation} && exec \"$@\""), "sh"]).env("dir", dir);
    command
}

/// Returns a shell with private mounts, which end with the shell. Prints a message and returns `None` if this
/// machine does not permit that.
pub fn shell_with_mounts() -> Option<Command> {
    for flags in [&["--mount"][..], &["--user", "--map-root-user", "--mount"]] {
        let command = || {
            let mut command = Command::new("unshare");
            command.args(flags).arg("sh");
            command
        };
        let tried = command().args(["-c", "mount -t tmpfs tmpfs /tmp"]).stderr(Stdio::null()).status();
        if tried.is_ok_and(|status| status.success()) {
            return Some(command());
        }
    }
    eprintln!("skipped: this process may not mount a file system of its own (unshare --mount)");
    None
}

/// Runs a child until it ends, and asserts that it succeeds.
#[track_caller]
pub fn succeeds(command: &mut Command) {
    let Output { status, stdout, stderr } = command.output().expect("the child starts");
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{command:?}: {status}\n{stdout}\n{stderr}");
    // The harness also succeeds if it finds no test to run.
    assert!(stdout.contains("1 passed"), "{command:?} ran nothing:\n{stdout}");
}

/// The main function of a child process. It is not a test, and does nothing without its variable.
#[test]
fn child_process() {
    let Ok(what) = std::env::var(VARIABLE) else { return };
    let (role, dir) = what.split_once('=').unwrap();
    let dir = PathBuf::from(dir);
    match role {
        "full" => super::disk::on_a_small_disk(&dir),
        "room for two" => super::disk::on_a_disk_for_two(&dir),
        "readonly" => super::disk::on_a_read_only_disk(&dir),
        "limited" => super::disk::under_a_size_limit(&dir),
        "saver" => super::killed::save_for_ever(&dir),
        _ => panic!("{VARIABLE}={what:?}"),
    }
}
