//! The turn of a core: look at the port once, and do all that follows from what arrived.
//!
//! ```text
//!   poll -> (link, imm) -> shard of the link's job -> last one in? -> sum + step -> post to all -> flush
//! ```
//!
//! Owned by one pinned thread; generic over the transport. A turn takes no lock, performs no atomic read-modify-write,
//! allocates nothing and makes no system call, except what waking a sleeping worker needs.

use std::sync::Arc;

use fabric::{Arrival, LinkId, MapError, Port, RecvWindow, Slab, SpanError, Spans};

use super::mode::{Shard, of_mode};
use super::notice::{JobId, Notice, Tally};
use super::replies::{AtWork, Done, Replies};
use super::shard::Front;
use super::spec::ShardSpec;
use super::violation::Violation;
use crate::kernels::Kernels;
use crate::layout::{Immediate, Layout, Round};
use crate::snapshot::{Occasion, Restored};

/// How many arrivals one turn looks at: enough to spread the cost of a poll, and few enough for the other duties.
const ARRIVALS_PER_TURN: usize = 64;

/// The worker at the other end of a link.
#[derive(Clone, Copy, Debug)]
struct Member {
    /// Place of the job's first part in `parts`.
    part: usize,
    rank: u32,
}

/// A shard of a job, and the links of the job's workers.
struct Part {
    id: JobId,
    shard: Shard,
    replies: Replies,
    /// Place of the next part of the same job, which has other chunks.
    next: Option<usize>,
}

/// A core: its port, and its shards of all jobs.
///
/// A job usually has one shard on a core. It may have several, and then a chunk is looked for in one after another. The
/// first shard is the one whose state is saved in snapshots.
pub struct Core<P: Port> {
    port: P,
    kernels: &'static Kernels,
    parts: Vec<Option<Part>>,
    members: Vec<Option<Member>>,
    /// Links of dropped workers, to detach in the next turn: only then has the owner sent the notice on its way. A detached
    /// link ends the worker's connection, and another core that saw that end could be the first to report, without the cause.
    dropped: Vec<LinkId>,
    /// Something is to be done between turns: answers wait for links with credit, or a shard has a task.
    has_duties: bool,
    arrivals: [Arrival; ARRIVALS_PER_TURN],
    tally: Tally,
}

/// `at_work!(part, port, kernels, shard => work)`: the same work for a part whose shard is of any mode.
macro_rules! at_work {
    ($part:expr, $port:expr, $kernels:expr, $shard:ident => $work:expr) => {{
        let Part { shard, replies, .. } = $part;
        of_mode!(shard, shard => {
            let mut $shard = AtWork { port: $port, kernels: $kernels, shard, replies };
            $work
        })
    }};
}

impl<P: Port> Core<P> {
    /// A core without jobs.
    pub fn new(port: P, kernels: &'static Kernels) -> Self {
        Core {
            port,
            kernels,
            parts: Vec::new(),
            members: Vec::new(),
            dropped: Vec::new(),
            has_duties: false,
            arrivals: [Arrival::default(); ARRIVALS_PER_TURN],
            tally: Tally::default(),
        }
    }

    /// Makes a shard of a job, whose memory it allocates and touches: on the core's thread. A key's chunks are in one
    /// shard. All shards of a job are there before its workers come with [`add_worker`](Self::add_worker); these take
    /// part when they are admitted by [`release`](Self::release).
    ///
    /// # Errors
    /// When there is no memory.
    pub fn add_job(&mut self, id: JobId, spec: ShardSpec) -> Result<(), MapError> {
        let terms = Arc::clone(&spec.terms);
        let shard = Shard::new(spec, self.port.waker())?;
        let replies = Replies::new(&terms, of_mode!(&shard, shard => shard.keys()));
        // Behind the job's other parts.
        let from = self.parts.iter().rposition(|part| part.as_ref().is_some_and(|part| part.id == id));
        let free = (from.unwrap_or(0)..self.parts.len()).find(|&place| self.parts[place].is_none());
        let place = free.unwrap_or(self.parts.len());
        if let Some(last) = from.and_then(|last| self.parts[last].as_mut()) {
            last.next = Some(place);
        }
        self.parts.resize_with(self.parts.len().max(place + 1), || None);
        self.parts[place] = Some(Part { id, shard, replies, next: None });
        Ok(())
    }

    /// Attaches a worker's link to its job. In modes in which each worker has its own weights window, it comes with this
    /// core's spans of that window, for each shard of the job.
    pub fn add_worker(
        &mut self,
        id: JobId,
        rank: u32,
        gradients: Arc<RecvWindow>,
        own: impl IntoIterator<Item = Spans>,
        endpoint: P::Endpoint,
    ) -> Result<(), SpanError> {
        let of_job = |part: &Option<Part>| part.as_ref().is_some_and(|part| part.id == id);
        let Some(first) = self.parts.iter().position(of_job) else { return Ok(()) }; // the job ended meanwhile
        let mut own = own.into_iter();
        for part in self.parts_of(id) {
            of_mode!(&mut part.shard, shard => shard.add_worker(rank, Arc::clone(&gradients), own.next()))?;
        }
        // One link a rank: two would be one worker that pushes twice.
        if let Some(former) = self.unlink(id, rank) {
            self.port.detach(former);
        }
        let link = self.port.attach(endpoint);
        for part in self.parts[first..].iter_mut().flatten().filter(|part| part.id == id) {
            let (credit, chunks) =
                of_mode!(&part.shard, shard => (shard.terms.level.credit().at_first(), shard.keys().len()));
            part.replies.attach(rank, link);
            if credit.is_some() {
                // Answers beyond it wait here, in the order of the job's schedule.
                part.replies.make_room(rank, chunks);
                self.port.set_credit(link, credit);
            }
        }
        if self.members.len() <= link.index() {
            self.members.resize(link.index() + 1, None);
        }
        self.members[link.index()] = Some(Member { part: first, rank });
        Ok(())
    }

    /// Detaches a worker that left or was lost. Its job's rounds wait for it, or go on without it.
    pub fn remove_worker(&mut self, id: JobId, rank: u32, notices: &mut Vec<Notice>) {
        if let Some(link) = self.unlink(id, rank) {
            self.port.detach(link);
        }
        for place in 0..self.parts.len() {
            let Some(part) = self.parts[place].as_mut().filter(|part| part.id == id) else { continue };
            match of_mode!(&mut part.shard, shard => shard.goes_on().then(|| shard.remove_worker(rank))) {
                None => {}
                Some(Ok(())) => self.settle(place, notices),
                Some(Err(reason)) => return notices.push(Notice::JobFailed { job: id, reason }),
            }
        }
    }

    /// Holds a job's rounds until [`release`](Self::release), and says which are in flight; `None`
    /// when this core has no chunk of it.
    pub fn hold(&mut self, id: JobId) -> Option<Front> {
        let fronts = self.parts_of(id).filter_map(|part| {
            of_mode!(&mut part.shard, shard => {
                shard.hold();
                shard.front()
            })
        });
        fronts.reduce(|a, b| Front { lowest: a.lowest.min(b.lowest), highest: a.highest.max(b.highest) })
    }

    /// Lets a job's rounds go on, with `admitted` taking part from round `from` on: no chunk may be
    /// past it. They are sent the weights of the round before, now or when they are there.
    pub fn release(&mut self, id: JobId, from: Round, admitted: &[u32], notices: &mut Vec<Notice>) {
        for place in 0..self.parts.len() {
            let Core { parts, port, kernels, .. } = self;
            let Some(part) = parts[place].as_mut().filter(|part| part.id == id) else { continue };
            at_work!(part, port, kernels, work => {
                work.shard.release();
                for &rank in admitted {
                    if work.replies.link(rank).is_none() && work.shard.goes_on() {
                        continue; // lost meanwhile: nobody may wait for it
                    }
                    work.shard.admit(rank, from);
                    for at in work.shard.finished_before(from) {
                        // There is room for all: nothing was posted to it before. If it closed, the port says so.
                        work.shard.greet(at);
                        work.reply(at, rank, Round(from.0 - 1));
                    }
                }
            });
            self.port.flush();
            self.follow(place, None, notices);
            self.settle(place, notices);
        }
    }

    /// Has a job, in which nobody takes part yet, begin with a state.
    pub fn restore(&mut self, id: JobId, layout: &Layout, restored: &Restored) {
        for part in self.parts_of(id) {
            of_mode!(&mut part.shard, shard => shard.restore(layout, restored));
        }
    }

    /// Takes a snapshot of a job's state before a round that no chunk is past, while the job is
    /// [held](Self::hold).
    pub fn take_snapshot(&mut self, id: JobId, occasion: Occasion, before: Round, notices: &mut Vec<Notice>) {
        let Some(part) = self.parts_of(id).next() else { return };
        of_mode!(&mut part.shard, shard => shard.take_snapshot(occasion, before));
        part.report_snapshots(notices);
    }

    /// A snapshot's part is written, or will not be; its memory comes back, unless it is lost.
    pub fn give_back(&mut self, id: JobId, values: Option<Slab>) {
        if let Some(part) = self.parts_of(id).next() {
            of_mode!(&mut part.shard, shard => shard.give_back(values));
        }
    }

    /// Ends a job: its links are detached, its memory is freed.
    pub fn remove_job(&mut self, id: JobId) {
        for place in 0..self.parts.len() {
            let Some(part) = self.parts[place].take_if(|part| part.id == id) else { continue };
            for link in part.replies.links() {
                // Another part may have had the link, too.
                if self.members[link.index()].take().is_some() {
                    self.port.detach(link);
                }
            }
        }
    }

    /// Changes a job's learning rate from a round on.
    pub fn set_learning_rate(&mut self, id: JobId, from: Round, rate: f32) {
        for part in self.parts_of(id) {
            of_mode!(&mut part.shard, shard => shard.set_learning_rate(from, rate));
        }
    }

    /// One look at the port, and all that follows. True when there was work. The notices are to be
    /// sent on their way before the next turn.
    #[inline(never)] // its machine code is inspected by a test for locked instructions
    pub fn turn(&mut self, notices: &mut Vec<Notice>) -> bool {
        while let Some(link) = self.dropped.pop() {
            self.port.detach(link);
        }
        let worked = self.has_duties && self.do_duties(notices);
        let count = self.port.poll(&mut self.arrivals);
        for index in 0..count {
            let Arrival { link, imm } = self.arrivals[index];
            // A link dropped earlier in this turn may still have arrivals in the batch.
            let Some(Member { part: mut place, rank }) = self.members[link.index()] else { continue };
            let immediate = Immediate::decode(imm);
            loop {
                let part = self.parts[place].as_mut().expect("a member's job is there");
                let done =
                    at_work!(part, &mut self.port, self.kernels, work => work.take_arrival(rank, immediate));
                match (done, part.next) {
                    (Ok(None), _) => {}
                    (Ok(done), _) => self.follow(place, done, notices),
                    (Err(Violation::NotOurs { .. }), Some(next)) => {
                        place = next;
                        continue;
                    }
                    (Err(violation), _) => self.drop_worker(place, rank, violation.to_string(), notices),
                }
                break;
            }
        }
        self.tally.arrivals += count as u64;
        while let Some(closed) = self.port.closed() {
            match self.members.get(closed.link.index()).copied().flatten() {
                Some(Member { part, rank }) => {
                    self.drop_worker(part, rank, closed.reason.to_string(), notices)
                }
                None if self.dropped.contains(&closed.link) => {}
                None => self.port.detach(closed.link),
            }
        }
        worked || count > 0 || !self.dropped.is_empty()
    }

    /// Its port, to wait on.
    pub fn port(&mut self) -> &mut P {
        &mut self.port
    }

    /// What it has done so far.
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// What follows from answers that were posted, and from the steps before them.
    #[inline]
    fn follow(&mut self, place: usize, done: Option<Done>, notices: &mut Vec<Notice>) {
        let part = self.parts[place].as_mut().expect("its answers were posted");
        if let Some(Done { steps, bytes, has_task }) = done {
            self.tally.chunks += u64::from(steps);
            self.tally.chunk_bytes += u64::from(steps) * bytes as u64;
            self.has_duties |= has_task;
        }
        self.has_duties |= part.replies.has_waiting();
        if part.replies.has_broken() {
            self.drop_broken(place, notices);
        }
    }

    /// Finishes all chunks of a shard that can go on without an arrival.
    fn settle(&mut self, place: usize, notices: &mut Vec<Notice>) {
        let mut next = 0;
        while let Some(part) = &mut self.parts[place] {
            let job = part.id;
            let done = at_work!(part, &mut self.port, self.kernels, work => {
                let Some((finished, after)) = work.shard.settle(work.kernels, next) else { break };
                next = after;
                if finished.skipped > 0 {
                    let (chunk, now) = (work.shard.chunk(finished.place), finished.round.0 + 1);
                    notices.push(Notice::Skipped { job, chunk, rounds: now - finished.skipped..now });
                }
                work.send(&finished)
            });
            self.follow(place, Some(done), notices);
        }
        if let Some(part) = &mut self.parts[place] {
            part.report_snapshots(notices);
        }
    }

    /// Sends answers that wait and have room now, and goes on with the shards' tasks by a chunk each. Whether there was
    /// something to do.
    #[cold]
    #[inline(never)]
    fn do_duties(&mut self, notices: &mut Vec<Notice>) -> bool {
        let (mut worked, mut ended) = (false, Vec::new());
        self.has_duties = false;
        for (place, part) in self.parts.iter_mut().enumerate() {
            let Some(part) = part else { continue };
            part.report_snapshots(notices);
            let Part { shard, replies, .. } = part;
            worked |= replies.post_waiting(&mut self.port) > 0;
            let (had_task, has_task) = of_mode!(shard, shard => {
                let had_task = shard.has_task();
                worked |= had_task && shard.work();
                (had_task, shard.has_task())
            });
            if had_task && !has_task {
                ended.push(place);
            }
            self.has_duties |= replies.has_waiting() || has_task;
        }
        self.port.flush();
        ended.into_iter().for_each(|place| self.settle(place, notices)); // chunks may have waited for a task
        worked
    }

    /// A job's parts, the first first.
    fn parts_of(&mut self, id: JobId) -> impl Iterator<Item = &mut Part> {
        self.parts.iter_mut().flatten().filter(move |part| part.id == id)
    }

    /// Removes a worker from the links of all its job's parts.
    fn unlink(&mut self, id: JobId, rank: u32) -> Option<LinkId> {
        let link = self.parts_of(id).filter_map(|part| part.replies.detach(rank)).last()?;
        self.members[link.index()] = None;
        Some(link)
    }

    #[cold]
    fn drop_broken(&mut self, place: usize, notices: &mut Vec<Notice>) {
        let part = self.parts[place].as_mut().expect("its answers were posted");
        for (rank, violation) in part.replies.take_broken() {
            self.drop_worker(place, rank, violation.to_string(), notices);
        }
    }

    #[cold]
    fn drop_worker(&mut self, place: usize, rank: u32, reason: String, notices: &mut Vec<Notice>) {
        let job = self.parts[place].as_ref().expect("a member's job is there").id;
        if let Some(link) = self.unlink(job, rank) {
            self.dropped.push(link);
            notices.push(Notice::WorkerGone { job, rank, reason });
        }
    }
}

impl Part {
    /// What came of snapshots. Once a snapshot, not once a chunk.
    #[cold]
    fn report_snapshots(&mut self, notices: &mut Vec<Notice>) {
        let job = self.id;
        of_mode!(&mut self.shard, shard => {
            while let Some(taken) = shard.taken() {
                notices.push(Notice::Snapshot { job, taken });
            }
        });
    }
}
