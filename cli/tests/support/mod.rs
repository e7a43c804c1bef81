//! The common parts of the program's tests: starting the program, reading its errors, and a hub as a process.

use std::io::{BufRead, BufReader, Lines, Read};
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};

/// Returns the program with these arguments. The caller's environment has no effect on it.
pub fn phub_server(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_phub-server"));
    for (variable, _) in std::env::vars_os() {
        let name = variable.to_string_lossy();
        if ["PHUB_", "NCCL_", "RUST_LOG"].iter().any(|ours| name.starts_with(ours)) {
            command.env_remove(variable);
        }
    }
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Returns the program's output for arguments with which it must fail.
#[track_caller]
pub fn failure(arguments: &[&str]) -> String {
    let output = phub_server(arguments).output().expect("the program starts");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{arguments:?} succeeded:\n{stderr}");
    assert!(!stderr.contains("panicked"), "{arguments:?} panicked:\n{stderr}");
    stderr
}

/// Asserts that an error contains all of these texts.
#[track_caller]
pub fn says(error: impl std::fmt::Display, words: &[&str]) {
    let error = error.to_string();
    for word in words {
        assert!(error.contains(word), "expected {word:?} in the error:\n  {error}");
    }
}

/// A `phub-server serve` on a free port. Dropping it kills and reaps the process.
pub struct Serve {
    child: Child,
    stdout: BufReader<ChildStdout>,
    /// The address of its control port.
    pub address: String,
}

impl Serve {
    /// Starts the program, and reads its address.
    pub fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the program starts");
        let mut stdout = BufReader::new(child.stdout.take().expect("stdout is a pipe"));
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let address = line
            .trim_end()
            .strip_prefix("phub-server: control port ")
            .and_then(|it| it.split_once("://").map(|(_, at)| at));
        let address = address.unwrap_or_else(|| panic!("the hub said {line:?}")).to_owned();
        Serve { child, stdout, address }
    }

    /// Returns the process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the log, line by line, if stderr is a pipe.
    pub fn stderr(&mut self) -> Lines<BufReader<ChildStderr>> {
        BufReader::new(self.child.stderr.take().expect("stderr is a pipe")).lines()
    }

    /// Sends a signal to the program.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.pid() as i32).expect("a process id is positive");
        kill_process(pid, signal).expect("the process is there");
    }

    /// Waits until the program ends. Returns its status, and the rest of its output.
    pub fn end(&mut self) -> (ExitStatus, String) {
        let mut rest = String::new();
        self.stdout.read_to_string(&mut rest).unwrap();
        (self.child.wait().unwrap(), rest)
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
