//! The turn of a core: look at the port once, and do all that follows from what arrived.
//!
//! ```text
//!   poll -> (link, imm) -> shard of the link's job -> last one in? -> sum + step -> post to all -> flush
//! ```
//!
//! Owned by one pinned thread; generic over the transport. A turn takes no lock, performs no atomic
//! read-modify-write, allocates nothing and makes no system call, except what waking a sleeping worker
//! needs.

use std::sync::Arc;

use fabric::{Arrival, LinkId, MapError, Port, RecvWindow, Slab, SpanError, Spans};

use super::notice::{JobId, Notice, Tally};
use super::pace::Front;
use super::replies::{Done, Replies};
use super::shard::{Shard, of_mode};
use super::spec::ShardSpec;
use crate::kernels::Kernels;
use crate::layout::{Immediate, Layout, Round};
use crate::snapshot::{Occasion, Restored};

/// How many arrivals one turn looks at: enough to spread the cost of a poll, few enough that the
/// thread soon looks at its other duties.
const ARRIVALS_PER_TURN: usize = 64;

/// The worker at the other end of a link.
#[derive(Clone, Copy, Debug)]
struct Member {
    /// Place in `jobs`.
    job: usize,
    rank: u32,
}

struct Job {
    id: JobId,
    shard: Shard,
    replies: Replies,
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
    /// Something is to be done between turns: answers wait for links with credit, or a shard has a task.
    has_duties: bool,
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
            has_duties: false,
            arrivals: [Arrival::default(); ARRIVALS_PER_TURN],
            tally: Tally::default(),
        }
    }

    /// Makes a job's shard, whose memory it allocates and touches: on the core's thread. The job's workers come with
    /// [`add_worker`](Self::add_worker), and take part when they are admitted by [`release`](Self::release).
    ///
    /// # Errors
    /// When there is no memory.
    pub fn add_job(&mut self, id: JobId, spec: ShardSpec) -> Result<(), MapError> {
        let terms = Arc::clone(&spec.terms);
        let shard = Shard::new(spec, self.port.waker())?;
        let replies = Replies::new(&terms, of_mode!(&shard, shard => shard.keys()));
        let job = Some(Job { id, shard, replies });
        match self.jobs.iter_mut().find(|job| job.is_none()) {
            Some(free) => *free = job,
            None => self.jobs.push(job),
        }
        Ok(())
    }

    /// Attaches a worker's link to its job. In modes in which each worker has its own weights window, it comes with this
    /// core's spans of that window.
    pub fn add_worker(
        &mut self,
        id: JobId,
        rank: u32,
        gradients: Arc<RecvWindow>,
        own: Option<Spans>,
        endpoint: P::Endpoint,
    ) -> Result<(), SpanError> {
        let Some(place) = self.place(id) else { return Ok(()) }; // the job ended meanwhile
        let Job { shard, replies, .. } = self.jobs[place].as_mut().expect("found by place");
        of_mode!(shard, shard => shard.add_worker(rank, gradients, own))?;
        let link = self.port.attach(endpoint);
        if let Some(former) = replies.attach(rank, link) {
            // One link a rank: two would be one worker that pushes twice.
            self.members[former.index()] = None;
            self.port.detach(former);
        }
        if self.members.len() <= link.index() {
            self.members.resize(link.index() + 1, None);
        }
        self.members[link.index()] = Some(Member { job: place, rank });
        let (credit, chunks) =
            of_mode!(shard, shard => (shard.terms.level.credit().at_first(), shard.keys().len()));
        if let Some(bytes) = credit {
            // Answers beyond it wait here, in the order of the job's schedule.
            replies.make_room(rank, chunks);
            self.port.set_credit(link, Some(bytes));
        }
        Ok(())
    }

    /// Detaches a worker that left or was lost. Its job's rounds wait for it, or go on without it.
    pub fn remove_worker(&mut self, id: JobId, rank: u32, notices: &mut Vec<Notice>) {
        let Some(place) = self.place(id) else { return };
        let Job { shard, replies, .. } = self.jobs[place].as_mut().expect("found by place");
        if let Some(link) = replies.detach(rank) {
            self.members[link.index()] = None;
            self.port.detach(link);
        }
        let removed = of_mode!(shard, shard => shard.goes_on().then(|| shard.remove_worker(rank)));
        match removed {
            None => {}
            Some(Ok(())) => self.settle(place, notices),
            Some(Err(reason)) => notices.push(Notice::JobFailed { job: id, reason }),
        }
    }

    /// Holds a job's rounds until [`release`](Self::release), and says which are in flight; `None`
    /// when this core has no chunk of it.
    pub fn hold(&mut self, id: JobId) -> Option<Front> {
        of_mode!(self.shard(id)?, shard => {
            shard.hold();
            shard.front()
        })
    }

    /// Lets a job's rounds go on, with `admitted` taking part from round `from` on: no chunk may be
    /// past it. They are sent the weights of the round before, now or when they are there.
    pub fn release(&mut self, id: JobId, from: Round, admitted: &[u32], notices: &mut Vec<Notice>) {
        let Some(place) = self.place(id) else { return };
        let Core { jobs, port, kernels, .. } = self;
        let Job { shard, replies, .. } = jobs[place].as_mut().expect("found by place");
        of_mode!(shard, shard => {
            shard.release();
            for &rank in admitted {
                if replies.link(rank).is_none() && shard.goes_on() {
                    continue; // lost meanwhile: nobody may wait for it
                }
                shard.admit(rank, from);
                for at in shard.finished_before(from) {
                    // There is room for all: nothing was posted to it before. If it closed, the port says so.
                    shard.greet(at);
                    replies.reply(port, kernels, shard, at, rank, Round(from.0 - 1));
                }
            }
        });
        self.port.flush();
        self.follow(place, None, notices);
        self.settle(place, notices);
    }

    /// Has a job, in which nobody takes part yet, begin with a state.
    pub fn restore(&mut self, id: JobId, layout: &Layout, restored: &Restored) {
        if let Some(shard) = self.shard(id) {
            of_mode!(shard, shard => shard.restore(layout, restored));
        }
    }

    /// Takes a snapshot of a job's state before a round that no chunk is past, while the job is
    /// [held](Self::hold).
    pub fn take_snapshot(&mut self, id: JobId, occasion: Occasion, before: Round, notices: &mut Vec<Notice>) {
        let Some(place) = self.place(id) else { return };
        let job = self.jobs[place].as_mut().expect("found by place");
        of_mode!(&mut job.shard, shard => shard.take_snapshot(occasion, before));
        job.report_snapshots(notices);
    }

    /// A snapshot's part is written, or will not be; its memory comes back, unless it is lost.
    pub fn give_back(&mut self, id: JobId, values: Option<Slab>) {
        if let Some(shard) = self.shard(id) {
            of_mode!(shard, shard => shard.give_back(values));
        }
    }

    /// Ends a job: its links are detached, its memory is freed.
    pub fn remove_job(&mut self, id: JobId) {
        let Some(place) = self.place(id) else { return };
        let job = self.jobs[place].take().expect("found by place");
        for link in job.replies.links() {
            self.members[link.index()] = None;
            self.port.detach(link);
        }
    }

    /// Changes a job's learning rate from a round on.
    pub fn set_learning_rate(&mut self, id: JobId, from: Round, rate: f32) {
        if let Some(shard) = self.shard(id) {
            of_mode!(shard, shard => shard.set_learning_rate(from, rate));
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
            let Some(Member { job: place, rank }) = self.members[link.index()] else { continue };
            let Job { shard, replies, .. } = self.jobs[place].as_mut().expect("a member's job is there");
            let (port, kernels, immediate) = (&mut self.port, self.kernels, Immediate::decode(imm));
            let done = of_mode!(shard, shard => replies.take_arrival(port, kernels, shard, rank, immediate));
            match done {
                Ok(None) => {}
                Ok(done) => self.follow(place, done, notices),
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
        let job = self.jobs[place].as_mut().expect("its answers were posted");
        if let Some(Done { steps, bytes, has_task }) = done {
            self.tally.chunks += u64::from(steps);
            self.tally.chunk_bytes += u64::from(steps) * bytes as u64;
            self.has_duties |= has_task;
        }
        self.has_duties |= job.replies.has_waiting();
        if job.replies.has_broken() {
            self.drop_broken(place, notices);
        }
    }

    /// Finishes all chunks of a job that can go on without an arrival.
    fn settle(&mut self, place: usize, notices: &mut Vec<Notice>) {
        let mut next = 0;
        while let Some(Job { id, shard, replies }) = &mut self.jobs[place] {
            let (port, kernels) = (&mut self.port, self.kernels);
            let done = of_mode!(shard, shard => {
                let Some((finished, after)) = shard.settle(kernels, next) else { break };
                next = after;
                if finished.skipped > 0 {
                    let (chunk, now) = (shard.chunk(finished.place), finished.round.0 + 1);
                    notices.push(Notice::Skipped { job: *id, chunk, rounds: now - finished.skipped..now });
                }
                replies.send(port, kernels, shard, &finished)
            });
            self.follow(place, Some(done), notices);
        }
        if let Some(job) = &mut self.jobs[place] {
            job.report_snapshots(notices);
        }
    }

    /// Sends answers that wait and have room now, and goes on with the shards' tasks by a chunk each. Whether there was
    /// something to do.
    #[cold]
    #[inline(never)]
    fn do_duties(&mut self, notices: &mut Vec<Notice>) -> bool {
        let (mut worked, mut ended) = (false, Vec::new());
        self.has_duties = false;
        for (place, job) in self.jobs.iter_mut().enumerate() {
            let Some(job) = job else { continue };
            job.report_snapshots(notices);
            let Job { shard, replies, .. } = job;
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

    fn place(&self, id: JobId) -> Option<usize> {
        self.jobs.iter().position(|job| job.as_ref().is_some_and(|job| job.id == id))
    }

    fn shard(&mut self, id: JobId) -> Option<&mut Shard> {
        let jobs = self.jobs.iter_mut().flatten();
        jobs.map(|job| (job.id, &mut job.shard)).find(|(of, _)| *of == id).map(|(_, shard)| shard)
    }

    #[cold]
    fn drop_broken(&mut self, place: usize, notices: &mut Vec<Notice>) {
        let job = self.jobs[place].as_mut().expect("its answers were posted");
        for (rank, violation) in job.replies.take_broken() {
            self.drop_worker(place, rank, violation.to_string(), notices);
        }
    }

    #[cold]
    fn drop_worker(&mut self, place: usize, rank: u32, reason: String, notices: &mut Vec<Notice>) {
        let job = self.jobs[place].as_mut().expect("a member's job is there");
        if let Some(link) = job.replies.detach(rank) {
            self.members[link.index()] = None;
            self.dropped.push(link);
            notices.push(Notice::WorkerGone { job: job.id, rank, reason });
        }
    }
}

impl Job {
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
