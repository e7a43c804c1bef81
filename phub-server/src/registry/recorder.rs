//! The recorder of a hub: writes what the coordinator is asked and what it answers into a file, see [`coordinator::record`].
//!
//! ```text
//!   under the registry's lock: line --> a queue with a bound --> thread: file
//! ```
//!
//! A slow disk does not hold the lock up: when the queue is full, the record ends, and the hub goes on.

use std::convert::Infallible;
use std::fmt::Debug;
use std::fs::{File, OpenOptions, rename};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

use coordinator::{Input, Settings, record};

use crate::alarm::guarded;

/// The most bytes that wait for the disk. A line that is longer alone may wait alone.
const WAITING_BYTES: usize = 64 << 20;
/// How long the end of the hub waits for the disk.
const END_LIMIT: Duration = Duration::from_secs(5);

/// Writes down what the coordinator is asked. Its end writes the last line.
#[derive(Debug)]
pub(crate) struct Recorder {
    begun: Instant,
    waiting: Arc<Waiting>,
    /// `None` once the queue was full.
    lines: Option<Sender<String>>,
    /// Closed when the thread has ended.
    written: Receiver<Infallible>,
}

/// The lines that wait for the disk.
#[derive(Debug, Default)]
struct Waiting {
    bytes: AtomicUsize,
    was_full: AtomicBool,
}

impl Recorder {
    /// Begins the record of a hub with these settings in a new file that its owner alone may read. A file of the same name gets the
    /// name with `.before` behind it.
    ///
    /// # Errors
    /// When there is no file, or no thread.
    pub fn start(path: &Path, settings: Settings) -> io::Result<Self> {
        if path.is_file() {
            let mut before = path.as_os_str().to_owned();
            before.push(".before");
            rename(path, before)?;
        }
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        Self::write_to(file, path.to_owned(), settings)
    }

    fn write_to(file: File, path: PathBuf, settings: Settings) -> io::Result<Self> {
        let ((lines, queue), (ends, written), waiting) = (channel(), channel(), Arc::<Waiting>::default());
        let of_thread = Arc::clone(&waiting);
        let write = move || {
            let _ends: Sender<Infallible> = ends;
            if let Err(error) = write(queue, BufWriter::new(file), &of_thread) {
                tracing::warn!(?path, %error, "the record of the hub ends: it cannot be written");
            }
        };
        std::thread::Builder::new().name("phub-record".into()).spawn(guarded(write))?;
        let mut recorder = Recorder { begun: Instant::now(), waiting, lines: Some(lines), written };
        recorder.queue(record::head(env!("CARGO_PKG_VERSION"), settings));
        Ok(recorder)
    }

    /// Notes an input, which came at this time, and its answer.
    pub fn note(&mut self, input: &Input, now: Instant, answer: &dyn Debug) {
        if self.lines.is_some() {
            self.queue(record::step(now.saturating_duration_since(self.begun), input, answer));
        }
    }

    fn queue(&mut self, line: String) {
        let bytes = line.len();
        let before = self.waiting.bytes.fetch_add(bytes, Ordering::Relaxed);
        if before > 0 && before + bytes > WAITING_BYTES {
            self.waiting.was_full.store(true, Ordering::Relaxed);
            self.lines = None;
            tracing::warn!(waiting = before, "the record of the hub ends: the disk is slower than the hub");
            return;
        }
        // Nobody listens once the file could not be written, which the log says.
        let is_heard = self.lines.as_ref().is_some_and(|lines| lines.send(line).is_ok());
        self.lines.take_if(|_| !is_heard);
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.lines = None;
        let _ = self.written.recv_timeout(END_LIMIT);
    }
}

/// Writes lines until there are no more, and then why.
fn write(queue: Receiver<String>, mut out: impl Write, waiting: &Waiting) -> io::Result<()> {
    loop {
        let next = match queue.try_recv() {
            Err(TryRecvError::Empty) => {
                out.flush()?;
                queue.recv().ok()
            }
            next => next.ok(),
        };
        let Some(line) = next else { break };
        writeln!(out, "{line}")?;
        waiting.bytes.fetch_sub(line.len(), Ordering::Relaxed);
    }
    let why = match waiting.was_full.load(Ordering::Relaxed) {
        true => "more lines waited for the disk than may; later inputs are missing",
        false => "the hub stopped",
    };
    writeln!(out, "{}", record::end(why))?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::os::fd::OwnedFd;

    use coordinator::{LateLimits, Quotas};

    use super::*;

    fn to(file: impl Into<OwnedFd>) -> Recorder {
        let late = LateLimits { warning: END_LIMIT, limit: None };
        let settings = Settings { jobs_limit: 1, quotas: Quotas::default(), late };
        Recorder::write_to(File::from(file.into()), "a test".into(), settings).unwrap()
    }

    #[test]
    fn a_record_whose_disk_is_too_slow_ends_and_says_so() {
        let (disk, file) = io::pipe().unwrap();
        let mut recorder = to(file);
        let (line, most) = ("x".repeat(1 << 20), WAITING_BYTES >> 20);
        let queued = (0..2 * most).take_while(|_| {
            recorder.queue(line.clone());
            recorder.lines.is_some()
        });
        // The disk has taken none in: one line is on its way, and the others wait.
        let queued = queued.count();
        assert!((most - 1..=most).contains(&queued), "{queued} lines");
        recorder.note(&coordinator::input::Sweep.into(), Instant::now(), &());
        let seen = std::thread::spawn(|| BufReader::new(disk).lines().collect::<io::Result<Vec<_>>>());
        drop(recorder);
        let seen = seen.join().unwrap().unwrap();
        assert_eq!(seen.len(), 1 + queued + 1);
        assert!(seen.last().unwrap().contains("later inputs are missing"), "{:?}", seen.last());
    }

    #[test]
    fn a_record_that_cannot_be_written_ends_alone() {
        let mut recorder = to(OpenOptions::new().write(true).open("/dev/full").unwrap());
        assert!(recorder.written.recv_timeout(END_LIMIT).is_err());
        recorder.note(&coordinator::input::Sweep.into(), Instant::now(), &());
        assert!(recorder.lines.is_none());
    }
}
