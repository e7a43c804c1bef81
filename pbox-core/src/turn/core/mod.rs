//! The turn of a core, one pass of its loop: it polls the port once, and does all work that follows from the arrivals.
//!
//! ```text
//!   poll -> (link, imm) -> shard of the link's job -> last one in? -> sum + step -> post to all -> flush
//! ```
//!
//! Owned by one pinned thread; generic over the transport. A turn takes no lock, performs no atomic read-modify-write,
//! allocates nothing and makes no system call, except those that wake a sleeping worker.

mod jobs;
mod links;

use fabric::{Arrival, CloseReason, LinkId, Port};

use super::mode::{Shard, of_mode};
use super::notice::{JobId, Notice, Tally};
use super::onlooker::{Nobody, Onlooker, Seen};
use super::replies::{AtWork, Done, Replies};
use super::violation::Violation;
use super::watch::Watch;
use crate::kernels::Kernels;
use crate::layout::{DEFAULT_CHUNK_BYTES, Immediate, Round};

pub use jobs::later_lines;

/// The limit on the arrivals of one turn, for a core with few links. With a higher limit, more arrivals share the cost
/// of a poll. With a lower limit, the core's other duties wait less.
const ARRIVALS_PER_TURN: usize = 64;
/// The limit on the arrivals of one turn, for each link of a core with many links. With many workers, a turn then still
/// completes some chunks, and their answers to a worker are sent together.
const ARRIVALS_PER_LINK: usize = 8;

/// The number of stepped bytes after which a turn flushes the answers: one chunk of the default size. So a
/// worker's next layer need not wait for the end of the turn. Small chunks share one flush: the memory fence of a
/// flush costs as much as summing a small chunk. A transport may prefer larger batches.
const FLUSH_BYTES: usize = DEFAULT_CHUNK_BYTES;

/// The other end of a link.
#[derive(Clone, Copy, Debug)]
struct Member {
    /// The index of the job's first shard in `shards`.
    shard: usize,
    /// The worker's rank. Links to hubs above have the numbers after the ranks.
    rank: u32,
}

/// A shard of a job, and the links of the job's workers.
struct JobShard {
    id: JobId,
    shard: Shard,
    replies: Replies,
    /// The round of the shard's first chunk at the last [`look`](Core::look), which is a check of the rounds.
    looked: Option<Round>,
    watch: Watch,
    /// The index of the next shard of the same job.
    next: Option<usize>,
}

/// A core: its port, and its shards of all jobs.
///
/// A job usually has one shard on a core. If it has several, an arrival's chunk is looked up in one shard
/// after another. Snapshots save the state of the first shard only.
pub struct Core<P: Port> {
    port: P,
    kernels: &'static Kernels,
    shards: Vec<Option<JobShard>>,
    members: Vec<Option<Member>>,
    /// Links of dropped workers. The next turn detaches them, so that the owner can send the notice first: a detached link
    /// ends the worker's connection. If another core saw that end first, it would report the loss without the cause.
    dropped: Vec<LinkId>,
    /// Whether there is work between turns: answers wait for credit of their link, or a shard has a task.
    has_duties: bool,
    /// The shards whose task ended in this turn: the index of each shard, and a flag. The flag is true if chunks of the
    /// shard [waited for other cores](Self::settle_ready). The list has room for all shards, so that no turn allocates.
    ended: Vec<(usize, bool)>,
    /// Bytes of the chunks whose answers are posted, and not flushed.
    unflushed: usize,
    arrivals: Vec<Arrival>,
    tally: Tally,
}

/// `at_work!(entry, port, onlooker, kernels, shard => work)`: does the same work for a shard of any mode.
macro_rules! at_work {
    ($entry:expr, $port:expr, $onlooker:expr, $kernels:expr, $shard:ident => $work:expr) => {{
        let JobShard { shard, replies, .. } = $entry;
        of_mode!(shard, shard => {
            let port = Seen { port: $port, onlooker: &mut *$onlooker };
            let mut $shard = AtWork { port, kernels: $kernels, shard, replies };
            $work
        })
    }};
}

use at_work;

impl<P: Port> Core<P> {
    /// Creates a core without jobs.
    pub fn new(port: P, kernels: &'static Kernels) -> Self {
        Core {
            port,
            kernels,
            shards: Vec::new(),
            members: Vec::new(),
            dropped: Vec::new(),
            has_duties: false,
            ended: Vec::new(),
            unflushed: 0,
            arrivals: vec![Arrival::default(); ARRIVALS_PER_TURN],
            tally: Tally::default(),
        }
    }

    /// Polls the port once, and does all work that follows. Returns true if there was work. The caller must
    /// send the notices before the next turn.
    #[inline(never)] // a test searches its machine code for locked instructions
    pub fn turn(&mut self, notices: &mut Vec<Notice>) -> bool {
        self.turn_seen(notices, &mut Nobody)
    }

    /// Runs the same [turn](Self::turn) with an onlooker.
    #[inline(always)]
    pub fn turn_seen(&mut self, notices: &mut Vec<Notice>, onlooker: &mut impl Onlooker) -> bool {
        while let Some(link) = self.dropped.pop() {
            self.port.detach(link);
        }
        let worked = self.has_duties && self.do_duties(notices, onlooker);
        let count = self.port.poll(&mut self.arrivals);
        if count > 0 {
            onlooker.polled();
        }
        for index in 0..count {
            let Arrival { link, imm } = self.arrivals[index];
            // The batch may still have arrivals of a link that was dropped earlier in this turn.
            let Some(Member { shard: mut place, rank }) = self.members[link.index()] else { continue };
            let immediate = Immediate::decode(imm);
            loop {
                let entry = self.shards[place].as_mut().expect("a member's job is there");
                let done = at_work!(entry, &mut self.port, onlooker, self.kernels, work => {
                    work.take_arrival(rank, immediate)
                });
                if !matches!(done, Err(Violation::NotOurs { .. })) {
                    onlooker.arrived(entry.id, rank, immediate);
                }
                match (done, entry.next) {
                    (Ok(None), _) => {}
                    (Ok(Some(done)), _) => {
                        onlooker.done(entry.id, immediate.chunk, done.round, done.steps);
                        self.follow(place, Some(done), notices);
                    }
                    (Err(Violation::NotOurs { .. }), Some(next)) => {
                        place = next;
                        continue;
                    }
                    (Err(violation), _) => self.drop_worker(place, rank, &violation, false, notices),
                }
                break;
            }
        }
        if count > 0 {
            self.flush();
        }
        self.tally.arrivals += count as u64;
        while let Some(closed) = self.port.closed() {
            match self.members.get(closed.link.index()).copied().flatten() {
                Some(Member { shard, rank }) => {
                    let by_itself = !matches!(closed.reason, CloseReason::Corrupt(_));
                    self.drop_worker(shard, rank, &closed.reason, by_itself, notices);
                }
                None if self.dropped.contains(&closed.link) => {}
                None => self.port.detach(closed.link),
            }
        }
        worked || count > 0 || !self.dropped.is_empty()
    }

    /// Returns the port, so that the caller can wait for arrivals.
    pub fn port(&mut self) -> &mut P {
        &mut self.port
    }

    /// Returns the counts of this core's work so far.
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// Counts the work of an arrival, flushes its answers early if there are enough, and drops workers that broke the
    /// protocol.
    #[inline]
    fn follow(&mut self, place: usize, done: Option<Done>, notices: &mut Vec<Notice>) {
        if let Some(Done { steps, bytes, has_task, .. }) = done {
            self.tally.chunks += u64::from(steps);
            self.tally.chunk_bytes += bytes as u64;
            self.has_duties |= has_task;
            self.unflushed += bytes;
            if self.unflushed >= FLUSH_BYTES {
                self.port.flush_early();
                self.unflushed = 0;
            }
        }
        let entry = self.shards[place].as_mut().expect("its answers were posted");
        self.has_duties |= entry.replies.has_waiting();
        if entry.replies.has_broken() {
            self.drop_broken(place, notices);
        }
    }

    /// Flushes the posted answers.
    #[inline]
    fn flush(&mut self) {
        self.port.flush();
        self.unflushed = 0;
    }

    /// Sends waiting answers that now have room, and does a chunk of each shard's task. Returns whether there was anything to
    /// do.
    #[cold]
    #[inline(never)]
    fn do_duties(&mut self, notices: &mut Vec<Notice>, onlooker: &mut impl Onlooker) -> bool {
        let (mut worked, mut ended) = (false, std::mem::take(&mut self.ended));
        self.has_duties = false;
        for (place, entry) in self.shards.iter_mut().enumerate() {
            let Some(entry) = entry else { continue };
            entry.report_events(notices);
            let JobShard { id, replies, .. } = entry;
            let posted = replies.post_waiting(Seen { port: &mut self.port, onlooker: &mut *onlooker });
            if posted > 0 {
                self.tally.held_back += posted as u64;
                onlooker.caught_up(*id);
                worked = true;
            }
            let (had_task, has_task, may_step) = at_work!(entry, &mut self.port, onlooker, self.kernels, work => {
                let (had_task, steps_when_ready) = (work.shard.has_task(), work.shard.steps_when_ready());
                let has_worked = had_task && work.shard.work();
                worked |= has_worked | (had_task && work.post_lines());
                (had_task, work.shard.has_task(), steps_when_ready.then_some(has_worked))
            });
            if may_step.unwrap_or(had_task && !has_task) {
                ended.push((place, may_step.is_some()));
            }
            self.has_duties |= entry.replies.has_waiting() || has_task;
        }
        self.port.flush();
        for (place, where_heard) in ended.drain(..) {
            match where_heard {
                true => self.settle_ready(place, notices, onlooker),
                false => self.settle(place, notices, onlooker), // chunks may have waited for the last task
            }
        }
        self.ended = ended;
        worked
    }
}

/// Returns the shard in `entry`, if the shard belongs to this job.
fn of_job(entry: &mut Option<JobShard>, id: JobId) -> Option<&mut JobShard> {
    entry.as_mut().filter(|entry| entry.id == id)
}

#[cfg(test)]
mod tests;
