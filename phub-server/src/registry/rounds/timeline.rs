//! The hub's timeline: the last events of all cores, with the names of jobs and keys.
//!
//! Cores answer between two turns. This code runs on a thread that may wait for them: the thread of a
//! request, or of a stop.

use std::collections::{HashMap, VecDeque};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use hub_threads::{Carried, Command, Event, LastEvents};
use pbox_core::control::RefusalCode;
use pbox_core::{ChunkId, Immediate, JobId, Layout, Round};
use timeline::{Clock, Process, Span};

use crate::registry::job::Job;
use crate::registry::{Because, Refusal, Registry, on_thread};

/// The time limit of the cores' answers. A core that hangs is left out.
const LIMIT: Duration = Duration::from_secs(2);
/// The number of jobs whose names are kept. Events of older jobs are left out.
const JOBS: usize = 64;

/// The data of the timeline in addition to the cores' events: names and times.
#[derive(Debug)]
pub(crate) struct Timeline {
    clock: Clock,
    /// The names of each job, the newest job last.
    jobs: Mutex<VecDeque<(JobId, Named)>>,
}

/// The names of a job and its keys.
#[derive(Clone, Debug)]
struct Named {
    job: String,
    layout: Arc<Layout>,
    workers: u32,
}

impl Timeline {
    pub fn new() -> Self {
        Timeline { clock: Clock::start(), jobs: Mutex::default() }
    }

    fn jobs(&self) -> MutexGuard<'_, VecDeque<(JobId, Named)>> {
        self.jobs.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Keeps the names of a job that begins.
    pub fn begins(&self, job: &Job, workers: u32) {
        let named = Named { job: job.name.clone(), layout: Arc::clone(job.wire.layout()), workers };
        let mut jobs = self.jobs();
        jobs.push_back((job.id, named));
        if jobs.len() > JOBS {
            jobs.pop_front();
        }
    }
}

impl Registry {
    /// Returns the trace of the jobs that the client may see, for a request.
    ///
    /// # Errors
    /// Returns an error if the hub has no timeline.
    pub async fn trace(
        self: &Arc<Self>,
        sees: impl Fn(&str) -> bool + Send + 'static,
    ) -> Result<String, Refusal> {
        let registry = Arc::clone(self);
        let name = format!("hub {}", self.up.control);
        let process = on_thread("phub-trace", move || {
            let process = registry.timeline(&name, sees).map(|process| process.text());
            drop(registry); // before the caller gets the answer: a hub that stops needs the last reference
            process
        });
        process.await?.ok_or_else(|| {
            RefusalCode::PageUnknown
                .because("this hub records no timeline; start the hub with --trace FILE, or set PHUB_TRACE")
        })
    }

    /// Returns the last events of all cores, for jobs that may be seen; `None` without a timeline. Waits for
    /// the cores.
    pub fn timeline(&self, name: &str, sees: impl Fn(&str) -> bool) -> Option<Process> {
        let timeline = self.timeline.as_ref()?;
        let (tell, told) = channel();
        self.cores.iter().for_each(|core| core.tell(Command::Events(Carried(tell.clone()))));
        drop(tell);
        let deadline = Instant::now() + LIMIT;
        let mut cores: Vec<LastEvents> = Vec::new();
        while let Ok(core) = told.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            cores.push(core);
        }
        cores.sort_by_key(|&(number, _)| number);
        let lost = cores.iter().map(|(_, (_, lost))| lost).sum();
        let mut process = Process::new(name, 0, &timeline.clock, lost);
        let seen = timeline.jobs().iter().filter(|(_, named)| sees(&named.job)).cloned().collect();
        let names: HashMap<JobId, Named> = seen;
        for (number, (events, _)) in cores {
            let track = number as u32 + 1;
            process.track(track, &format!("core {number}, cpu {}", self.cores[number].lane.cpu));
            let mut core = Track { process: &mut process, track, clock: &timeline.clock, names: &names };
            core.write(&events);
        }
        Some(process)
    }
}

/// The writer of one core's events.
struct Track<'a> {
    process: &'a mut Process,
    track: u32,
    clock: &'a Clock,
    names: &'a HashMap<JobId, Named>,
}

impl Track<'_> {
    fn write(&mut self, events: &[Event]) {
        // The event of an arrival has only the six low bits of the round. The full round is the nearest round with
        // these bits.
        let mut rounds: HashMap<JobId, Round> = HashMap::new();
        for event in events.iter().rev() {
            if let Event::Stepped { job, round, .. } = event {
                rounds.insert(*job, *round); // of each job, the oldest event stays
            }
        }
        for &event in events {
            match event {
                Event::Waited { begin, end } => {
                    let span = self.span(begin, end);
                    self.process.span(self.track, "wait", span, timeline::Event::default());
                }
                Event::Arrived { at, job, rank, immediate } => {
                    let Some(about) = about(self.names, job, Some(immediate.chunk)) else { continue };
                    let round = rounds.get(&job).map(|&near| nearest(near, immediate));
                    let (at, is_worker) = (self.clock.ns(at), rank < self.names[&job].workers);
                    let what = if is_worker { "arrival" } else { "arrival from above" };
                    let about =
                        timeline::Event { round: round.map(|round| round.0), rank: Some(rank), ..about };
                    self.process.instant(self.track, what, at, about);
                }
                Event::Stepped { begin, posted, end, job, chunk, round } => {
                    rounds.insert(job, round);
                    let Some(about) = about(self.names, job, Some(chunk)) else { continue };
                    let about = timeline::Event { round: Some(round.0), ..about };
                    let (step, answers) = (self.span(begin, posted), self.span(posted, end));
                    self.process.span(self.track, "sum+step", step, about);
                    self.process.span(self.track, "answers", answers, about);
                }
                Event::CaughtUp { begin, end, job } => {
                    let Some(about) = about(self.names, job, None) else { continue };
                    let span = self.span(begin, end);
                    self.process.span(self.track, "answers that waited", span, about);
                }
            }
        }
    }

    fn span(&self, begin: Instant, end: Instant) -> Span {
        Span { begin: self.clock.ns(begin), end: self.clock.ns(end) }
    }
}

/// Returns the names of a job's chunk, if they are known and may be seen. A group has the name of its first
/// key.
fn about(names: &HashMap<JobId, Named>, job: JobId, chunk: Option<ChunkId>) -> Option<timeline::Event<'_>> {
    let Named { job, layout, .. } = names.get(&job)?;
    let of = timeline::Event { chunk: chunk.map(|chunk| chunk.0), ..timeline::Event::default() };
    let first = chunk.map(|id| layout.group(id).map_or(id, |group| ChunkId(group.start)));
    let exists = first.filter(|chunk| chunk.index() < layout.chunks().len());
    let key = exists.map(|chunk| layout.keys()[layout.chunk(chunk).key.index()].name.as_str());
    Some(timeline::Event { job, key, ..of })
}

/// Returns the round with these low bits that is nearest to `to`.
fn nearest(to: Round, Immediate { round_bits, .. }: Immediate) -> Round {
    let ahead = (i32::from(round_bits) - i32::from(to.low_bits()) + 32).rem_euclid(64) - 32;
    Round(to.0.saturating_add_signed(ahead))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arrival_is_of_the_nearest_round() {
        let of = |to, round| nearest(Round(to), Immediate::new(ChunkId(0), Round(round)));
        for (to, round) in [(0, 0), (0, 1), (63, 64), (65, 63), (1000, 1031), (1000, 968)] {
            assert_eq!(of(to, round), Round(round), "near {to}");
        }
    }
}
