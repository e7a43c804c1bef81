//! The recorder of a hub. It writes the coordinator's inputs and answers into a file, see [`coordinator::record`].
//!
//! ```text
//!   under the registry's lock: line --> a queue with a bound --> thread: file
//! ```
//!
//! A slow disk does not block the threads that need the lock. When the queue is full, or the file has reached
//! its limit, the record ends, and the hub continues.

use std::convert::Infallible;
use std::fmt::Debug;
use std::fs::{File, OpenOptions, rename};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use coordinator::{Input, Settings, record};

use hub_threads::alarm::guarded;

/// The most bytes of lines that wait for the disk. One line may be longer if no other line waits.
const WAITING_BYTES: usize = 64 << 20;
/// The time that the end of the hub waits for the disk.
const END_LIMIT: Duration = Duration::from_secs(5);

/// The recorder of the coordinator's inputs. When it is dropped, the thread writes the last line.
#[derive(Debug)]
pub(crate) struct Recorder {
    begun: Instant,
    waiting: Arc<Waiting>,
    /// The queue of lines; `None` once the record has ended.
    lines: Option<Sender<String>>,
    /// The number of bytes that may still be written to the file.
    left: u64,
    /// The channel that closes when the thread has ended.
    written: Receiver<Infallible>,
}

/// The lines that wait for the disk.
#[derive(Debug, Default)]
struct Waiting {
    bytes: AtomicUsize,
    /// The reason why the record ended before the hub did.
    ended: OnceLock<String>,
}

impl Recorder {
    /// Begins the record of a hub with these settings, in a new file that only its owner may read. The file
    /// gets at most `bytes` bytes, and one more line at the end. An existing file of this name is renamed:
    /// `.before` is appended to its name.
    ///
    /// # Errors
    /// Returns an error if the file or the thread cannot be created.
    pub fn start(path: &Path, bytes: u64, settings: Settings) -> io::Result<Self> {
        if path.is_file() {
            let mut before = path.as_os_str().to_owned();
            before.push(".before");
            rename(path, before)?;
        }
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        Self::write_to(file, path.to_owned(), bytes, settings)
    }

    fn write_to(file: File, path: PathBuf, left: u64, settings: Settings) -> io::Result<Self> {
        let ((lines, queue), (ends, written), waiting) = (channel(), channel(), Arc::<Waiting>::default());
        let of_thread = Arc::clone(&waiting);
        let write = move || {
            let _ends: Sender<Infallible> = ends;
            if let Err(error) = write(queue, BufWriter::new(file), &of_thread) {
                tracing::warn!(?path, %error, "the record of the hub ends: writing it failed");
            }
        };
        std::thread::Builder::new().name("phub-record".into()).spawn(guarded(write))?;
        let mut recorder = Recorder { begun: Instant::now(), waiting, lines: Some(lines), left, written };
        recorder.queue(record::head(env!("CARGO_PKG_VERSION"), settings));
        Ok(recorder)
    }

    /// Writes down an input, the time at which the input arrived, and its answer.
    pub fn note(&mut self, input: &Input, now: Instant, answer: &dyn Debug) {
        if self.lines.is_some() {
            self.queue(record::step(now.saturating_duration_since(self.begun), input, answer));
        }
    }

    fn queue(&mut self, line: String) {
        let bytes = line.len();
        let Some(left) = self.left.checked_sub(bytes as u64 + 1) else {
            return self.end("the record has all the bytes that --record-mb allows");
        };
        self.left = left;
        let before = self.waiting.bytes.fetch_add(bytes, Ordering::Relaxed);
        if before > 0 && before + bytes > WAITING_BYTES {
            return self.end("the disk is too slow: too many lines wait to be written");
        }
        // If an earlier line could not be written, the thread has ended, and the log has the error.
        let is_heard = self.lines.as_ref().is_some_and(|lines| lines.send(line).is_ok());
        self.lines.take_if(|_| !is_heard);
    }

    /// Ends the record while the hub continues.
    fn end(&mut self, why: &str) {
        self.waiting.ended.get_or_init(|| format!("{why}; later inputs are missing"));
        self.lines = None;
        tracing::warn!(why, "the record of the hub ends");
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.lines = None;
        let _ = self.written.recv_timeout(END_LIMIT);
    }
}

/// Writes lines until the queue is closed, and then the reason for the end.
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
    let why = waiting.ended.get().map_or("the hub stopped", String::as_str);
    writeln!(out, "{}", record::end(why))?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read};
    use std::os::fd::OwnedFd;

    use coordinator::{LateLimits, Quotas};

    use super::*;

    fn to(file: impl Into<OwnedFd>, bytes: u64) -> Recorder {
        let late = LateLimits { warning: END_LIMIT, limit: None };
        let settings = Settings { jobs_limit: 1, quotas: Quotas::default(), late };
        Recorder::write_to(File::from(file.into()), "a test".into(), bytes, settings).unwrap()
    }

    #[test]
    fn a_record_whose_disk_is_too_slow_ends_and_says_so() {
        let (disk, file) = io::pipe().unwrap();
        let mut recorder = to(file, u64::MAX);
        let (line, most) = ("x".repeat(1 << 20), WAITING_BYTES >> 20);
        let queued = (0..2 * most).take_while(|_| {
            recorder.queue(line.clone());
            recorder.lines.is_some()
        });
        // The disk has taken no line. One line is being written, and the other lines wait.
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
    fn a_record_has_a_bound_and_says_that_it_ends_there() {
        let (mut disk, file) = io::pipe().unwrap();
        let mut recorder = to(file, 10_000);
        (0..200).for_each(|_| recorder.note(&coordinator::input::Sweep.into(), Instant::now(), &()));
        assert!(recorder.lines.is_none());
        drop(recorder);
        let mut seen = String::new();
        disk.read_to_string(&mut seen).unwrap();
        let (last, lines) =
            seen.lines().collect::<Vec<_>>().split_last().map(|(last, lines)| (*last, lines.len())).unwrap();
        assert!(last.contains("--record-mb") && last.contains("later inputs are missing"), "{last}");
        assert!(seen.len() - last.len() - 1 <= 10_000 && lines > 100, "{lines} lines, {} bytes", seen.len());
    }

    #[test]
    fn a_record_that_cannot_be_written_ends_alone() {
        let mut recorder = to(OpenOptions::new().write(true).open("/dev/full").unwrap(), u64::MAX);
        assert!(recorder.written.recv_timeout(END_LIMIT).is_err());
        recorder.note(&coordinator::input::Sweep.into(), Instant::now(), &());
        assert!(recorder.lines.is_none());
    }
}
