//! Child processes of a run. Parent and child exchange lines over pipes, and no child outlives its parent.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail};
use phub_server::{Hub, HubSettings};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The role of a process in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ChildRole {
    /// The hub.
    Hub,
    /// A worker.
    Worker,
}

/// Runs a hub on a free port, and prints its address. Stops the hub when the parent sends the line "stop".
pub fn run_hub(settings: HubSettings) -> Result<()> {
    die_with_parent();
    // The heartbeat limit is so long that a worker without processor time, on a loaded machine, is not lost. The end of
    // a dead worker's pipe is noticed sooner.
    let settings = HubSettings { listen: ([127, 0, 0, 1], 0).into(), heartbeat_limit_s: 30, ..settings };
    let hub = Hub::start(&settings)?;
    println!("{}", hub.address());
    wait_for_word("stop")?;
    hub.stop("the run is done");
    Ok(())
}

/// Makes the kernel kill this child when its parent ends. A child must call this first.
pub fn die_with_parent() {
    let signal = rustix::process::Signal::KILL;
    if let Err(errno) = rustix::process::set_parent_process_death_signal(Some(signal)) {
        eprintln!("warning: this process may outlive its parent: {errno}");
    }
}

/// A child process with another role of this program. Dropping it kills the process.
#[derive(Debug)]
pub struct ChildProcess {
    name: String,
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl ChildProcess {
    /// Starts this program again with `args`.
    pub fn start(name: impl Into<String>, args: &[String]) -> Result<Self> {
        let name = name.into();
        let program = std::env::current_exe().context("finding this program's own file")?;
        let mut child = Command::new(program)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting {name}"))?;
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().expect("stdout is a pipe"));
        Ok(ChildProcess { name, child, stdin, stdout })
    }

    /// Returns the process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Reads the next line of the child.
    pub fn read_line(&mut self) -> Result<String> {
        let mut line = String::new();
        let bytes =
            self.stdout.read_line(&mut line).with_context(|| format!("reading from {}", self.name))?;
        if bytes == 0 {
            let status = self.child.wait()?;
            bail!("{} ended early ({status}); its error is above", self.name);
        }
        Ok(line.trim_end().to_owned())
    }

    /// Reads the next line of the child, which the child wrote by [`say`].
    pub fn read_message<T: DeserializeOwned>(&mut self) -> Result<T> {
        let line = self.read_line()?;
        serde_json::from_str(&line).with_context(|| format!("{} said {line:?}", self.name))
    }

    /// Sends a line to the child.
    pub fn send(&mut self, line: &str) -> Result<()> {
        let stdin = self.stdin.as_mut().expect("stdin is open until finish");
        writeln!(stdin, "{line}").with_context(|| format!("sending {line:?} to {}", self.name))
    }

    /// Waits until the child ends. Returns an error if it failed.
    pub fn finish(mut self) -> Result<()> {
        drop(self.stdin.take());
        let status = self.child.wait()?;
        if !status.success() {
            bail!("{} failed ({status}); its error is above", self.name);
        }
        Ok(())
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a message to the parent. A child calls this.
pub fn say(word: &impl Serialize) -> Result<()> {
    println!("{}", serde_json::to_string(word)?);
    Ok(())
}

/// Waits for the line `word` from the parent. A child calls this.
pub fn wait_for_word(word: &str) -> Result<()> {
    let heard = read_word()?;
    if heard != word {
        bail!("expected {word:?} from the parent, read {heard:?}");
    }
    Ok(())
}

/// Waits for a line from the parent. Returns an empty line if the parent is gone.
pub fn read_word() -> Result<String> {
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line)?;
    Ok(line.trim_end().to_owned())
}
