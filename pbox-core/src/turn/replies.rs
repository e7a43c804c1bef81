//! Replies: the finished chunks of a job's shard go to its workers, in the order of the job's schedule.
//!
//! Owned by the core's thread. Has the links of one job's workers and the queue of each link. Does not depend on
//! the workers' pushes.
//!
//! ```text
//!   finished -> (whole layer? pulled?) -> post -- Full, and the link has a credit --> queue -> next turns' posts
//! ```
//!
//! While every link accepts every post, the queues are empty. A link without a limit of credit accepts every
//! post.

use std::ops::Range;
use std::sync::Arc;

use fabric::{LinkId, Port, Posted, Span};

use super::layer_parts::{LayerParts, Ready};
use super::onlooker::{Onlooker, Seen};
use super::pace::{Pace, Repeated, Whole};
use super::send_queue::SendQueue;
use super::shard::{Arrived, Finished, ShardOf};
use super::violation::Violation;
use crate::job::{JobTerms, LevelTerms, Schedule};
use crate::kernels::Kernels;
use crate::layout::{ChunkId, Content, Immediate, KeyId, Round};
use crate::weights::{Gather, Mode};

/// The span of control messages: they carry an immediate, and no bytes.
const NO_BYTES: Span = Span { offset: 0, bytes: 0 };

/// Weights of a chunk or group that are being sent to one worker.
#[derive(Clone, Copy, Debug)]
struct Answer {
    chunk: ChunkId,
    span: Span,
    round: Round,
    content: Content,
}

impl Answer {
    #[inline]
    fn immediate(self) -> Immediate {
        Immediate::new(self.chunk, self.round).with(self.content)
    }
}

/// The result of the work on an arrival: its steps, but not its posts.
pub(super) struct Done {
    /// The steps that were made.
    pub steps: u32,
    pub bytes: usize,
    /// The round of the steps, if there were any.
    pub round: Round,
    /// Whether the shard has a task for the core between turns.
    pub has_task: bool,
}

impl Done {
    /// The result of an arrival that caused posts, and no step.
    const POSTED: Done = Done { steps: 0, bytes: 0, round: Round(0), has_task: false };
}

/// The links of a job's shard, and the chunks that wait for them. Links to workers have the workers' ranks as numbers.
/// Links to hubs above have the numbers after the ranks.
#[derive(Debug)]
pub(super) struct Replies {
    workers: u32,
    schedule: Schedule,
    /// The order in which sums are sent to the hubs above, if there are such hubs.
    schedule_above: Option<Schedule>,
    /// Whether the sums of a group are sent to a hub above in one post.
    groups_above: bool,
    /// The links, by their numbers in this shard.
    links: Vec<Option<LinkId>>,
    /// The queue of each link, by number. A queue without capacity belongs to a link without a limit of credit.
    queues: Vec<SendQueue<Answer>>,
    /// The number of answers in all queues.
    waiting: usize,
    /// The layer parts, with schedules by layer.
    parts: Option<LayerParts>,
    /// Workers whose violation of the protocol shows only when they are answered. Empty while all workers keep to the protocol.
    broken: Vec<(u32, Violation)>,
    /// The answers of one worker for the chunks of a group. Empty between arrivals.
    answers: Vec<Answer>,
    /// The number of stepped pushes that a worker may repeat, by rank. The worker lost the answers to these
    /// pushes with its links.
    repeats: Vec<usize>,
    /// The priority of each key in the queue of a link, by the link's number. Without a priority for each key, the
    /// schedule decides the order.
    priorities: Vec<Option<Arc<[u32]>>>,
    /// Whether a worker takes part, by rank. A worker that takes part gets the hub's parts of the gradient norm.
    listens: Vec<bool>,
}

impl Replies {
    /// Creates replies without links. `above` has the terms of the level above and the number of links to hubs above.
    pub fn new(terms: &JobTerms, above: Option<(&LevelTerms, u32)>, keys: &[KeyId]) -> Self {
        let (schedule, workers) = (terms.level.schedule, terms.workers);
        let links = (workers + above.map_or(0, |(_, links)| links)) as usize;
        // Each key begins at a multiple of 64 bytes, so a group has at most this many keys.
        let longest_group = keys.len().min(terms.chunk_bytes / 64);
        Replies {
            workers,
            schedule,
            schedule_above: above.map(|(level, _)| level.schedule),
            groups_above: above.is_some_and(|(level, _)| level.posts_groups()),
            links: vec![None; links],
            queues: vec![SendQueue::new(0); links],
            priorities: vec![None; links],
            waiting: 0,
            parts: schedule.by_layer().then(|| LayerParts::new(keys, workers, schedule.pulls())),
            broken: Vec::new(),
            answers: Vec::with_capacity(longest_group),
            repeats: vec![0; workers as usize],
            listens: vec![false; workers as usize],
        }
    }

    /// Sets the link of a number that has no link yet.
    pub fn attach(&mut self, rank: u32, link: LinkId) {
        self.links[rank as usize] = Some(link);
    }

    /// Sets the order of the answers to a worker, by the priority of each key. Sums are sent to hubs above in the order that
    /// was set last. Only a schedule with priorities follows this order.
    pub fn set_priorities(&mut self, rank: u32, priorities: &Arc<[u32]>) {
        for number in std::iter::once(rank).chain(self.numbers_above()) {
            let is_followed = self.schedule_of(number) == Schedule::P3;
            self.priorities[number as usize] = is_followed.then(|| Arc::clone(priorities));
        }
    }

    /// Notes that a worker takes part. From now on, the hub's parts of the gradient norm are sent to this worker.
    pub fn listen(&mut self, rank: u32) {
        self.listens[rank as usize] = true;
    }

    /// Whether the link of this number leads to a hub above this hub.
    pub fn leads_up(&self, rank: u32) -> bool {
        rank >= self.workers
    }

    /// Returns the numbers of the links to hubs above.
    pub fn numbers_above(&self) -> Range<u32> {
        self.workers..self.links.len() as u32
    }

    /// Returns the schedule by which a link's queue is sent.
    fn schedule_of(&self, rank: u32) -> Schedule {
        self.schedule_above.filter(|_| self.leads_up(rank)).unwrap_or(self.schedule)
    }

    /// Returns the layer parts, if answers over this link wait for whole parts.
    #[inline]
    fn parts(&mut self, rank: u32) -> Option<&mut LayerParts> {
        let workers = self.workers;
        self.parts.as_mut().filter(|_| rank < workers)
    }

    /// Removes the link of a worker that has left or was lost.
    pub fn detach(&mut self, rank: u32) -> Option<LinkId> {
        let queue = &mut self.queues[rank as usize];
        self.waiting -= queue.len();
        queue.clear();
        self.links[rank as usize].take()
    }

    /// Forgets a worker that has left or was lost.
    pub fn forget(&mut self, rank: u32) {
        self.listens[rank as usize] = false;
        self.priorities[rank as usize] = None;
        if let Some(parts) = self.parts(rank) {
            parts.forget(rank);
        }
    }

    /// Notes that a worker has lost its links, and with them the answers of at most `chunks` chunks.
    pub fn allow_repeats(&mut self, rank: u32, chunks: usize) {
        self.repeats[rank as usize] = chunks;
        if let Some(parts) = self.parts(rank) {
            parts.unlink(rank);
        }
    }

    /// Returns a worker's link.
    pub fn link(&self, rank: u32) -> Option<LinkId> {
        self.links[rank as usize]
    }

    /// Returns all links.
    pub fn links(&self) -> impl Iterator<Item = LinkId> {
        self.links.iter().copied().flatten()
    }

    /// Makes room for `chunks` answers in the queue of a worker's link. The link may be full while answers are in
    /// flight: its credit is limited, or it also gets answers ahead.
    pub fn make_room(&mut self, rank: u32, chunks: usize) {
        self.queues[rank as usize] = SendQueue::new(chunks);
    }

    /// Returns the workers whose violation of the protocol showed when they were answered. Returns each violation once.
    pub fn take_broken(&mut self) -> Vec<(u32, Violation)> {
        std::mem::take(&mut self.broken)
    }

    /// Whether [`take_broken`](Self::take_broken) has workers to return.
    #[inline]
    pub fn has_broken(&self) -> bool {
        !self.broken.is_empty()
    }

    /// Posts a control message to a worker: a notice that a layer part can be pulled, or a request to push a chunk again.
    fn post_control<P: Port, O: Onlooker>(
        &mut self,
        port: &mut Seen<P, O>,
        rank: u32,
        chunk: ChunkId,
        round: Round,
    ) {
        let Some(link) = self.links[rank as usize] else { return };
        if port.post(link, NO_BYTES, Immediate::control(chunk, round).encode()) == Posted::Full {
            self.broken.push((rank, Violation::RingFull));
        }
    }

    /// Queues an answer for a full link. A link without a limit of credit has no queue, but room for all answers of one
    /// round in flight. If such a link is full, the worker has broken the protocol.
    #[cold]
    fn keep(&mut self, key: KeyId, rank: u32, answer: Answer) {
        let set = self.priorities[rank as usize].as_ref().and_then(|priorities| priorities.get(key.index()));
        let priority = set.copied().unwrap_or_else(|| self.schedule_of(rank).priority(key));
        self.keep_at(priority, rank, answer);
    }

    fn keep_at(&mut self, priority: u32, rank: u32, answer: Answer) {
        match self.queues[rank as usize].push(priority, answer) {
            true => self.waiting += 1,
            false => self.broken.push((rank, Violation::RingFull)),
        }
    }

    /// Sends the waiting answers that have room now. Returns the number of chunks.
    pub fn post_waiting<P: Port, O: Onlooker>(&mut self, mut port: Seen<P, O>) -> usize {
        let mut sent = 0;
        for (queue, link) in self.queues.iter_mut().zip(&self.links) {
            let Some(link) = *link else { continue };
            while let Some(answer) = queue.first() {
                if port.post(link, answer.span, answer.immediate().encode()) == Posted::Full {
                    break;
                }
                queue.pop();
                sent += 1;
            }
        }
        self.waiting -= sent;
        sent
    }

    /// Whether any answer waits.
    #[inline]
    pub fn has_waiting(&self) -> bool {
        self.waiting > 0
    }
}

/// A shard, with everything that is needed to step its chunks and to send its answers.
pub(super) struct AtWork<'a, P: Port, O: Onlooker, T, M: Mode> {
    pub port: Seen<'a, P, O>,
    pub kernels: &'a Kernels,
    pub shard: &'a mut ShardOf<T, M>,
    pub replies: &'a mut Replies,
}

impl<P: Port, O: Onlooker, T: Pace, M: Mode> AtWork<'_, P, O, T, M> {
    /// Gives a worker's post to the shard, and sends the answers that result from the post. Returns the work, if there was any.
    ///
    /// # Errors
    /// Returns an error if the worker broke the protocol.
    #[inline]
    pub fn take_arrival(&mut self, rank: u32, immediate: Immediate) -> Result<Option<Done>, Violation> {
        match self.shard.arrive(self.kernels, rank, immediate) {
            Ok(Arrived::Noted) => Ok(self.gathered()),
            Ok(Arrived::Finished(finished)) => Ok(Some(self.send(&finished))),
            Ok(Arrived::Ahead(place, round)) => Ok(Some(self.answer_ahead(place, round))),
            Ok(Arrived::Unread(round)) => {
                self.replies.post_control(&mut self.port, rank, immediate.chunk, round);
                Ok(Some(Done::POSTED))
            }
            Err(violation) => match self.shard.group(immediate.chunk) {
                Some(places) => self.take_group(rank, immediate, places),
                // The arrival is not a push of this round. It may be a pull, or a push whose answer was lost.
                None if self.pull(rank, immediate) || self.answer_repeated(rank, immediate) => {
                    Ok(Some(Done::POSTED))
                }
                None => self.take_line(rank, immediate, violation),
            },
        }
    }

    /// Returns a result with a task for the core, if an arrival finished no chunk but completed the core's part of the gradient
    /// norm.
    #[inline]
    fn gathered(&self) -> Option<Done> {
        (M::Gather::WAITS && self.shard.has_task()).then_some(Done { has_task: true, ..Done::POSTED })
    }

    /// Gives a worker's post of a group to the shard, chunk by chunk. If all chunks finish with this post, the group is
    /// answered as a whole.
    fn take_group(
        &mut self,
        rank: u32,
        immediate: Immediate,
        places: Range<usize>,
    ) -> Result<Option<Done>, Violation> {
        let first = self.shard.chunk(places.start);
        let noted = match immediate.content {
            Content::Gradient => self.shard.note_all(places.clone(), rank, immediate.round_bits),
            _ => None,
        };
        if noted == Some(Whole::None) {
            return Ok(None);
        }
        if noted == Some(Whole::All)
            && let Some(finished) = self.shard.settle_group(self.kernels, immediate.chunk, places.clone())
        {
            let steps = places.len() as u32;
            return Ok(Some(Done { steps, bytes: finished.bytes, ..self.send(&finished) }));
        }
        let mut done = Done::POSTED;
        // The chunks before place `next` have all finished the same round, for the same links.
        let (mut alike, mut next) = (None, places.start);
        for (chunk, place) in (first.0..).map(ChunkId).zip(places.clone()) {
            let arrived = match noted {
                Some(_) => {
                    Ok(self.shard.settle_at(self.kernels, place).map_or(Arrived::Noted, Arrived::Finished))
                }
                // The group must be handled chunk by chunk: it breaks the protocol in some chunk, its pushes are of several
                // rounds or are no gradients, or each push is a separate step.
                None => self.shard.arrive_at(self.kernels, place, rank, Immediate { chunk, ..immediate }),
            };
            match arrived {
                Ok(Arrived::Noted | Arrived::Ahead(..)) => {}
                Ok(Arrived::Finished(finished)) => {
                    done.steps += finished.steps;
                    done.round = finished.round;
                    done.bytes += finished.steps as usize * finished.bytes;
                    let as_first = alike.as_ref().is_none_or(|first| finished.is_beside(first));
                    if place == next && as_first {
                        alike.get_or_insert(finished);
                        next += 1;
                    } else {
                        self.answer_all(&finished);
                    }
                }
                Ok(Arrived::Unread(round)) => self.replies.post_control(&mut self.port, rank, chunk, round),
                // No push of the group was counted.
                Err(violation) if chunk == first => return Err(violation),
                Err(violation) => {
                    self.replies.broken.push((rank, violation));
                    break;
                }
            }
        }
        done.has_task = self.shard.has_task();
        if let Some(Finished { round, ranks, .. }) = alike {
            for rank in ranks {
                self.answer_beside(immediate.chunk, places.start..next, round, rank, next == places.end);
            }
        }
        Ok(Some(done))
    }

    /// Sends one worker those chunks of a group whose answers are due. If the whole group is due for one
    /// round, its answers are sent in one post.
    fn answer_beside(&mut self, group: ChunkId, places: Range<usize>, round: Round, rank: u32, whole: bool) {
        let Some(link) = self.replies.links[rank as usize] else { return };
        let first = places.start;
        let mut answers = std::mem::take(&mut self.replies.answers);
        for place in places.clone() {
            if let Some(round) = self.answer_due(place, round, rank) {
                let (span, content) = self.shard.answer(self.kernels, place, rank, round);
                answers.push(Answer { chunk: self.shard.chunk(place), span, round, content });
            }
        }
        match answers[..] {
            [begins, .., ends]
                if whole
                    && answers.len() == places.len()
                    && (self.replies.groups_above || !self.replies.leads_up(rank))
                    && answers.iter().all(|answer| {
                        (answer.round, answer.content) == (begins.round, begins.content)
                            && answer.content != Content::Nothing
                            && answer.span.bytes > 0
                    }) =>
            {
                let span = begins.span.to(ends.span);
                self.post_answer(link, first, rank, Answer { chunk: group, span, ..begins });
            }
            _ => answers.iter().for_each(|&answer| self.post_answer(link, first, rank, answer)),
        }
        answers.clear();
        self.replies.answers = answers;
    }

    /// Sends a finished chunk to all workers whose answer is due.
    #[inline]
    pub fn send(&mut self, finished: &Finished) -> Done {
        self.answer_all(finished);
        let &Finished { steps, bytes, round, .. } = finished;
        Done { steps, bytes: steps as usize * bytes, round, has_task: self.shard.has_task() }
    }

    /// Returns the round of the answer that a worker may have now, as [`Pace::answer_due`] does.
    #[inline]
    fn answer_due(&mut self, place: usize, finished: Round, rank: u32) -> Option<Round> {
        if M::Gather::WAITS && self.shard.pace.awaits_again(place, rank) {
            return None;
        }
        self.shard.pace.answer_due(place, finished, rank)
    }

    #[inline]
    fn answer_all(&mut self, finished: &Finished) {
        for rank in finished.ranks.clone() {
            if let Some(round) = self.answer_due(finished.place, finished.round, rank) {
                self.reply(finished.place, rank, round);
            }
        }
    }

    /// Sends weights ahead to the workers that have sent their bytes ahead.
    #[cold]
    fn answer_ahead(&mut self, place: usize, round: Round) -> Done {
        let (chunk, content) = (self.shard.chunk(place), Content::Ahead);
        for rank in 0..self.replies.workers {
            let Some(link) = self.replies.links[rank as usize] else { continue };
            if let Some(span) = self.shard.answer_ahead(place, rank) {
                self.post_answer(link, place, rank, Answer { chunk, span, round, content });
            }
        }
        Done::POSTED
    }

    /// Answers a worker for a chunk and a round. The worker may have this answer now. The answer is sent at once, or together
    /// with its layer part, or when the worker pulls the part.
    #[inline]
    pub fn reply(&mut self, place: usize, rank: u32, round: Round) {
        match self.replies.parts(rank).map(|parts| parts.ready(place, rank)) {
            None => self.answer(place, rank, round),
            Some(ready) => self.reply_by_layer(ready, place, rank, round),
        }
    }

    fn reply_by_layer(&mut self, ready: Ready, place: usize, rank: u32, round: Round) {
        match ready {
            Ready::NotYet => {}
            Ready::ToSend(places) => places.for_each(|place| self.answer(place, rank, round)),
            Ready::ToPull(first) => {
                self.replies.post_control(&mut self.port, rank, self.shard.chunk(first), round);
            }
            Ready::NotPulled => {
                let (chunk, round) = (self.shard.chunk(place), Round(round.0.saturating_sub(1)));
                self.replies.broken.push((rank, Violation::Unanswered { chunk, round }));
            }
            Ready::Lost => self.answer_again(place, rank, round),
        }
    }

    /// Checks whether a worker's post is the pull of a layer part. If so, sends the part. Like any control
    /// message, a pull names the first chunk of the part and the round of the weights.
    #[cold]
    fn pull(&mut self, rank: u32, immediate: Immediate) -> bool {
        let Some(parts) = self.replies.parts(rank) else { return false };
        let Some(place) = self.shard.place(immediate.chunk) else { return false };
        // The weights to pull are those of the round before the worker's next push.
        let round = Round(self.shard.pace.next_round(place, rank).0.wrapping_sub(1));
        if immediate != Immediate::control(immediate.chunk, round) {
            return false;
        }
        let Some(places) = parts.pull(place, rank) else { return false };
        places.for_each(|place| self.answer(place, rank, round));
        true
    }

    /// Handles a post that may repeat a push whose answer was lost with the worker's links. If it does,
    /// answers the chunk again. In BSP the weights are still those of that answer: no later step can be made
    /// without this worker's next push.
    #[cold]
    fn answer_repeated(&mut self, rank: u32, immediate: Immediate) -> bool {
        let place = self.shard.place(immediate.chunk).filter(|_| immediate.content != Content::Ahead);
        let Some(place) = place else { return false };
        let Some(left @ 1..) = self.replies.repeats.get_mut(rank as usize) else { return false };
        let Some(repeated) = self.shard.pace.handle_repeat(place, rank, immediate.round_bits) else {
            return false;
        };
        *left -= 1;
        let (round, is_due) = match repeated {
            Repeated::Waits => return true,
            Repeated::Due(round) => (round, true),
            Repeated::Answered(round) => (round, false),
        };
        match self.replies.parts(rank).map(|parts| parts.ready_again(place, rank, is_due)) {
            Some(ready) => self.reply_by_layer(ready, place, rank, round),
            None if is_due => self.answer(place, rank, round),
            None => self.answer_again(place, rank, round),
        }
        true
    }

    /// Sends the sums without an answer to the hubs above again, after lost links to these hubs were replaced.
    #[cold]
    pub fn ask_again(&mut self) {
        self.shard.stages.gather.pass_again();
        self.post_lines();
        for place in 0..self.shard.keys().len() {
            if let Some((round, link)) = self.shard.pace.asked(place).zip(self.shard.pace.link_above(place)) {
                self.answer(place, link, round);
            }
        }
    }

    /// Handles a hub's part of the gradient norm, if the post is a [line](Immediate::line) with this part.
    #[cold]
    fn take_line(
        &mut self,
        rank: u32,
        line: Immediate,
        violation: Violation,
    ) -> Result<Option<Done>, Violation> {
        let handles_lines = self.shard.stages.gather.handles_lines();
        let Some(hub) = line.hub().filter(|_| handles_lines) else { return Err(violation) };
        match self.shard.take_line(rank, line, hub) {
            // A worker that does not take part yet may send its line late, when the line's memory already has the values
            // of a later round. So an invalid line breaks the protocol only if it comes from a hub above or from a
            // worker that takes part.
            Err(violation) if self.replies.leads_up(rank) || self.replies.listens[rank as usize] => {
                return Err(violation);
            }
            _ => _ = self.post_lines(),
        }
        Ok(Some(Done { has_task: self.shard.has_task(), ..Done::POSTED }))
    }

    /// Sends the hub's part of a round's gradient norm to all workers, once the part is complete. The workers pass the part on
    /// to the other hubs, so the part is sent before the result of the round is known. At a hub below other hubs, the part is
    /// sent to the hubs above. Returns whether there was a part to send.
    #[cold]
    pub fn post_lines(&mut self) -> bool {
        let line = self.shard.stages.gather.next_line_down();
        line.iter().for_each(|&line| {
            (0..self.replies.workers).for_each(|rank| self.post_line_to_worker(rank, line))
        });
        let mut worked = line.is_some();
        while let Some((link, line)) = self.shard.stages.gather.next_line_up() {
            self.post_line(link, line);
            worked = true;
        }
        worked
    }

    /// Sends the hub's last parts of the gradient norm to a worker that begins or has new links.
    pub fn post_lines_again(&mut self, rank: u32) {
        self.shard.stages.gather.lines().into_iter().for_each(|line| self.post_line_to_worker(rank, line));
    }

    fn post_line_to_worker(&mut self, rank: u32, line: (Immediate, Span)) {
        if self.replies.listens[rank as usize] {
            self.post_line(rank, line);
        }
    }

    /// Posts a line, a message with a part of the gradient norm, over the link of this number.
    fn post_line(&mut self, rank: u32, (line, span): (Immediate, Span)) {
        let Some(link) = self.replies.links[rank as usize] else { return };
        let waits = !self.replies.queues[rank as usize].is_empty();
        if waits || self.port.post(link, span, line.encode()) == Posted::Full {
            let Immediate { chunk, round_bits, content } = line;
            let queued = Answer { chunk, span, round: Round(round_bits.into()), content };
            self.replies.keep_at(0, rank, queued); // in front of the round's answers
        }
    }

    /// Sends one chunk to one worker, by its priority among the answers that already wait.
    #[inline]
    fn answer(&mut self, place: usize, rank: u32, round: Round) {
        let Some(link) = self.replies.links[rank as usize] else { return };
        let (span, content) = self.shard.answer(self.kernels, place, rank, round);
        self.post_answer(link, place, rank, Answer { chunk: self.shard.chunk(place), span, round, content });
    }

    /// Works like [`answer`](Self::answer), for an answer that was lost.
    fn answer_again(&mut self, place: usize, rank: u32, round: Round) {
        let Some(link) = self.replies.links[rank as usize] else { return };
        let (span, content) = self.shard.answer_again(self.kernels, place, rank, round);
        self.post_answer(link, place, rank, Answer { chunk: self.shard.chunk(place), span, round, content });
    }

    /// Posts an answer, which may be for several chunks. The first of these chunks is at `place`.
    #[inline]
    fn post_answer(&mut self, link: LinkId, place: usize, rank: u32, answer: Answer) {
        if self.replies.queues[rank as usize].is_empty() {
            match self.port.post(link, answer.span, answer.immediate().encode()) {
                // The port reports a link that just closed.
                Posted::Accepted | Posted::Closed => return,
                Posted::Full => {}
            }
        }
        self.replies.keep(self.shard.key(place), rank, answer);
    }
}
