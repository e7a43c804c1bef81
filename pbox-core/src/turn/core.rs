//! The turn of a core: look at the port once, and do all that follows from what arrived.
//!
//! ```text
//!   poll -> (link, imm) -> shard of the link's job -> last one in? -> sum + step -> post to all -> flush
//! ```
//!
//! Owned by one pinned thread; generic over the transport. A turn takes no lock, performs no atomic read-modify-write,
//! allocates nothing and makes no system call, except what waking a sleeping worker needs.

use std::fmt::Display;
use std::sync::Arc;

use fabric::{Arrival, CloseReason, LinkId, MapError, Port, RecvWindow, Slab, SpanError, Spans};

use super::look::Look;
use super::made::MadeShard;
use super::mode::{Shard, of_mode};
use super::notice::{AnswersAbove, JobId, Notice, Tally};
use super::onlooker::{Nobody, Onlooker, Seen};
use super::replies::{AtWork, Done, Replies};
use super::shard::{Front, Pace};
use super::spec::ShardSpec;
use super::violation::Violation;
use super::watch::{Watch, Watched};
use crate::job::LevelTerms;
use crate::kernels::Kernels;
use crate::layout::{DEFAULT_CHUNK_BYTES, Immediate, Layout, Round};
use crate::snapshot::{Occasion, Restored, SnapshotPart};
use crate::weights::{Discarded, Gauged};

/// How many arrivals one turn looks at: enough to spread the cost of a poll, and few enough for the other duties.
const ARRIVALS_PER_TURN: usize = 64;

/// After the steps of so many bytes the answers leave, before the rest of the turn, unless the transport would rather send more
/// at a time: a chunk of the default size. A worker's next layer need not wait for the turn, and small chunks share the fence
/// of a flush, which costs as much as their sum.
const FLUSH_BYTES: usize = DEFAULT_CHUNK_BYTES;

/// The other end of a link.
#[derive(Clone, Copy, Debug)]
struct Member {
    /// Place of the job's first shard in `shards`.
    shard: usize,
    /// The worker's; behind the workers' ranks come the numbers of links that lead up.
    rank: u32,
}

/// A shard of a job, and the links of the job's workers.
struct JobShard {
    id: JobId,
    shard: Shard,
    replies: Replies,
    /// The round of its first chunk at the last [`look`](Core::look).
    looked: Option<Round>,
    watch: Watch,
    /// Place of the next shard of the same job, which has other chunks.
    next: Option<usize>,
}

/// A core: its port, and its shards of all jobs.
///
/// A job usually has one shard on a core. It may have several, and then a chunk is looked for in one after another. The
/// first shard is the one whose state is saved in snapshots.
pub struct Core<P: Port> {
    port: P,
    kernels: &'static Kernels,
    shards: Vec<Option<JobShard>>,
    members: Vec<Option<Member>>,
    /// Links of dropped workers, to detach in the next turn: only then has the owner sent the notice on its way. A detached
    /// link ends the worker's connection, and another core that saw that end could be the first to report, without the cause.
    dropped: Vec<LinkId>,
    /// Something is to be done between turns: answers wait for links with credit, or a shard has a task.
    has_duties: bool,
    /// Bytes of chunks whose answers are posted, and not flushed.
    unflushed: usize,
    arrivals: [Arrival; ARRIVALS_PER_TURN],
    tally: Tally,
}

/// `at_work!(entry, port, onlooker, kernels, shard => work)`: the same work for a shard of any mode.
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

impl<P: Port> Core<P> {
    /// A core without jobs.
    pub fn new(port: P, kernels: &'static Kernels) -> Self {
        Core {
            port,
            kernels,
            shards: Vec::new(),
            members: Vec::new(),
            dropped: Vec::new(),
            has_duties: false,
            unflushed: 0,
            arrivals: [Arrival::default(); ARRIVALS_PER_TURN],
            tally: Tally::default(),
        }
    }

    /// Makes a shard of a job here, and [takes](Self::add_shard) it.
    ///
    /// # Errors
    /// When there is no memory.
    pub fn add_job(&mut self, id: JobId, spec: ShardSpec) -> Result<(), MapError> {
        let made = MadeShard::new(spec, self.port.waker())?;
        self.add_shard(id, made);
        Ok(())
    }

    /// Takes a shard of a job. A key's chunks are in one shard, and so are a group's. Workers come
    /// [later](Self::add_worker), and take part when [`release`](Self::release) admits them.
    pub fn add_shard(&mut self, id: JobId, MadeShard { shard, replies }: MadeShard) {
        // Behind the job's other shards.
        let from = self.shards.iter_mut().rposition(|entry| of_job(entry, id).is_some());
        let free = (from.unwrap_or(0)..self.shards.len()).find(|&place| self.shards[place].is_none());
        let place = free.unwrap_or(self.shards.len());
        if let Some(last) = from.and_then(|last| self.shards[last].as_mut()) {
            last.next = Some(place);
        }
        self.shards.resize_with(self.shards.len().max(place + 1), || None);
        let watch = Watch::new(of_mode!(&shard, shard => shard.terms.workers));
        self.shards[place] = Some(JobShard { id, shard, replies, looked: None, watch, next: None });
    }

    /// Attaches a worker's link to its job. In modes in which each worker has its own weights window, it comes with this
    /// core's spans of that window, for each shard of the job. The windows' pages are there. Returns the windows that it had
    /// before it lost its links.
    pub fn add_worker(
        &mut self,
        id: JobId,
        rank: u32,
        gradients: Arc<RecvWindow>,
        own: impl IntoIterator<Item = Spans>,
        endpoint: P::Endpoint,
    ) -> Result<Discarded, SpanError> {
        let mut discarded = Discarded::default();
        let first = self.shards.iter_mut().position(|entry| of_job(entry, id).is_some());
        let Some(first) = first else { return Ok(discarded) }; // the job ended meanwhile
        let mut own = own.into_iter();
        for entry in self.shards_of(id) {
            of_mode!(&mut entry.shard, shard => {
                shard.add_worker(rank, Arc::clone(&gradients), own.next(), &mut discarded)
            })?;
        }
        // One link a rank: two would be one worker that pushes twice.
        if let Some(former) = self.unlink(id, rank) {
            self.port.detach(former);
        }
        let terms = of_mode!(&self.shards[first].as_ref().expect("found above").shard, shard => &shard.terms);
        let credit = terms.level.credit().at_first();
        self.attach(id, Member { shard: first, rank }, endpoint, credit);
        Ok(discarded)
    }

    /// Attaches the links of a job's shard that lead up to hubs above, in the order of their numbers, each with the window
    /// that the hub writes, unless that is the window that workers read. `level` is that of these links. Call it before
    /// [`begin_below`](Self::begin_below), and after [`unlink_above`](Self::unlink_above): then the sums without an answer go up
    /// again.
    ///
    /// # Errors
    /// When a window lacks chunks of the shard.
    pub fn add_above(
        &mut self,
        id: JobId,
        level: &LevelTerms,
        ways: impl IntoIterator<Item = (P::Endpoint, Option<Arc<RecvWindow>>)>,
        notices: &mut Vec<Notice>,
    ) -> Result<(), SpanError> {
        let Some(first) = self.shards.iter_mut().position(|entry| of_job(entry, id).is_some()) else {
            return Ok(());
        };
        let entry = self.shards[first].as_ref().expect("just found");
        let workers = of_mode!(&entry.shard, shard => shard.terms.workers);
        for (rank, (endpoint, window)) in (workers..).zip(ways) {
            if let Some(window) = window {
                let entry = self.shards[first].as_mut().expect("just found");
                of_mode!(&mut entry.shard, shard => shard.add_above(rank, window))?;
            }
            self.attach(id, Member { shard: first, rank }, endpoint, level.credit().at_first());
        }
        for place in 0..self.shards.len() {
            let Core { shards, port, kernels, .. } = self;
            let Some(entry) = of_job(&mut shards[place], id) else { continue };
            at_work!(entry, port, &mut Nobody, kernels, work => work.ask_again());
            self.follow(place, None, notices);
        }
        self.flush();
        Ok(())
    }

    /// Lets go of a job's links that lead up, which are lost: it gets [others](Self::add_above). Its rounds wait for them. Returns
    /// the windows that the hubs above wrote, unless workers read them, and what had come by the links.
    pub fn unlink_above(&mut self, id: JobId) -> (Discarded, AnswersAbove) {
        let (mut discarded, mut answers) = (Discarded::default(), AnswersAbove::default());
        let first = self.shards_of(id).next();
        for number in first.map_or(0..0, |entry| entry.replies.numbers_above()) {
            if let Some(link) = self.unlink(id, number) {
                self.port.detach(link);
            }
            for JobShard { shard, .. } in self.shards_of(id) {
                of_mode!(shard, shard => shard.stages.unlink(number, &mut discarded));
            }
        }
        for JobShard { shard, .. } in self.shards_of(id) {
            of_mode!(shard, shard => answers.add(&shard.pace, shard.keys().len()));
        }
        (discarded, answers)
    }

    /// Has a job below other hubs, in which nobody takes part yet, begin with the round from which this hub takes part
    /// there.
    pub fn begin_below(&mut self, id: JobId, first: Round) {
        for entry in self.shards_of(id) {
            of_mode!(&mut entry.shard, shard => shard.begin_at(first));
        }
    }

    /// Attaches a link of a job that has none of this number.
    fn attach(&mut self, id: JobId, member: Member, endpoint: P::Endpoint, credit: Option<usize>) {
        let link = self.port.attach(endpoint);
        for entry in self.shards.iter_mut().filter_map(|entry| of_job(entry, id)) {
            entry.replies.attach(member.rank, link);
            if credit.is_some() {
                // Chunks beyond it wait here, in the order of the level's schedule.
                let chunks = of_mode!(&entry.shard, shard => shard.keys().len());
                entry.replies.make_room(member.rank, chunks);
                self.port.set_credit(link, credit);
            }
        }
        if self.members.len() <= link.index() {
            self.members.resize(link.index() + 1, None);
        }
        self.members[link.index()] = Some(member);
    }

    /// Detaches a worker that left or was lost. Its job's rounds wait for it, or go on without it. Returns the worker's
    /// windows.
    pub fn remove_worker(&mut self, id: JobId, rank: u32, notices: &mut Vec<Notice>) -> Discarded {
        let mut discarded = Discarded::default();
        if let Some(link) = self.unlink(id, rank) {
            self.port.detach(link);
        }
        for place in 0..self.shards.len() {
            let Some(entry) = of_job(&mut self.shards[place], id) else { continue };
            entry.replies.forget(rank);
            let removed = of_mode!(&mut entry.shard, shard => {
                shard.goes_on().then(|| shard.remove_worker(rank, &mut discarded))
            });
            match removed {
                None => {}
                Some(Ok(())) => self.settle(place, notices, &mut Nobody),
                Some(Err(reason)) => {
                    notices.push(Notice::JobFailed { job: id, reason });
                    break;
                }
            }
        }
        discarded
    }

    /// Lets go of the link of a worker that lives and makes [another](Self::add_worker): it pushes again what has no answer. Its
    /// job's rounds wait for it. Returns the worker's window of gradients.
    pub fn unlink_worker(&mut self, id: JobId, rank: u32) -> Discarded {
        let mut discarded = Discarded::default();
        if let Some(link) = self.unlink(id, rank) {
            self.port.detach(link);
        }
        for JobShard { shard, replies, .. } in self.shards_of(id) {
            of_mode!(shard, shard => {
                shard.unlink(rank, &mut discarded);
                replies.may_repeat(rank, shard.keys().len());
            });
        }
        discarded
    }

    /// Holds a job's rounds until [`release`](Self::release). Returns the rounds in flight; `None` without chunks.
    pub fn hold(&mut self, id: JobId) -> Option<Front> {
        let fronts = self.shards_of(id).filter_map(|entry| {
            of_mode!(&mut entry.shard, shard => {
                shard.hold();
                shard.front()
            })
        });
        fronts.reduce(|a, b| Front { lowest: a.lowest.min(b.lowest), highest: a.highest.max(b.highest) })
    }

    /// Looks whether a job's rounds move, and whose pushes they wait for.
    pub fn look(&mut self, id: JobId) -> Look {
        let shards = self.shards_of(id);
        shards.fold(Look::default(), |look, JobShard { shard, looked, .. }| {
            look.with(of_mode!(shard, shard => Look::at(shard, looked)))
        })
    }

    /// All that arrived is done, and the core waits from now on: notes whose pushes it waits for. In microseconds.
    pub fn begin_wait(&mut self, now: u64) {
        for JobShard { shard, watch, .. } in self.shards.iter_mut().flatten() {
            // While it is held, and without chunks, it waits for nobody.
            of_mode!(shard, shard => watch.look(&shard.pace, if shard.is_held() { 0 } else { shard.keys().len() }, now));
        }
    }

    /// The core has waited until this time, in microseconds.
    pub fn end_wait(&mut self, now: u64) {
        self.shards.iter_mut().flatten().for_each(|entry| entry.watch.passed(now));
    }

    /// For how long the core waited for whom, in a job's last rounds.
    pub fn watched(&mut self, id: JobId) -> Watched {
        self.shards_of(id).fold(Watched::default(), |watched, entry| watched.with(entry.watch.watched()))
    }

    /// The links of a job's workers, with their ranks.
    pub fn links(&self, id: JobId) -> impl Iterator<Item = (u32, LinkId)> {
        let of_job = move |(link, member): (u32, &Option<Member>)| {
            let Member { shard, rank } = (*member)?;
            let entry = self.shards[shard].as_ref().filter(|entry| entry.id == id)?;
            (!entry.replies.leads_up(rank)).then_some((rank, LinkId(link)))
        };
        (0..).zip(&self.members).filter_map(of_job)
    }

    /// What was seen of a job's gradients.
    pub fn gauged(&mut self, id: JobId) -> Gauged {
        self.shards_of(id).fold(Gauged::default(), |gauged, entry| {
            gauged.with(of_mode!(&entry.shard, shard => shard.stages.gauged()))
        })
    }

    /// Lets a job's rounds go on. The workers in `admitted` take part from round `from` on, which no chunk may be past,
    /// but where the job begins. They are sent the weights of the round before, now or when they are there.
    pub fn release(&mut self, id: JobId, from: Round, admitted: &[u32], notices: &mut Vec<Notice>) {
        for place in 0..self.shards.len() {
            let Core { shards, port, kernels, .. } = self;
            let Some(entry) = of_job(&mut shards[place], id) else { continue };
            at_work!(entry, port, &mut Nobody, kernels, work => {
                work.shard.release();
                for &rank in admitted {
                    if work.replies.link(rank).is_none() && work.shard.goes_on() {
                        continue; // lost meanwhile: nobody may wait for it
                    }
                    work.shard.admit(rank, from);
                    for (at, finished) in work.shard.finished_before(from) {
                        // There is room for all: nothing was posted to it before. If it closed, the port says so.
                        work.shard.greet(at);
                        work.reply(at, rank, finished);
                    }
                }
            });
            self.follow(place, None, notices);
            self.settle(place, notices, &mut Nobody);
        }
    }

    /// Of a job that is [held](Self::hold) and whose workers step alone, by rank: the first round of which no push of a worker
    /// that takes part is stepped, for any chunk here. Nothing where workers step together.
    pub fn lines(&mut self, id: JobId) -> Vec<Option<Round>> {
        let lines = self.shards_of(id).map(|entry| of_mode!(&entry.shard, shard => shard.pace.lines()));
        lines.reduce(further).unwrap_or_default()
    }

    /// In a job that begins and whose workers step alone, each takes part so many rounds, by rank, after the round from which the
    /// others do.
    pub fn begin_ahead(&mut self, id: JobId, ahead: &[u32]) {
        for entry in self.shards_of(id) {
            of_mode!(&mut entry.shard, shard => shard.pace.begin_ahead(ahead));
        }
    }

    /// A job that is [held](Self::hold) ends before a round that no chunk is past, or, where workers step alone, at the
    /// [lines](Self::lines) of all cores: after the release chunks come to it, and go no further.
    pub fn end_before(&mut self, id: JobId, round: Round, lines: &[Option<Round>]) {
        for entry in self.shards_of(id) {
            of_mode!(&mut entry.shard, shard => shard.end_before(round, lines));
        }
    }

    /// Has a job, in which nobody takes part yet, begin with a state.
    pub fn restore(&mut self, id: JobId, layout: &Layout, restored: &Restored) {
        for entry in self.shards_of(id) {
            of_mode!(&mut entry.shard, shard => shard.restore(layout, restored));
        }
    }

    /// Takes a snapshot of a job's state before a round that no chunk is past, while the job is [held](Self::hold).
    pub fn take_snapshot(&mut self, id: JobId, occasion: Occasion, before: Round, notices: &mut Vec<Notice>) {
        let Some(entry) = self.shards_of(id).next() else { return };
        of_mode!(&mut entry.shard, shard => shard.take_snapshot(occasion, before));
        entry.report_snapshots(notices);
    }

    /// A job that is [held](Self::hold) is over: its state before a round that no chunk is past; `None` without chunks. In
    /// modes whose rounds cannot be ended with the pushes that are in, an error if a chunk is behind.
    pub fn last_state(&mut self, id: JobId, before: Round) -> Option<Result<SnapshotPart, String>> {
        let kernels = self.kernels;
        let entry = self.shards_of(id).next()?;
        of_mode!(&mut entry.shard, shard => {
            (!shard.keys().is_empty()).then(|| shard.last_state(kernels, before))
        })
    }

    /// A snapshot's part is written, or will not be; its memory comes back, unless it is lost.
    pub fn give_back(&mut self, id: JobId, values: Option<Slab>) {
        if let Some(entry) = self.shards_of(id).next() {
            of_mode!(&mut entry.shard, shard => shard.give_back(values));
        }
    }

    /// Ends a job: its links are detached. Returns its memory, which is freed when it is dropped.
    pub fn remove_job(&mut self, id: JobId) -> Discarded {
        let mut discarded = Discarded::default();
        for place in 0..self.shards.len() {
            let Some(ended) = self.shards[place].take_if(|entry| entry.id == id) else { continue };
            for link in ended.replies.links() {
                // Another shard of the job may have had the link, too.
                if self.members[link.index()].take().is_some() {
                    self.port.detach(link);
                }
            }
            // It holds the windows of its links: none of them was the last to hold one.
            discarded.add((ended.shard, ended.replies));
        }
        discarded
    }

    /// Changes a job's learning rate from a round on.
    pub fn set_learning_rate(&mut self, id: JobId, from: Round, rate: f32) {
        for entry in self.shards_of(id) {
            of_mode!(&mut entry.shard, shard => shard.set_learning_rate(from, rate));
        }
    }

    /// One look at the port, and all that follows. True when there was work. Send the notices on before the next turn.
    #[inline(never)] // its machine code is inspected by a test for locked instructions
    pub fn turn(&mut self, notices: &mut Vec<Notice>) -> bool {
        self.turn_seen(notices, &mut Nobody)
    }

    /// The same [turn](Self::turn), and somebody looks on.
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
            // A link dropped earlier in this turn may still have arrivals in the batch.
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

    /// The answers that are posted leave.
    #[inline]
    fn flush(&mut self) {
        self.port.flush();
        self.unflushed = 0;
    }

    /// Finishes all chunks of a shard that can go on without an arrival.
    fn settle(&mut self, place: usize, notices: &mut Vec<Notice>, onlooker: &mut impl Onlooker) {
        let mut next = 0;
        while let Some(entry) = &mut self.shards[place] {
            let job = entry.id;
            let done = at_work!(entry, &mut self.port, onlooker, self.kernels, work => {
                let Some((finished, after)) = work.shard.settle(work.kernels, next) else { break };
                next = after;
                if finished.skipped > 0 {
                    let (chunk, now) = (work.shard.chunk(finished.place), finished.round.0 + 1);
                    notices.push(Notice::Skipped { job, chunk, rounds: now - finished.skipped..now });
                }
                let done = work.send(&finished);
                work.port.onlooker.done(job, work.shard.chunk(finished.place), done.round, done.steps);
                done
            });
            self.follow(place, Some(done), notices);
        }
        self.flush();
        if let Some(entry) = &mut self.shards[place] {
            entry.report_snapshots(notices);
        }
    }

    /// Sends answers that wait and have room now, and goes on with the shards' tasks by a chunk each. Whether there was
    /// something to do.
    #[cold]
    #[inline(never)]
    fn do_duties(&mut self, notices: &mut Vec<Notice>, onlooker: &mut impl Onlooker) -> bool {
        let (mut worked, mut ended) = (false, Vec::new());
        self.has_duties = false;
        for (place, entry) in self.shards.iter_mut().enumerate() {
            let Some(entry) = entry else { continue };
            entry.report_snapshots(notices);
            let JobShard { id, shard, replies, .. } = entry;
            let posted = replies.post_waiting(Seen { port: &mut self.port, onlooker: &mut *onlooker });
            if posted > 0 {
                self.tally.held_back += posted as u64;
                onlooker.caught_up(*id);
                worked = true;
            }
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
        ended.into_iter().for_each(|place| self.settle(place, notices, onlooker)); // chunks may have waited for a task
        worked
    }

    /// A job's shards, the first first.
    fn shards_of(&mut self, id: JobId) -> impl Iterator<Item = &mut JobShard> {
        self.shards.iter_mut().filter_map(move |entry| of_job(entry, id))
    }

    /// Removes a worker from the links of all its job's shards.
    fn unlink(&mut self, id: JobId, rank: u32) -> Option<LinkId> {
        let link = self.shards_of(id).filter_map(|entry| entry.replies.detach(rank)).last()?;
        self.members[link.index()] = None;
        Some(link)
    }

    #[cold]
    fn drop_broken(&mut self, place: usize, notices: &mut Vec<Notice>) {
        let entry = self.shards[place].as_mut().expect("its answers were posted");
        for (rank, violation) in entry.replies.take_broken() {
            self.drop_worker(place, rank, &violation, false, notices);
        }
    }

    /// `by_itself`: the link ended, and the worker kept the protocol.
    #[cold]
    fn drop_worker(
        &mut self,
        place: usize,
        rank: u32,
        reason: &dyn Display,
        by_itself: bool,
        notices: &mut Vec<Notice>,
    ) {
        let entry = self.shards[place].as_ref().expect("a member's job is there");
        let (job, leads_up) = (entry.id, entry.replies.leads_up(rank));
        if let Some(link) = self.unlink(job, rank) {
            self.dropped.push(link);
            let reason = reason.to_string();
            notices.push(match leads_up {
                true => Notice::AboveGone { job, reason },
                false => Notice::WorkerGone { job, rank, reason, by_itself },
            });
        }
    }
}

/// Of two parts of a job's chunks, the [lines](Core::lines) of both.
pub fn further(a: Vec<Option<Round>>, b: Vec<Option<Round>>) -> Vec<Option<Round>> {
    if b.is_empty() {
        a
    } else if a.is_empty() {
        b
    } else {
        a.into_iter().zip(b).map(|(a, b)| a.max(b)).collect()
    }
}

/// The shard at a place, if it is of this job.
fn of_job(entry: &mut Option<JobShard>, id: JobId) -> Option<&mut JobShard> {
    entry.as_mut().filter(|entry| entry.id == id)
}

impl JobShard {
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
