//! The turn of a core: look at the port once, and do all that follows from what arrived.
//!
//! ```text
//!   poll -> (link, imm) -> shard of the link's job -> last one in? -> sum + step -> post to all -> flush
//! ```
//!
//! Owned by one pinned thread; generic over the transport. A turn takes no lock, performs no atomic
//! read-modify-write, allocates nothing and makes no system call, but what waking a sleeping worker
//! needs.

use std::ops::Range;
use std::sync::Arc;

use fabric::{Arrival, LinkId, Port, RecvWindow, Slab, SpanError, Spans};

use super::pace::Front;
use super::replies::Answers;
use super::shard::{Arrived, Finished, Shard};
use crate::kernels::Kernels;
use crate::layout::{ChunkId, Immediate, Layout, Round};
use crate::snapshot::{Occasion, Restored, Taken};

/// A job of this hub; numbers are not used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub u64);

/// How many arrivals one turn looks at: enough to spread the cost of a poll, few enough that the
/// thread soon looks at its other duties.
const ARRIVALS_PER_TURN: usize = 64;

/// What a core has done since it started. Plain counters, published by the thread now and then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Slots that arrived.
    pub arrivals: u64,
    /// Chunks summed and stepped: once a round, or with SSP and ASP once a push.
    pub chunks: u64,
    /// Bytes of these chunks.
    pub chunk_bytes: u64,
}

/// Something that the core's owner must hear about.
#[derive(Debug)]
pub enum Notice {
    /// A worker's link ended; it is detached in the next turn.
    WorkerGone {
        /// Its job.
        job: JobId,
        /// Its rank.
        rank: u32,
        /// Why, in words.
        reason: String,
    },
    /// A snapshot's part is taken, or cannot be.
    Snapshot {
        /// Its job.
        job: JobId,
        /// What came of it.
        taken: Taken,
    },
    /// All who took part in some rounds of a chunk are gone, and the job goes on without these rounds of it.
    Skipped {
        /// Its job.
        job: JobId,
        /// The chunk.
        chunk: ChunkId,
        /// The rounds, by number.
        rounds: Range<u32>,
    },
    /// A job cannot go on.
    JobFailed {
        /// Which one.
        job: JobId,
        /// Why, in words.
        reason: String,
    },
}

/// Who is at the other end of a link.
#[derive(Clone, Copy, Debug)]
struct Member {
    /// Place in `jobs`.
    job: usize,
    rank: u32,
}

#[derive(Debug)]
struct Job {
    id: JobId,
    shard: Shard,
    answers: Answers,
}

/// A core: its port, and its shards of all jobs.
pub struct Core<P: Port> {
    port: P,
    kernels: &'static Kernels,
    jobs: Vec<Option<Job>>,
    members: Vec<Option<Member>>,
    /// Links of dropped workers, to detach in the next turn: only then has the owner sent the notice
    /// on its way. A detached link ends the worker's connection, and another core that saw that end
    /// could be the first to report, without the cause.
    dropped: Vec<LinkId>,
    /// Ranks that there was no room for an answer for: none, as long as all workers keep the rule.
    full: Vec<u32>,
    /// Answers wait for links with credit.
    waiting: bool,
    /// Cores of Slim-DP are being selected.
    selecting: bool,
    arrivals: [Arrival; ARRIVALS_PER_TURN],
    tally: Tally,
}

impl<P: Port> Core<P> {
    /// A core without jobs.
    pub fn new(port: P, kernels: &'static Kernels) -> Self {
        Core {
            port,
            kernels,
            jobs: Vec::new(),
            members: Vec::new(),
            dropped: Vec::new(),
            full: Vec::new(),
            waiting: false,
            selecting: false,
            arrivals: [Arrival::default(); ARRIVALS_PER_TURN],
            tally: Tally::default(),
        }
    }

    /// Takes over a job's shard. Its workers come with [`add_worker`](Self::add_worker), and take part
    /// when they are admitted by [`release`](Self::release).
    pub fn add_job(&mut self, id: JobId, shard: Shard) {
        let answers = Answers::new(&shard);
        shard.wake_for_selections(self.port.waker());
        let job = Some(Job { id, shard, answers });
        match self.jobs.iter_mut().find(|job| job.is_none()) {
            Some(free) => *free = job,
            None => self.jobs.push(job),
        }
    }

    /// Attaches a worker's link to its job. With SSP and ASP it comes with this core's spans of the weights
    /// window that is this worker's own.
    pub fn add_worker(
        &mut self,
        id: JobId,
        rank: u32,
        gradients: Arc<RecvWindow>,
        weights: Option<Spans>,
        endpoint: P::Endpoint,
    ) -> Result<(), SpanError> {
        let Some(place) = self.place(id) else { return Ok(()) }; // the job ended meanwhile
        let job = self.jobs[place].as_mut().expect("found by place");
        job.shard.add_worker(rank, gradients, weights)?;
        let link = self.port.attach(endpoint);
        if let Some(former) = job.answers.attach(rank, link) {
            // One link a rank: two would be one worker that pushes twice.
            self.members[former.index()] = None;
            self.port.detach(former);
        }
        if self.members.len() <= link.index() {
            self.members.resize(link.index() + 1, None);
        }
        self.members[link.index()] = Some(Member { job: place, rank });
        if let Some(bytes) = job.shard.terms().level.credit().at_first() {
            // Answers beyond it wait here, in the order of the job's schedule.
            job.answers.make_room(rank, job.shard.keys().len());
            self.port.set_credit(link, Some(bytes));
        }
        Ok(())
    }

    /// Detaches a worker that left or was lost. Its job's rounds wait for it, or go on without it.
    pub fn remove_worker(&mut self, id: JobId, rank: u32, notices: &mut Vec<Notice>) {
        let Some(place) = self.place(id) else { return };
        let job = self.jobs[place].as_mut().expect("found by place");
        if let Some(link) = job.answers.detach(rank) {
            self.members[link.index()] = None;
            self.port.detach(link);
        }
        if job.shard.goes_on() {
            match job.shard.remove_worker(rank) {
                Ok(()) => self.settle(place, notices),
                Err(reason) => notices.push(Notice::JobFailed { job: id, reason }),
            }
        }
    }

    /// Holds a job's rounds until [`release`](Self::release), and says which are in flight; `None`
    /// where this core has no chunk of it.
    pub fn hold(&mut self, id: JobId) -> Option<Front> {
        let place = self.place(id)?;
        let shard = &mut self.jobs[place].as_mut().expect("found by place").shard;
        shard.hold();
        shard.front()
    }

    /// Lets a job's rounds go on, with `admitted` taking part from round `from` on: no chunk may be
    /// past it. They are sent the weights of the round before, now or when they are there.
    pub fn release(&mut self, id: JobId, from: Round, admitted: &[u32], notices: &mut Vec<Notice>) {
        let Some(place) = self.place(id) else { return };
        let Core { jobs, port, full, .. } = self;
        let Job { shard, answers, .. } = jobs[place].as_mut().expect("found by place");
        shard.release();
        for &rank in admitted {
            if answers.link(rank).is_none() && shard.goes_on() {
                continue; // lost meanwhile: nobody may wait for it
            }
            shard.admit(rank, from);
            let finished: Vec<usize> = shard.finished_before(from).collect();
            for at in finished {
                shard.show_newcomers(at);
                // There is room for all: nothing was posted to it before. If it closed, the port says so.
                answers.ready(port, shard, at, rank, Round(from.0 - 1), full);
            }
        }
        self.sent(place, notices);
        self.settle(place, notices);
    }

    /// Has a job, in which nobody takes part yet, begin with a state.
    pub fn restore(&mut self, id: JobId, layout: &Layout, restored: &Restored) {
        if let Some(place) = self.place(id) {
            self.jobs[place].as_mut().expect("found by place").shard.restore(layout, restored);
        }
    }

    /// Takes a snapshot of a job's state before a round that no chunk is past, while the job is
    /// [held](Self::hold).
    pub fn take_snapshot(&mut self, id: JobId, occasion: Occasion, before: Round, notices: &mut Vec<Notice>) {
        let Some(place) = self.place(id) else { return };
        let job = self.jobs[place].as_mut().expect("found by place");
        job.shard.take_snapshot(occasion, before);
        job.tell_taken(notices);
    }

    /// A snapshot's part is written, or will not be; its memory comes back, unless it is lost.
    pub fn give_back(&mut self, id: JobId, values: Option<Slab>) {
        if let Some(place) = self.place(id) {
            self.jobs[place].as_mut().expect("found by place").shard.give_back(values);
        }
    }

    /// Finishes all chunks of a job that can go on without an arrival.
    fn settle(&mut self, place: usize, notices: &mut Vec<Notice>) {
        let mut next = 0;
        while let Some(job) = &mut self.jobs[place]
            && let Some((finished, after)) = job.shard.settle(self.kernels, next)
        {
            next = after;
            notices.extend(job.skipped(&finished));
            self.answer(place, finished, notices);
        }
        if let Some(job) = &mut self.jobs[place] {
            job.tell_taken(notices);
        }
    }

    /// Ends a job: its links are detached, its memory is freed.
    pub fn remove_job(&mut self, id: JobId) {
        let Some(place) = self.place(id) else { return };
        let job = self.jobs[place].take().expect("found by place");
        for link in job.answers.links() {
            self.members[link.index()] = None;
            self.port.detach(link);
        }
    }

    /// Changes a job's learning rate from a round on.
    pub fn set_learning_rate(&mut self, id: JobId, from: Round, rate: f32) {
        if let Some(place) = self.place(id) {
            self.jobs[place].as_mut().expect("found by place").shard.set_learning_rate(from, rate);
        }
    }

    /// One look at the port, and all that follows. True when there was work. The notices are to be
    /// sent on their way before the next turn.
    #[inline(never)] // its machine code is inspected by a test for locked instructions
    pub fn turn(&mut self, notices: &mut Vec<Notice>) -> bool {
        while let Some(link) = self.dropped.pop() {
            self.port.detach(link);
        }
        let pumped = self.waiting && self.pump();
        let selected = self.selecting && self.go_on_selecting(notices);
        let count = self.port.poll(&mut self.arrivals);
        for index in 0..count {
            let Arrival { link, imm } = self.arrivals[index];
            // A link dropped earlier in this turn may still have arrivals in the batch.
            let Some(Member { job: place, rank }) = self.members[link.index()] else { continue };
            let immediate = Immediate::decode(imm);
            let Job { shard, answers, .. } = self.jobs[place].as_mut().expect("a member's job is there");
            let done = match answers.pull(&mut self.port, shard, rank, immediate, &mut self.full) {
                Ok(false) => shard.arrive(self.kernels, rank, immediate),
                Ok(true) => {
                    self.sent(place, notices);
                    continue;
                }
                Err(violation) => Err(violation),
            };
            match done {
                Ok(Arrived::Noted) => {}
                Ok(Arrived::Finished(finished)) => self.answer(place, finished, notices),
                Ok(Arrived::Unread(round)) => {
                    answers.ask_again(
                        &mut self.port,
                        rank,
                        Immediate::control(immediate.chunk, round),
                        &mut self.full,
                    );
                    self.sent(place, notices);
                }
                Err(violation) => self.drop_worker(place, rank, violation.to_string(), notices),
            }
        }
        self.tally.arrivals += count as u64;
        while let Some(closed) = self.port.closed() {
            match self.members.get(closed.link.index()).copied().flatten() {
                Some(Member { job, rank }) => self.drop_worker(job, rank, closed.reason.to_string(), notices),
                None if self.dropped.contains(&closed.link) => {}
                None => self.port.detach(closed.link),
            }
        }
        pumped || selected || count > 0 || !self.dropped.is_empty()
    }

    /// Its port, to wait on.
    pub fn port(&mut self) -> &mut P {
        &mut self.port
    }

    /// What it has done so far.
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// Sends a finished chunk to the workers.
    #[inline]
    fn answer(&mut self, place: usize, finished: Finished, notices: &mut Vec<Notice>) {
        self.tally.chunks += u64::from(finished.steps);
        self.tally.chunk_bytes += u64::from(finished.steps) * finished.bytes as u64;
        let job = self.jobs[place].as_mut().expect("its chunk was finished");
        if job.shard.has_taken() {
            job.tell_taken(notices);
        }
        self.selecting |= job.shard.is_selecting();
        job.answers.send(&mut self.port, &mut job.shard, &finished, &mut self.full);
        // Once a chunk: the fence is small beside the chunk's sum, and the worker's next layer need not
        // wait for the rest of this turn.
        self.sent(place, notices);
    }

    /// Answers of a job were posted: has them go, and notes those that could not be.
    #[inline]
    fn sent(&mut self, place: usize, notices: &mut Vec<Notice>) {
        self.port.flush();
        let job = self.jobs[place].as_ref().expect("its answers were posted");
        self.waiting |= job.answers.has_waiting();
        if !self.full.is_empty() {
            self.drop_full(place, notices);
        }
    }

    /// Sends answers that wait, where there is room now; whether there were any.
    #[cold]
    fn pump(&mut self) -> bool {
        let mut sent = 0;
        self.waiting = false;
        for job in self.jobs.iter_mut().flatten() {
            sent += job.answers.pump(&mut self.port);
            self.waiting |= job.answers.has_waiting();
        }
        self.port.flush();
        sent > 0
    }

    /// Goes on with selections of Slim-DP's cores, a chunk for each job; whether it did.
    #[cold]
    #[inline(never)]
    fn go_on_selecting(&mut self, notices: &mut Vec<Notice>) -> bool {
        let mut worked = false;
        for place in 0..self.jobs.len() {
            let Some(shard) = self.jobs[place].as_mut().map(|job| &mut job.shard) else { continue };
            if !shard.is_selecting() {
                continue;
            }
            worked |= shard.select();
            if !shard.is_selecting() {
                self.settle(place, notices); // chunks may have waited for it
            }
        }
        self.selecting = self.jobs.iter().flatten().any(|job| job.shard.is_selecting());
        worked
    }

    fn place(&self, id: JobId) -> Option<usize> {
        self.jobs.iter().position(|job| job.as_ref().is_some_and(|job| job.id == id))
    }

    #[cold]
    fn drop_full(&mut self, place: usize, notices: &mut Vec<Notice>) {
        for rank in std::mem::take(&mut self.full) {
            let reason = "its ring of answers is full: it pushed without reading them".to_string();
            self.drop_worker(place, rank, reason, notices);
        }
    }

    #[cold]
    fn drop_worker(&mut self, place: usize, rank: u32, reason: String, notices: &mut Vec<Notice>) {
        let job = self.jobs[place].as_mut().expect("a member's job is there");
        if let Some(link) = job.answers.detach(rank) {
            self.members[link.index()] = None;
            self.dropped.push(link);
            notices.push(Notice::WorkerGone { job: job.id, rank, reason });
        }
    }
}

impl Job {
    /// What is to be said of a chunk that went on without some rounds.
    fn skipped(&self, finished: &Finished) -> Option<Notice> {
        let &Finished { place, skipped, .. } = finished;
        let (chunk, now) = (self.shard.chunk(place).0, self.shard.round(place).0);
        let rounds = now.checked_sub(skipped).filter(|_| skipped > 0)?..now;
        Some(Notice::Skipped { job: self.id, chunk, rounds })
    }

    /// What came of snapshots. Once a snapshot, not once a chunk.
    #[cold]
    fn tell_taken(&mut self, notices: &mut Vec<Notice>) {
        while let Some(taken) = self.shard.taken() {
            notices.push(Notice::Snapshot { job: self.id, taken });
        }
    }
}
