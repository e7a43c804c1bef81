//! The file of a trace. The file is opened at the start, so that a path that cannot be written is an error at once. The
//! trace is written at the end.
//!
//! ```text
//!   {"displayTimeUnit":"ns","metadata":{"processes":[...]},"traceEvents":[
//!   {...},             one event per line
//!   {...}
//!   ]}
//! ```

use std::fs::File;
use std::io::{BufReader, BufWriter, Seek, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::lines::lines;
use crate::process::Process;
use crate::shift;

/// The last line of a file.
const END: &str = "]}";

/// The limit on the bytes of a file that is read. A hub of 128 cores writes about 1 GB.
const FILE_BYTES: u64 = 4 << 30;
/// The limit on the bytes of a line. A line has an event, or the tracks of all processes.
const LINE_BYTES: u64 = 16 << 20;

/// An error: a trace cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// A file cannot be read.
    #[error("trace {}: reading it failed: {error}; name an existing file that this user may read", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        error: std::io::Error,
    },
    /// The file cannot be written.
    #[error("trace {}: {doing} failed: {error}; name a file that can be written", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The action that was tried.
        doing: &'static str,
        /// The error of the operating system.
        error: std::io::Error,
    },
    /// The file is not a trace.
    #[error("trace {}: expected a trace that this version has written, read {read:?}", .path.display())]
    Other {
        /// The file.
        path: PathBuf,
        /// The beginning of the unexpected line.
        read: String,
    },
}

/// A file for a trace. Until the trace is written, it has a trace without events.
#[derive(Debug)]
pub struct TraceFile {
    path: PathBuf,
    file: File,
}

impl TraceFile {
    /// Creates the file, or empties it.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub fn create(path: impl Into<PathBuf>) -> Result<Self, TraceError> {
        let path = path.into();
        let failed = |error| TraceError::File { path: path.clone(), doing: "opening it for writing", error };
        // Opening a FIFO would wait for its reader. A trace needs a file with places, which a FIFO does not have.
        if path.metadata().is_ok_and(|found| found.file_type().is_fifo()) {
            return Err(failed(std::io::Error::other("expected a file, found a FIFO")));
        }
        let file = File::create(&path).map_err(failed)?;
        let mut trace = TraceFile { path, file };
        trace.write(&[])?;
        Ok(trace)
    }

    /// Replaces the file's contents by a trace of these processes.
    pub fn write(&mut self, processes: &[Process]) -> Result<(), TraceError> {
        let TraceFile { path, file } = self;
        let failed = |error| TraceError::File { path: path.clone(), doing: "writing it", error };
        let write = || {
            file.rewind()?;
            file.set_len(0)?;
            let mut to = BufWriter::new(&*file);
            to.write_all(text(processes).as_bytes())?;
            to.flush()
        };
        let mut write = write;
        write().map_err(failed)
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Returns the whole text of a trace.
fn text(processes: &[Process]) -> String {
    let about: Vec<&Value> = processes.iter().map(|process| &process.about).collect();
    let mut text = head(&about);
    processes.iter().for_each(|process| text.push_str(&process.lines));
    end(text)
}

impl Process {
    /// Returns a trace of this process only.
    pub fn text(&self) -> String {
        text(std::slice::from_ref(self))
    }
}

fn head(processes: &[&Value]) -> String {
    let about = json!({ "processes": processes });
    format!("{{\"displayTimeUnit\":\"ns\",\"metadata\":{about},\"traceEvents\":[\n")
}

/// Ends the list of events, without a comma after the last one.
fn end(mut text: String) -> String {
    if text.ends_with(",\n") {
        text.truncate(text.len() - 2);
        text.push('\n');
    }
    text + END + "\n"
}

/// Reads the processes of all these files. Their times are converted to the clock of the first file. If no file relates a
/// process's clock to that clock, the process's times stay unchanged, and its name is in the second list.
///
/// # Errors
/// Returns an error if one of the files is not a trace, or cannot be read.
pub fn merge(parts: &[PathBuf]) -> Result<(Vec<Process>, Vec<String>), TraceError> {
    let mut processes = Vec::new();
    for path in parts {
        processes.push(read(path)?);
    }
    let mut processes: Vec<Process> = processes.into_iter().flatten().collect();
    let apart = shift::to_one_clock(&mut processes);
    Ok((processes, apart))
}

/// Reads the processes of a file. All event lines go to the first process.
fn read(path: &Path) -> Result<Vec<Process>, TraceError> {
    let failed = |error| TraceError::Read { path: path.to_owned(), error };
    let other =
        |line: &str| TraceError::Other { path: path.to_owned(), read: line.chars().take(60).collect() };
    let file = BufReader::new(File::open(path).map_err(failed)?);
    let mut from = lines(file, FILE_BYTES, LINE_BYTES);
    let first = from.next().transpose().map_err(failed)?.unwrap_or_default();
    let whole: Value = serde_json::from_str(&format!("{first}{END}")).map_err(|_| other(&first))?;
    let about = whole["metadata"]["processes"].as_array().ok_or_else(|| other(&first))?;
    let mut lines = String::new();
    for line in from {
        let line = line.map_err(failed)?;
        if line != END {
            lines.push_str(line.trim_end_matches(','));
            lines.push_str(",\n");
        }
    }
    let process = |about: &Value| Process { id: 0, about: about.clone(), lines: String::new() };
    let mut processes: Vec<Process> = about.iter().map(process).collect();
    if let Some(first) = processes.first_mut() {
        first.lines = lines;
    }
    Ok(processes)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::{Clock, Event, Span};

    #[test]
    fn traces_of_several_processes_become_one() {
        let directory = tempfile::tempdir().unwrap();
        let clock = Clock::start();
        let now = clock.ns(Instant::now());
        let mut parts = Vec::new();
        for (order, name) in (0..).zip(["hub", "worker \"0\""]) {
            let mut process = Process::new(name, order, &clock, 7);
            process.track(1, "core 0");
            process.span(
                1,
                "push",
                Span { begin: now, end: now + 1500 },
                Event { key: Some("fc"), ..Event::default() },
            );
            process.instant(1, "arrival", now + 2000, Event { rank: Some(3), ..Event::default() });
            let path = directory.path().join(format!("{order}.json"));
            TraceFile::create(&path).unwrap().write(&[process]).unwrap();
            parts.push(path);
        }
        let mut all = TraceFile::create(directory.path().join("all.json")).unwrap();
        let empty: Value = serde_json::from_str(&std::fs::read_to_string(all.path()).unwrap()).unwrap();
        assert_eq!(empty["traceEvents"], json!([]));
        let (processes, apart) = merge(&parts).unwrap();
        assert_eq!(apart, Vec::<String>::new());
        all.write(&processes).unwrap();
        let whole: Value = serde_json::from_str(&std::fs::read_to_string(all.path()).unwrap()).unwrap();
        let processes = whole["metadata"]["processes"].as_array().unwrap();
        assert_eq!((processes.len(), &processes[1]["name"]), (2, &json!("worker \"0\"")));
        assert_ne!(processes[0]["pid"], processes[1]["pid"]);
        assert_eq!(processes[0]["clock"]["id"], processes[1]["clock"]["id"]);
        let events = whole["traceEvents"].as_array().unwrap();
        assert_eq!(events.len(), 2 * 6);
        let push = &events[10];
        assert_eq!((&push["name"], &push["ph"], &push["dur"]), (&json!("push fc"), &json!("X"), &json!(1.5)));
        assert_eq!(push["pid"], processes[1]["pid"]);
        assert_eq!(events[11]["args"], json!({ "rank": 3 }));
    }

    #[test]
    fn a_path_that_cannot_be_written_and_a_file_that_is_no_trace_are_errors() {
        let directory = tempfile::tempdir().unwrap();
        let error = TraceFile::create(directory.path()).unwrap_err().to_string();
        assert!(error.contains("opening it for writing failed") && error.contains("name a file"), "{error}");
        let fifo = directory.path().join("fifo");
        assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        let error = TraceFile::create(&fifo).unwrap_err().to_string();
        assert!(error.contains("found a FIFO") && error.contains("name a file"), "{error}");
        let other = directory.path().join("other.json");
        std::fs::write(&other, "[1, 2]\n").unwrap();
        let error = merge(&[other]).unwrap_err().to_string();
        assert!(error.contains("expected a trace") && error.contains("[1, 2]"), "{error}");
        let error = merge(&[directory.path().join("missing.json")]).unwrap_err().to_string();
        assert!(
            error.contains("missing.json: reading it failed") && error.contains("name an existing file"),
            "{error}"
        );
    }
}
