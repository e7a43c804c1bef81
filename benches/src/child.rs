//! Child processes of a run: they speak lines over pipes, and none outlives its parent.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail};

/// To be called first in a child: the kernel kills it when its parent ends, however that happens.
pub fn die_with_parent() {
    let signal = rustix::process::Signal::KILL;
    if let Err(errno) = rustix::process::set_parent_process_death_signal(Some(signal)) {
        eprintln!("warning: this process may outlive its parent: {errno}");
    }
}

/// A child that is another role of this very program. Killed when dropped.
#[derive(Debug)]
pub struct Role {
    name: String,
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Role {
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
        Ok(Role { name, child, stdin, stdout })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The next line that it says.
    pub fn hear(&mut self) -> Result<String> {
        let mut line = String::new();
        let bytes = self.stdout.read_line(&mut line).with_context(|| format!("hearing {}", self.name))?;
        if bytes == 0 {
            let status = self.child.wait()?;
            bail!("{} ended early ({status}); its own words are above", self.name);
        }
        Ok(line.trim_end().to_owned())
    }

    /// Says a line to it.
    pub fn tell(&mut self, line: &str) -> Result<()> {
        let stdin = self.stdin.as_mut().expect("stdin is open until finish");
        writeln!(stdin, "{line}").with_context(|| format!("telling {} to {line:?}", self.name))
    }

    /// Waits for a good end.
    pub fn finish(mut self) -> Result<()> {
        drop(self.stdin.take());
        let status = self.child.wait()?;
        if !status.success() {
            bail!("{} failed ({status}); its own words are above", self.name);
        }
        Ok(())
    }
}

impl Drop for Role {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// In a child: waits until the parent says `word`.
pub fn wait_for_word(word: &str) -> Result<()> {
    let heard = hear_word()?;
    if heard != word {
        bail!("expected {word:?} from the parent, heard {heard:?}");
    }
    Ok(())
}

/// Waits for a line from the parent; empty when it is gone.
pub fn hear_word() -> Result<String> {
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line)?;
    Ok(line.trim_end().to_owned())
}
