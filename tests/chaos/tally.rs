//! The record of a run: a line for each event with its time, counts for each fault, and everything that is
//! wrong.

use std::fmt::Display;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use anyhow::Result;

/// The counts of one fault.
#[derive(Clone, Default)]
struct Row {
    times: u32,
    skipped: u32,
    finished: u32,
    ended: u32,
}

struct Book {
    file: File,
    rows: Vec<(&'static str, Row)>,
    wrongs: Vec<String>,
    errors: std::collections::BTreeMap<String, u32>,
    resumed: u32,
    returned: u32,
    /// The number of states that readers got. `compared` counts the states that were compared with a worker's
    /// weights.
    reads: u32,
    compared: u32,
}

/// The record of the run.
pub struct Tally {
    begun: Instant,
    book: Mutex<Book>,
    /// The last fault that could affect each job.
    last: Vec<AtomicUsize>,
}

impl Tally {
    /// Creates a record in `dir`, for `jobs` jobs and these faults.
    pub fn new(dir: &Path, jobs: usize, faults: &[&'static str]) -> Result<Self> {
        let file = File::create(dir.join("timeline.log"))?;
        let rows = std::iter::once(&"(none yet)").chain(faults).map(|name| (*name, Row::default())).collect();
        let (wrongs, errors) = (Vec::new(), Default::default());
        let last = (0..jobs).map(|_| AtomicUsize::new(0)).collect();
        Ok(Tally {
            begun: Instant::now(),
            book: Mutex::new(Book {
                file,
                rows,
                wrongs,
                errors,
                resumed: 0,
                returned: 0,
                reads: 0,
                compared: 0,
            }),
            last,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn say(&self, what: impl Display) {
        let line = format!("{:9.3} {what}", self.begun.elapsed().as_secs_f64());
        let _ = writeln!(self.lock().file, "{line}");
    }

    /// Writes a line to the log of the run, and prints it at once.
    pub fn tell(&self, what: impl Display) {
        println!("{:9.3} {what}", self.begun.elapsed().as_secs_f64());
        self.say(what);
    }

    /// Reports something that is wrong.
    pub fn wrong(&self, what: impl Display) {
        self.tell(format!("WRONG: {what}"));
        self.lock().wrongs.push(what.to_string());
    }

    /// Notes that a fault is made now, which can affect these jobs.
    pub fn fault(&self, fault: usize, jobs: &[usize], what: impl Display) {
        jobs.iter().for_each(|&job| self.last[job].store(fault + 1, Ordering::Relaxed));
        let mut book = self.lock();
        book.rows[fault + 1].1.times += 1;
        let name = book.rows[fault + 1].0;
        drop(book);
        self.say(format!("fault: {name}: {what}"));
    }

    /// Notes that this machine does not permit the fault.
    pub fn skipped(&self, fault: usize) {
        self.lock().rows[fault + 1].1.skipped += 1;
    }

    /// Notes that a life of a job (from a start to its end) is over. `error` is `None` if all its workers
    /// finished.
    pub fn life(&self, job: usize, name: &str, error: Option<&str>) {
        let fault = self.last[job].load(Ordering::Relaxed);
        let mut book = self.lock();
        let row = &mut book.rows[fault].1;
        match error {
            None => row.finished += 1,
            Some(error) => {
                row.ended += 1;
                let count = book.errors.entry(kind_of(error)).or_default();
                *count += 1;
            }
        }
        drop(book);
        self.say(format!("{name}: {}", error.unwrap_or("finished, all weights right")));
    }

    pub fn resumed(&self) {
        self.lock().resumed += 1;
    }

    /// Notes that a worker continued with a hub that was restarted.
    pub fn returned(&self) {
        self.lock().returned += 1;
    }

    /// Notes that a reader got a state.
    pub fn read(&self) {
        self.lock().reads += 1;
    }

    pub fn reads(&self) -> u32 {
        self.lock().reads
    }

    /// Notes that a state of a reader was compared with the weights of a worker.
    pub fn compared(&self) {
        self.lock().compared += 1;
    }

    /// Returns the number of lives in which all workers finished.
    pub fn finished(&self) -> u32 {
        self.lock().rows.iter().map(|(_, row)| row.finished).sum()
    }

    /// Returns everything that was wrong so far.
    pub fn wrongs(&self) -> Vec<String> {
        self.lock().wrongs.clone()
    }

    /// Prints the table of faults.
    pub fn print(&self) {
        let book = self.lock();
        println!(
            "\n{:28} {:>6} {:>14} {:>17}",
            "last fault before the end", "times", "lives finished", "ended with error"
        );
        for (name, Row { times, skipped, finished, ended }) in &book.rows {
            let skipped = if *skipped > 0 {
                format!("   skipped {skipped} times: not permitted here")
            } else {
                String::new()
            };
            println!("{name:28} {times:6} {finished:14} {ended:17}{skipped}");
        }
        let all = |of: fn(&Row) -> u32| book.rows.iter().map(|(_, row)| of(row)).sum::<u32>();
        println!("{:28} {:6} {:14} {:17}", "all", all(|r| r.times), all(|r| r.finished), all(|r| r.ended));
        println!(
            "{} lives went on from a checkpoint; workers went on {} times with a hub that came back\nreaders got {} states; {} \
             rounds of them are rounds of workers, with their weights\n\nerrors, with numbers left out:",
            book.resumed, book.returned, book.reads, book.compared
        );
        let mut errors: Vec<_> = book.errors.iter().collect();
        errors.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        errors.iter().for_each(|(error, count)| println!("{count:6} {error}"));
    }
}

/// Returns an error without its numbers, so that similar errors count as one.
fn kind_of(error: &str) -> String {
    let mut kind = String::new();
    for c in error.chars() {
        match c {
            '0'..='9' if kind.ends_with('#') => {}
            '0'..='9' => kind.push('#'),
            c => kind.push(c),
        }
    }
    kind.chars().take(200).collect()
}
