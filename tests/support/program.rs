//! Programs as child processes: their output, their ends and their traces.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use pbox_core::Key;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

/// Runs a program that must fail. Returns its stderr.
#[track_caller]
pub fn failure(command: &mut Command) -> String {
    let Output { status, stdout, stderr } =
        command.stdin(Stdio::null()).output().expect("the program starts");
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(!status.success(), "{command:?} succeeded:\n{stdout}\n{stderr}");
    assert!(!stderr.contains("panicked"), "{command:?} panicked:\n{stderr}");
    stderr.into_owned()
}

/// Returns the command of a program that SIGINT ends, even if this test ignores SIGINT. A background job of a shell ignores
/// SIGINT, and its children inherit that.
pub fn interruptible(program: &str) -> Command {
    let mut command = Command::new("env");
    command.args(["--default-signal=INT", program]);
    command
}

/// A program that runs beside the test. Dropping it kills and reaps the process.
#[derive(Debug)]
pub struct Program {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Program {
    /// Starts the program. Its stderr is that of the test unless the command sets another.
    pub fn start(command: &mut Command) -> Self {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the program starts");
        let stdout = BufReader::new(child.stdout.take().expect("stdout is a pipe"));
        Program { child, stdout }
    }

    /// Reads the next line of the program's stdout, or returns `None` when stdout has ended.
    pub fn read_line(&mut self) -> Option<String> {
        let mut line = String::new();
        let bytes = self.stdout.read_line(&mut line).expect("reading a pipe");
        (bytes > 0).then(|| line.trim_end().to_owned())
    }

    /// Reads the next reply of a child that is the test program itself: the text after an `@`. The test
    /// harness prints other lines.
    pub fn read_reply(&mut self) -> String {
        loop {
            let line = self.read_line().expect("the process ended; stderr says why");
            if let Some((_, reply)) = line.split_once('@') {
                return reply.to_owned();
            }
        }
    }

    /// Returns the process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the standard input.
    pub fn stdin(&mut self) -> &mut std::process::ChildStdin {
        self.child.stdin.as_mut().expect("stdin is a pipe")
    }

    /// Sends a signal to the program.
    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal);
    }

    /// Ends the program's standard input, so that it stops normally. Waits until the program has ended.
    pub fn finish(&mut self) -> ExitStatus {
        drop(self.child.stdin.take());
        self.end()
    }

    /// Waits until the program has ended.
    pub fn end(&mut self) -> ExitStatus {
        self.child.wait().expect("our own child")
    }

    /// Stops the program with SIGSTOP. Returns when all its threads have stopped, because until then some may
    /// still run and answer.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
        let status = waitid(WaitId::Pid(Pid::from_child(&self.child)), WaitIdOptions::STOPPED);
        assert!(
            status.expect("our own child").is_some_and(|status| status.stopped()),
            "the child ended instead"
        );
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a signal to a process.
pub fn kill(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(pid as i32).expect("a process id is positive");
    kill_process(pid, signal).expect("the process is there");
}

/// Returns the letter of a process's state, or `None` when the process is gone.
pub fn state(pid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(')').next()?.trim_start().chars().next()
}

/// Whether a process has ended, reaped or not.
pub fn is_dead(pid: u32) -> bool {
    matches!(state(pid), None | Some('Z' | 'X'))
}

pub fn children(pid: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = tasks.map(|task| std::fs::read_to_string(task.path().join("children")).unwrap_or_default());
    lists
        .flat_map(|list| list.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<_>>())
        .collect()
}

/// Polls until a condition holds for which no call can wait.
///
/// # Panics
/// Panics after half a minute. The test's watchdog would end the test later, and could not say what the test
/// waited for.
#[track_caller]
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(30), "waited for 30 s until {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Writes a safetensors file of these keys, with all values zero, for `--manifest`.
pub fn write_manifest(path: &std::path::Path, keys: &[Key]) {
    let mut end = 0;
    let tensors: Vec<String> = keys
        .iter()
        .map(|key| {
            let begin = end;
            end += key.bytes().expect("a test's key");
            let (shape, dtype) = (&key.shape, key.dtype.name().to_uppercase());
            format!(
                r#""{}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{begin},{end}]}}"#,
                key.name
            )
        })
        .collect();
    let header = format!("{{{}}}", tensors.join(","));
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.resize(file.len() + end as usize, 0);
    std::fs::write(path, file).unwrap();
}
