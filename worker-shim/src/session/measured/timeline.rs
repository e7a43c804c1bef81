//! The timeline of a session: its last pushes, answers and waits, for a trace.
//!
//! Shared by the session's thread and, in a background session, its callers. It exists only if a file
//! is set.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use membership::{Hub, HubClock};
use pbox_core::{KeyId, Layout, Round};
use timeline::{Ahead, Clock, Process, Ring, Span, TraceError, TraceFile};

/// The number of events that are kept. They take 2 MB, and cover the pushes, answers and waits of 60 rounds with 160
/// keys.
const EVENTS: usize = 1 << 15;
/// The time limit for asking a hub for its clock.
const CLOCK_LIMIT: Duration = Duration::from_secs(1);

/// The party that acts. Each party has its own track.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    /// The thread of the session.
    Session = 1,
    /// The callers of a background session.
    Callers = 2,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Pushed { who: Who, key: KeyId, round: Round, begin: Instant, end: Instant },
    Answered { key: KeyId, round: Round, at: Instant },
    Waited { who: Who, begin: Instant, end: Instant },
}

/// The timeline of a session. The file is written when the last owner drops the timeline.
#[derive(Clone, Debug)]
pub(crate) struct Timeline(Arc<Mutex<Notes>>);

#[derive(Debug)]
struct Notes {
    file: TraceFile,
    clock: Clock,
    name: String,
    job: String,
    rank: u32,
    layout: Arc<Layout>,
    ring: Ring<Event>,
    /// The keys that are in flight, with their rounds.
    open: Vec<(KeyId, Round)>,
    has_callers: bool,
    /// The differences to the clocks of hubs on other machines.
    clocks: Vec<Ahead>,
}

impl Timeline {
    /// Creates the timeline of this worker. `path` gives the name of its file.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub fn new(path: &Path, job: &str, rank: u32, layout: &Arc<Layout>) -> Result<Self, TraceError> {
        let now = Instant::now();
        let notes = Notes {
            file: TraceFile::create(of_rank(path, rank))?,
            clock: Clock::start(),
            name: format!("worker {rank} of job {job}"),
            job: job.to_owned(),
            rank,
            layout: Arc::clone(layout),
            ring: Ring::new(EVENTS, Event::Waited { who: Who::Session, begin: now, end: now }),
            open: Vec::with_capacity(layout.keys().len()),
            has_callers: false,
            clocks: Vec::new(),
        };
        Ok(Timeline(Arc::new(Mutex::new(notes))))
    }

    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Compares this machine's clock with the hubs' clocks. A new comparison replaces the former comparison, because
    /// the clocks of two machines drift apart.
    pub fn compare(&self, hubs: &[Hub]) {
        let own = Clock::id();
        for HubClock { reply, at, within } in hubs.iter().filter_map(|hub| hub.clock(CLOCK_LIMIT)) {
            let mut notes = self.notes();
            notes.clocks.retain(|clock| clock.id != reply.id);
            if reply.id != own {
                let ns = reply.ns as i64 - notes.clock.ns(at) as i64;
                notes.clocks.push(Ahead { id: reply.id, ns, within_ns: within.as_nanos() as u64 });
            }
        }
    }

    /// Notes that a key was pushed between these times.
    pub fn pushed(&self, who: Who, (key, round): (KeyId, Round), (begin, end): (Instant, Instant)) {
        let mut notes = self.notes();
        notes.ring.note(Event::Pushed { who, key, round, begin, end });
        if who == Who::Session {
            notes.open.push((key, round));
        }
        notes.has_callers |= who == Who::Callers;
    }

    /// Notes that something arrived, so that some keys may now have their answers.
    pub fn came(&self, is_ready: impl Fn(KeyId) -> bool) {
        let (at, mut notes) = (Instant::now(), self.notes());
        let Notes { ring, open, .. } = &mut *notes;
        open.retain(|&(key, round)| {
            let is_open = !is_ready(key);
            if !is_open {
                ring.note(Event::Answered { key, round, at });
            }
            is_open
        });
    }

    /// Notes that a caller waited between these times.
    pub fn waited(&self, who: Who, begin: Instant, end: Instant) {
        self.notes().ring.note(Event::Waited { who, begin, end });
    }
}

impl Drop for Notes {
    fn drop(&mut self) {
        let mut process = Process::new(&self.name, self.rank + 1, &self.clock, self.ring.lost());
        process.track(Who::Session as u32, if self.has_callers { "session's thread" } else { "session" });
        process.add_clocks(&self.clocks);
        if self.has_callers {
            process.track(Who::Callers as u32, "callers");
        }
        for event in self.ring.events() {
            let about = |key: KeyId, round: Round| timeline::Event {
                job: &self.job,
                key: Some(&self.layout.keys()[key.index()].name),
                round: Some(round.0),
                rank: Some(self.rank),
                chunk: None,
            };
            let span = |begin, end| Span { begin: self.clock.ns(begin), end: self.clock.ns(end) };
            match event {
                Event::Pushed { who, key, round, begin, end } => {
                    process.span(who as u32, "push", span(begin, end), about(key, round));
                }
                Event::Answered { key, round, at } => {
                    process.instant(Who::Session as u32, "answer", self.clock.ns(at), about(key, round));
                }
                Event::Waited { who, begin, end } => {
                    let of = timeline::Event { job: &self.job, rank: Some(self.rank), ..Default::default() };
                    process.span(who as u32, "wait", span(begin, end), of);
                }
            }
        }
        match self.file.write(&[process]) {
            Ok(()) => tracing::info!("the timeline of the last rounds is in {}", self.file.path().display()),
            Err(error) => tracing::error!("{error}"),
        }
    }
}

/// Returns the path for a rank: `run.json` becomes `run.rank3.json`. The rank is needed, because all workers of a
/// machine get the same `PHUB_TRACE`.
fn of_rank(path: &Path, rank: u32) -> PathBuf {
    match path.extension() {
        Some(extension) => path.with_extension(format!("rank{rank}.{}", extension.display())),
        None => path.with_extension(format!("rank{rank}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rank_has_its_file() {
        assert_eq!(of_rank(Path::new("a/run.json"), 3), Path::new("a/run.rank3.json"));
        assert_eq!(of_rank(Path::new("run"), 0), Path::new("run.rank0"));
    }
}
