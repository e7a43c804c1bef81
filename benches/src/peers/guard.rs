//! The guard of a peer: a process of this program that starts the peer. The guard ends all processes that the peer
//! started, even if they are in other process groups and sessions, like MPI's ranks.
//!
//! ```text
//!   phub-peers --- stdin, a pipe ---> guard ---> the peer, leader of a group ---> its processes
//!        ^                              |                   |
//!        +---- the peer's stdout -------|-------------------+
//!                                       +--- kills them all when the peer ends or is late, or
//!                                            when the pipe closes because phub-peers ended
//! ```
//!
//! The guard has its own process group, so Ctrl-C ends only phub-peers, and the closed pipe notifies the
//! guard. Orphans become children of the guard. The guard has one thread, and must not depend on what a peer
//! is.

use std::ffi::OsString;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, WaitStatus};

/// The guard's exit status after the time limit.
const LATE: u8 = 124;
/// The most bytes of output, which is more than any result. If a peer prints more, its pipe is closed.
const MOST_OUTPUT_BYTES: u64 = 1 << 20;

/// A peer that runs under a guard. Dropping it kills all processes of the peer.
#[derive(Debug)]
pub struct Guarded {
    name: String,
    guard: Child,
    /// The pipe to the guard. The guard kills the peer when the pipe closes.
    stdin: Option<ChildStdin>,
}

/// The way in which a peer ended.
#[derive(Debug)]
pub enum Ending {
    /// The peer ended with status 0.
    Good,
    /// The peer ended with another status.
    Bad(ExitStatus),
    /// The guard ended the peer, because the time limit was over.
    Late,
}

impl Guarded {
    /// Starts a guard, which starts the peer.
    pub fn start(name: &str, program: &Path, args: &[String], limit_s: u64) -> Result<Self> {
        let this = std::env::current_exe().context("finding this program's own file")?;
        let mut guard = Command::new(this)
            .args(["--limit-s", &limit_s.to_string(), "--guard"])
            .arg(program)
            .args(args)
            .env("RUST_LOG", "warn")
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting the guard of {name}"))?;
        let stdin = guard.stdin.take();
        Ok(Guarded { name: name.to_owned(), guard, stdin })
    }

    /// Waits until all processes of the peer have ended. Returns how the peer ended, and its output.
    pub fn end(mut self) -> Result<(Ending, Vec<u8>)> {
        let mut printed = Vec::new();
        let stdout = self.guard.stdout.take().expect("stdout is a pipe");
        let read = stdout.take(MOST_OUTPUT_BYTES).read_to_end(&mut printed);
        read.with_context(|| format!("reading from {}", self.name))?;
        let status = self.guard.wait().with_context(|| format!("waiting for {}", self.name))?;
        let ending = match status.code() {
            Some(0) => Ending::Good,
            Some(code) if code == i32::from(LATE) => Ending::Late,
            _ => Ending::Bad(status),
        };
        Ok((ending, printed))
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        drop(self.stdin.take()); // closes the pipe, which ends the guard and its peer
        let _ = self.guard.wait();
    }
}

/// The reason why the guard stops waiting.
enum Stop {
    Ended,
    Late,
    ParentGone,
}

/// Runs as the guard of `command`.
pub fn run(command: &[OsString], limit: Duration) -> ExitCode {
    match watch(command, limit) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("phub-peers: guarding {}: {error:#}", command[0].display());
            ExitCode::FAILURE
        }
    }
}

fn watch(command: &[OsString], limit: Duration) -> Result<ExitCode> {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).context("adopting orphans")?;
    let peer = Command::new(&command[0])
        .args(&command[1..])
        .stdin(Stdio::null())
        .process_group(0)
        .spawn()
        .context("cannot start it")?;
    let stop = wait(&peer, limit);
    let status = kill_all(Pid::from_child(&peer));
    Ok(match (stop?, status) {
        (Stop::Ended, Some(status)) => ExitCode::from(shell_status(status)),
        (Stop::Late, _) => ExitCode::from(LATE),
        (Stop::Ended | Stop::ParentGone, _) => ExitCode::FAILURE,
    })
}

/// Returns the exit status with which a shell reports how a process ended.
fn shell_status(status: WaitStatus) -> u8 {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => code as u8, // the kernel keeps eight bits
        (None, Some(signal)) => 128 + signal as u8,
        (None, None) => 1,
    }
}

/// Waits for the first reason to stop.
fn wait(peer: &Child, limit: Duration) -> Result<Stop> {
    let began = Instant::now();
    let pidfd = rustix::process::pidfd_open(Pid::from_child(peer), PidfdFlags::empty())?;
    let stdin = std::io::stdin();
    loop {
        let Some(left) = limit.checked_sub(began.elapsed()) else { return Ok(Stop::Late) };
        let mut fds = [PollFd::new(&pidfd, PollFlags::IN), PollFd::new(&stdin, PollFlags::IN)];
        match poll(&mut fds, Some(&left.try_into()?)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno).context("waiting for the peer"),
        }
        if !fds[0].revents().is_empty() {
            return Ok(Stop::Ended);
        }
        if !fds[1].revents().is_empty() {
            return Ok(Stop::ParentGone); // the parent never writes, so the event means a closed pipe
        }
    }
}

/// Kills the peer's group, and then the peer's other processes. As orphans they have become children of this process,
/// whatever their group is. Returns how the peer ended. No other process can get the peer's id before the first wait in
/// this function.
fn kill_all(peer: Pid) -> Option<WaitStatus> {
    let _ = rustix::process::kill_process_group(peer, Signal::KILL);
    let mut status = None;
    loop {
        for pid in children() {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
        // A process becomes an orphan when its parent dies. The parent is in this list. The parent's death ends the
        // wait below, and the next list contains the orphan.
        match retry_on_intr(|| rustix::process::wait(WaitOptions::empty())) {
            Ok(Some((pid, ended))) if pid == peer => status = Some(ended),
            Ok(_) => {}
            Err(_) => return status, // no child is left
        }
    }
}

/// Returns the children of this process, which has one thread.
fn children() -> Vec<Pid> {
    let list = std::fs::read_to_string("/proc/thread-self/children").unwrap_or_default();
    list.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect()
}
