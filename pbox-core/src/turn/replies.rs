//! Answers: how what a job's shard has finished gets to its workers, in the order of the job's schedule.
//!
//! Owned by the core's thread. Knows the links of one job's workers and what waits for each; not who pushed what.
//!
//! ```text
//!   finished -> (whole layer? pulled?) -> post -- Full, and the link has credit --> queue -> next turns' posts
//! ```
//!
//! Where all links take what is posted, which is so as long as they have no credit, nothing waits here.

use fabric::{LinkId, Port, Posted, Span};

use super::layer_parts::{Parts, Pull};
use super::send_queue::SendQueue;
use super::shard::{Finished, Recipients, Shard};
use super::violation::Violation;
use crate::job::Schedule;
use crate::layout::{ChunkId, Immediate, Round};

/// What control messages carry: an immediate, and no bytes.
const NO_BYTES: Span = Span { offset: 0, bytes: 0 };

/// A chunk's weights on the way to one worker.
#[derive(Clone, Copy, Debug)]
struct Answer {
    chunk: ChunkId,
    span: Span,
    round: Round,
}

/// The links of a job's workers to a core, and what waits for them.
#[derive(Debug)]
pub(crate) struct Answers {
    schedule: Schedule,
    /// By rank.
    links: Vec<Option<LinkId>>,
    /// By rank; with room for nothing where the link has no credit.
    queues: Vec<SendQueue<Answer>>,
    /// In all queues.
    waiting: usize,
    parts: Option<Parts>,
}

impl Answers {
    /// Without links.
    pub fn new(shard: &Shard) -> Self {
        let (schedule, workers) = (shard.terms().level.schedule, shard.terms().workers);
        Answers {
            schedule,
            links: vec![None; workers as usize],
            queues: vec![SendQueue::new(0); workers as usize],
            waiting: 0,
            parts: schedule.by_layer().then(|| Parts::new(shard.keys(), workers, schedule.pulls())),
        }
    }

    /// A worker's link; the former one of its rank.
    pub fn attach(&mut self, rank: u32, link: LinkId) -> Option<LinkId> {
        let former = self.detach(rank);
        self.links[rank as usize] = Some(link);
        former
    }

    /// The link of a worker that is gone.
    pub fn detach(&mut self, rank: u32) -> Option<LinkId> {
        let queue = &mut self.queues[rank as usize];
        self.waiting -= queue.len();
        queue.clear();
        self.parts.iter_mut().for_each(|parts| parts.forget(rank));
        self.links[rank as usize].take()
    }

    /// A worker's link.
    pub fn link(&self, rank: u32) -> Option<LinkId> {
        self.links[rank as usize]
    }

    /// All links.
    pub fn links(self) -> impl Iterator<Item = LinkId> {
        self.links.into_iter().flatten()
    }

    /// A worker's link has credit, and may be full with answers under way: makes room for one of each chunk.
    pub fn make_room(&mut self, rank: u32, chunks: usize) {
        self.queues[rank as usize] = SendQueue::new(chunks);
    }

    /// Sends what a shard has finished to whom it is for. Ranks whose links have no room, though they keep to one
    /// round in flight, cannot be: they broke the rule, and are added to `full`.
    #[inline]
    pub fn send<P: Port>(
        &mut self,
        port: &mut P,
        shard: &mut Shard,
        finished: &Finished,
        full: &mut Vec<u32>,
    ) {
        match finished.to {
            Recipients::All(round) => {
                for rank in 0..self.links.len() as u32 {
                    if shard.is_answered(rank, round) {
                        self.ready(port, shard, finished.place, rank, round, full);
                    }
                }
            }
            Recipients::Waiting(ref ranks) => {
                for rank in ranks.clone() {
                    if let Some(round) = shard.allow(finished.place, rank) {
                        self.ready(port, shard, finished.place, rank, round, full);
                    }
                }
            }
        }
    }

    /// A worker may have its answer of a round for one chunk: it goes out now, or with all of the layer's part, or when
    /// the worker pulls that.
    #[inline]
    pub fn ready<P: Port>(
        &mut self,
        port: &mut P,
        shard: &mut Shard,
        place: usize,
        rank: u32,
        round: Round,
        full: &mut Vec<u32>,
    ) {
        let Some(link) = self.links[rank as usize] else { return };
        let Some(parts) = &mut self.parts else { return self.send_to(port, shard, place, rank, round, full) };
        let Some(places) = parts.ready(place, rank) else { return };
        if !parts.are_pulled() {
            return places.for_each(|place| self.send_to(port, shard, place, rank, round, full));
        }
        let notice = Immediate::control(shard.chunk(places.start).0, round);
        if port.post(link, NO_BYTES, notice.encode()) == Posted::Full {
            full.push(rank);
        }
    }

    /// Whether this worker's post is the pull of a layer's part, which it then is sent.
    ///
    /// # Errors
    /// When it should have been.
    #[inline]
    pub fn pull<P: Port>(
        &mut self,
        port: &mut P,
        shard: &mut Shard,
        rank: u32,
        immediate: Immediate,
        full: &mut Vec<u32>,
    ) -> Result<bool, Violation> {
        let Some(parts) = self.parts.as_mut().filter(|parts| parts.are_pulled()) else { return Ok(false) };
        let Some(place) = shard.place(immediate.chunk) else { return Ok(false) };
        let next = shard.next_round(place, rank);
        let round = || Round(next.0 - 1); // a part is whole for it only after a round
        match parts.pull(place, rank, next, immediate) {
            Pull::None => Ok(false),
            Pull::Missing => Err(Violation::Unanswered { chunk: immediate.chunk, round: round() }),
            Pull::Of(places) => {
                places.for_each(|place| self.send_to(port, shard, place, rank, round(), full));
                Ok(true)
            }
        }
    }

    /// Asks a worker to push a chunk again; as with a notice, there is room for it.
    #[cold]
    pub fn ask_again<P: Port>(&mut self, port: &mut P, rank: u32, control: Immediate, full: &mut Vec<u32>) {
        let Some(link) = self.links[rank as usize] else { return };
        if port.post(link, NO_BYTES, control.encode()) == Posted::Full {
            full.push(rank);
        }
    }

    /// One chunk to one worker, behind what waits for it already, by its priority.
    #[inline]
    fn send_to<P: Port>(
        &mut self,
        port: &mut P,
        shard: &mut Shard,
        place: usize,
        rank: u32,
        round: Round,
        full: &mut Vec<u32>,
    ) {
        let Some(link) = self.links[rank as usize] else { return };
        shard.answer(place, rank);
        let (chunk, span) = (shard.chunk(place).0, shard.answer_span(place, rank, round));
        if self.queues[rank as usize].is_empty() {
            match port.post(link, span, Immediate::new(chunk, round).encode()) {
                // A link that just closed is reported by the port.
                Posted::Accepted | Posted::Closed => return,
                Posted::Full => {}
            }
        }
        self.keep(shard, place, rank, Answer { chunk, span, round }, full);
    }

    #[cold]
    fn keep(&mut self, shard: &Shard, place: usize, rank: u32, answer: Answer, full: &mut Vec<u32>) {
        let priority = self.schedule.priority(shard.keys()[place]);
        match self.queues[rank as usize].push(priority, answer) {
            true => self.waiting += 1,
            false => full.push(rank),
        }
    }

    /// Sends what waits and has room now; how many chunks.
    pub fn pump<P: Port>(&mut self, port: &mut P) -> usize {
        let mut sent = 0;
        for (queue, link) in self.queues.iter_mut().zip(&self.links) {
            let Some(link) = *link else { continue };
            while let Some(Answer { chunk, span, round }) = queue.first() {
                if port.post(link, span, Immediate::new(chunk, round).encode()) == Posted::Full {
                    break;
                }
                queue.pop();
                sent += 1;
            }
        }
        self.waiting -= sent;
        sent
    }

    /// Whether anything waits.
    pub fn has_waiting(&self) -> bool {
        self.waiting > 0
    }
}
