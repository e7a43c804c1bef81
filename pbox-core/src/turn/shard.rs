//! A shard: one core's part of one job, and its work when a push arrives.
//!
//! Owned by the core's thread. Made on that thread, or on another thread of the core's NUMA node, so that its memory
//! lies on this node. Does not depend on links; `core` brings arrivals, and `replies` sends the answers.
//!
//! A shard is *held* while the hub looks for a cut: a round that no chunk has passed. Arrivals are noted, but no chunk is
//! stepped and no worker gets an answer. So no chunk can pass the rounds in flight (`docs/modes.md`, Cuts).

use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::Arc;

use fabric::{RecvWindow, Slab, Span, SpanError, Spans};
use serde::{Deserialize, Serialize};

use super::pace::{Arrivals, Pace, Whole};
use super::violation::Violation;
use crate::job::{JobTerms, OnLoss};
use crate::kernels::{Kernels, Numbers, Selection};
use crate::layout::{ChunkId, Content, Immediate, KeyId, Layout, Round};
use crate::snapshot::{Capture, Occasion, Restored, SnapshotPart, Taken};
use crate::weights::{Bare, Discarded, Gather, Mode, Read, Refused, Staged, To};
use crate::whole::{ExactSum, NormMean};
use crate::wire::Wire;
use crate::wire::frame::FrameError;

/// A round that no job reaches.
const NEVER: Round = Round(u32::MAX);

/// The rounds in flight of a shard's chunks. In SSP and ASP, a chunk's round is that of its slowest worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Front {
    /// The round of the slowest chunk.
    pub lowest: Round,
    /// The round of the fastest chunk.
    pub highest: Round,
}

/// One core's part of one job.
pub(crate) struct ShardOf<P, M: Mode> {
    pub(super) terms: Arc<JobTerms>,
    pub(super) pace: P,
    pub(super) stages: Staged<M>,
    /// The first round in which chunks are not stepped: 0 while the shard is held.
    pub(super) until: Round,
    /// The value of `until` while the shard is not held. It is 0 if a worker was lost before all workers had the first
    /// weights.
    end: Round,
    wire: Wire,
    /// The place of each chunk (its index in this shard), by id. `None` if another core owns the chunk.
    places: Vec<Option<u32>>,
    /// The key of the chunk at each place.
    keys: Vec<KeyId>,
    /// The index of each group that is stepped as one, by the group's number. `None` for groups whose chunks are stepped one by
    /// one.
    joined: Vec<Option<u32>>,
    pub(super) snapshots: Capture,
    /// The reason why the job cannot continue, until the core [takes](Self::take_failure) it.
    failure: Option<String>,
}

/// The span of an answer without bytes.
const NO_BYTES: Span = Span { offset: 0, bytes: 0 };

/// A chunk with new weights for workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finished {
    /// The chunk's place in the shard.
    pub place: usize,
    /// The round of the new weights.
    pub round: Round,
    pub bytes: usize,
    /// The number of steps.
    pub steps: u32,
    /// Rounds that ended without a step, because no worker is left to push them.
    pub skipped: u32,
    /// The numbers of the links over which the chunk is sent if its answer is [due](Pace::answer_due): to workers, or
    /// to hubs above.
    pub ranks: Range<u32>,
}

impl Finished {
    /// Whether the chunk finished the same round as another chunk, for the same links.
    pub fn is_beside(&self, other: &Finished) -> bool {
        self.round == other.round && self.ranks == other.ranks
    }
}

/// The result of a push.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Arrived {
    /// The push waits for other pushes.
    Noted,
    /// The push has finished the chunk.
    Finished(Finished),
    /// Workers may get weights before their pushes, for the chunk at this index and for this round.
    Ahead(usize, Round),
    /// The push cannot be decoded, and does not count. The worker must push the chunk again for this round.
    Unread(Round),
}

impl ShardOf<Arrivals, Bare> {
    /// Makes the shard step each group as one, if that is [possible](Staged::join) for the group.
    pub fn joining(mut self) -> Self {
        let layout = self.wire.layout();
        let groups = Vec::from_iter((0..layout.groups().len()).map(|number| layout.group_id(number)));
        self.joined = vec![None; groups.len()];
        for (number, id) in groups.into_iter().enumerate() {
            let places = self.group(id);
            self.joined[number] = places.and_then(|places| Some(self.stages.join(id, places)? as u32));
        }
        self
    }
}

impl<P: Pace, M: Mode> ShardOf<P, M> {
    pub fn new(
        pace: P,
        stages: Staged<M>,
        terms: &Arc<JobTerms>,
        wire: &Wire,
        chunks: Vec<ChunkId>,
        restored: Option<&Restored>,
        snapshot_every: Option<NonZeroU32>,
    ) -> Self {
        let layout = wire.layout();
        let mut places = vec![None; layout.chunks().len()];
        (0..).zip(&chunks).for_each(|(place, id)| places[id.index()] = Some(place));
        let elements = stages.chunks().last().map_or(0, |last| last.of_shard.end);
        let mut shard = ShardOf {
            pace,
            stages,
            until: NEVER,
            end: NEVER,
            wire: wire.clone(),
            places,
            keys: chunks.iter().map(|&id| layout.chunk(id).key).collect(),
            joined: Vec::new(),
            snapshots: Capture::new(
                chunks,
                (elements, terms.tensors()),
                (snapshot_every, terms.hubs > 1),
                Round(0),
            ),
            terms: Arc::clone(terms),
            failure: None,
        };
        if let Some(restored) = restored {
            shard.restore(layout, restored);
        }
        shard
    }

    /// Begins with a state from a checkpoint or from a worker. No worker takes part yet.
    pub fn restore(&mut self, layout: &Layout, restored: &Restored) {
        self.stages.restore(layout, restored);
        self.begin_by(restored.round(), restored.last_squares(), restored.norm_mean());
    }

    /// Begins the job with this round, and not with round 0. No worker takes part yet.
    pub fn begin_at(&mut self, first: Round) {
        self.begin_by(first, None, NormMean::default());
    }

    fn begin_by(&mut self, first: Round, last_squares: Option<ExactSum>, norm_mean: NormMean) {
        self.pace.begin_at(first);
        self.stages.gather.begin_at(first, last_squares, norm_mean);
        self.snapshots.begin_at(first);
    }

    /// Takes a snapshot of the state before round `before`, which no chunk may be past. A chunk that has reached this round is
    /// copied now. Any other chunk is copied when it reaches the round.
    pub fn take_snapshot(&mut self, occasion: Occasion, before: Round) {
        P::take_back(self);
        if !self.snapshots.begin(occasion, before) {
            return; // the snapshot in progress may be of this same round, and has these chunks already
        }
        for place in 0..self.keys.len() {
            if self.pace.has_come_to(place, before) {
                self.copy_to_snapshot(place, before);
            }
        }
    }

    /// Copies a chunk that has reached a round, if a snapshot is due before that round.
    #[inline]
    pub fn capture(&mut self, place: usize, round: Round) {
        if self.snapshots.concerns(round) {
            self.copy_to_snapshot(place, round);
        }
    }

    /// Copies a chunk that has passed from one round to a later round without a step. The cost does not depend on the
    /// number of rounds.
    #[cold]
    pub fn capture_passed(&mut self, place: usize, was: Round, now: Round) {
        for round in self.snapshots.pass(was, now) {
            self.copy_to_snapshot(place, round);
        }
        self.snapshots.skip_to(now);
    }

    #[cold]
    fn copy_to_snapshot(&mut self, place: usize, round: Round) {
        let elements = &self.stages.chunk(place).of_shard;
        if let Some((values, selection)) = self.snapshots.room(place, round, elements) {
            let steps = self.stages.copy_to_snapshot(place, selection, values);
            let Staged { gather, .. } = &self.stages;
            self.snapshots.copied(place, steps, (gather.squares_before(round), gather.norm_mean()));
        }
    }

    /// Returns the state of a job that is over, before round `before`. No chunk is past this round. Chunks that are behind
    /// end their rounds with the pushes that have arrived.
    pub fn last_state(&mut self, kernels: &Kernels, before: Round) -> Result<SnapshotPart, String> {
        P::take_back(self);
        self.stages.gather.receive_parts();
        if !(0..self.keys.len()).all(|place| P::end_rounds(self, kernels, place, before)) {
            return Err("the job's weights are at the hubs above".to_owned());
        }
        let ShardOf { stages, snapshots, keys, .. } = self;
        let part = snapshots.apart(|values, steps| {
            for (place, steps) in (0..keys.len()).zip(steps) {
                let range = snapshots.range(Selection::All, &stages.chunk(place).of_shard);
                *steps = stages.copy_to_snapshot(place, Selection::All, &mut values[range]);
            }
        })?;
        let (squares, norm_mean) = (stages.gather.squares_before(before), stages.gather.norm_mean());
        Ok(SnapshotPart { squares, norm_mean, ..part })
    }

    /// Returns the result of a snapshot.
    pub fn taken(&mut self) -> Option<Taken> {
        self.snapshots.taken()
    }

    /// Takes back the memory of a snapshot's part after the part was written or discarded. `values` is `None` if the memory is
    /// lost. Returns memory that is not needed.
    pub fn give_back(&mut self, values: Option<Slab>) -> Option<Slab> {
        self.snapshots.give_back(values)
    }

    /// Keeps the memory of `values` for the next snapshot or, without `values`, keeps no memory. Returns memory that is
    /// not needed.
    pub fn keep(&mut self, values: Option<Slab>) -> Option<Slab> {
        self.snapshots.keep(values)
    }

    /// Whether the job continues when workers are lost.
    pub fn goes_on(&self) -> bool {
        self.terms.on_loss == OnLoss::Continue
    }

    /// Returns the keys of the shard's chunks, in the order of the chunks.
    pub fn keys(&self) -> &[KeyId] {
        &self.keys
    }

    /// Returns the place of a chunk (its index in this shard), if this shard has the chunk.
    pub fn place(&self, chunk: ChunkId) -> Option<usize> {
        let place = self.places.get(chunk.index()).copied().flatten()?;
        Some(place as usize)
    }

    /// Returns the places of the chunks of the group with this id, which are neighbours. `None` if the id is not that of a
    /// group, or if another core owns the group.
    pub fn group(&self, id: ChunkId) -> Option<Range<usize>> {
        let chunks = self.wire.group(id)?;
        let (first, last) = (self.place(ChunkId(chunks.start))?, self.place(ChunkId(chunks.end - 1))?);
        (last - first == chunks.len() - 1).then_some(first..last + 1)
    }

    /// Returns the index of a group that is stepped as one.
    fn joined(&self, id: ChunkId) -> Option<usize> {
        let number = id.index().checked_sub(self.places.len())?;
        Some(self.joined.get(number).copied().flatten()? as usize)
    }

    /// Returns the id of the chunk or group at index `place`.
    #[inline]
    pub fn chunk(&self, place: usize) -> ChunkId {
        self.stages.chunk(place).id
    }

    /// Returns the key of the chunk at index `place`, or the first key of a group.
    pub fn key(&self, place: usize) -> KeyId {
        let id = self.chunk(place);
        let first = self.wire.group(id).map_or(id, |chunks| ChunkId(chunks.start));
        self.wire.layout().chunk(first).key
    }

    /// Adds worker `rank`'s gradient window and, in modes with own weights windows, the spans of this core's chunks in its
    /// weights window. Checks every span once. The worker takes part once it is [admitted](Self::admit).
    pub fn add_worker(
        &mut self,
        rank: u32,
        gradients: Arc<RecvWindow>,
        own: Option<Spans>,
        discarded: &mut Discarded,
    ) -> Result<(), SpanError> {
        let takes_lines = self.stages.gather.handles_lines();
        let lines = self.wire.gradient_lines().filter(|_| takes_lines);
        self.stages.add_worker(rank, gradients, lines, own, discarded)
    }

    /// Handles a line, a message with a hub's part of the gradient norm. A worker has passed the line on, or a hub above has
    /// sent it.
    ///
    /// # Errors
    /// Returns an error if the line breaks the protocol.
    #[cold]
    pub fn take_line(&mut self, link: u32, line: Immediate, hub: usize) -> Result<(), Violation> {
        let round = Round(line.round_bits.into());
        let refused = |refused: Refused| Violation::Line { hub, round: line.round_bits, why: refused.why() };
        let passed_on = || self.wire.passes_on() && hub < self.wire.hubs().len();
        let place = match self.pace.is_push(link) {
            true => passed_on().then(|| self.wire.gradient_line(hub, round)),
            false => self.stages.gather.line_above(link, line),
        };
        let place = place.ok_or_else(|| refused(Refused::NotOfHub))?;
        self.stages.take_line(link, line, place).map_err(refused)
    }

    /// Returns how many posts the queue of one link must hold.
    pub fn posts(&self) -> usize {
        self.wire.posts(self.keys.len()) as usize
    }

    /// Adds the window that a hub above writes, for the link of this number. Checks and touches every span once.
    pub fn add_above(&mut self, link: u32, window: Arc<RecvWindow>) -> Result<(), SpanError> {
        let ShardOf { pace, stages, keys, .. } = self;
        stages.add_above(link, window, (0..keys.len()).filter(|&place| pace.link_above(place) == Some(link)))
    }

    /// Lets worker `rank` take part from round `from` on. Call `settle` afterwards.
    pub fn admit(&mut self, rank: u32, from: Round) {
        P::take_back(self);
        self.pace.admit(rank, from);
    }

    /// Continues without worker `rank`. The worker's pushes that no step has used do not count. Call `settle` afterwards.
    ///
    /// # Errors
    /// Returns an error if the broadcast of the weights is not complete, because perhaps no other worker has the weights.
    /// From then on no chunk is stepped and no worker gets an answer: otherwise the remaining workers would broadcast other
    /// weights. Below other hubs, also returns an error if no worker is left to push a round whose sum the hubs above wait
    /// for.
    pub fn remove_worker(&mut self, rank: u32, discarded: &mut Discarded) -> Result<(), String> {
        P::take_back(self);
        self.pace.remove(rank);
        self.stages.remove_worker(rank, discarded);
        match self.front() {
            Some(Front { lowest: Round(0), .. }) if self.terms.optimizer.keeps_weights() => {
                (self.until, self.end) = (Round(0), Round(0));
                Err(format!("worker {rank} is gone before all workers had the first weights"))
            }
            _ => match self.pace.abandoned() {
                Some(round) => Err(format!(
                    "worker {rank} is gone, and was the last worker that could push round {}",
                    round.0
                )),
                None => Ok(()),
            },
        }
    }

    /// Notes that worker `rank` has lost its links, and will make new links. The worker's pushes that no step has used do not
    /// count until the worker repeats them. The worker still takes part.
    pub fn unlink(&mut self, rank: u32, discarded: &mut Discarded) {
        P::take_back(self);
        if M::Gather::WAITS {
            self.pace.keep_taken(rank, &|place, round| self.stages.gather.has(place, round));
        }
        self.pace.forget(rank);
        self.stages.unlink(rank, discarded);
    }

    /// Holds the shard: until [`release`](Self::release) no chunk is stepped and no worker is answered. So the rounds in
    /// flight stay the same.
    pub fn hold(&mut self) {
        P::take_back(self);
        if M::Gather::WAITS {
            self.stages.gather.take_back();
            self.pace.forget_untaken(&|place, round| self.stages.gather.has(place, round));
        }
        self.until = Round(0);
    }

    /// Whether the shard is [held](Self::hold).
    #[inline]
    pub fn is_held(&self) -> bool {
        self.until == Round(0)
    }

    /// Ends the hold. Call `settle` afterwards.
    pub fn release(&mut self) {
        self.until = self.end;
    }

    /// Stops each chunk at the end of the job. In BSP the end is before `round`, which no chunk is past. In SSP and ASP it is
    /// at each worker's [line](Pace::lines). The shard must be [held](Self::hold).
    pub fn end_before(&mut self, round: Round, lines: &[Option<Round>]) {
        self.end = self.end.min(round);
        self.pace.end_at(lines);
    }

    /// Returns the rounds in flight; `None` if the core owns no chunk of the job. If this hub's part of a round's gradient norm
    /// is complete, `highest` is at least the [next round](Gather::open).
    pub fn front(&self) -> Option<Front> {
        let rounds = || (0..self.keys.len()).map(|place| self.pace.round(place));
        Some(Front { lowest: rounds().min()?, highest: rounds().max()?.max(self.stages.gather.open()) })
    }

    /// Returns the places of the chunks that have finished the round before `from`. Workers that take part from `from` on
    /// get these chunks' weights at once.
    pub fn finished_before(&self, from: Round) -> Vec<usize> {
        (0..self.keys.len()).filter(|&place| self.pace.has_finished_before(place, from)).collect()
    }

    /// Finishes the first chunk at these places that can finish now. Does the work that waited for the end of a hold, for a
    /// change of workers, or for other cores. Also returns the place to continue from.
    pub fn settle(&mut self, kernels: &Kernels, places: Range<usize>) -> Option<(Finished, usize)> {
        if self.is_held() {
            return None;
        }
        (places.start..places.end.min(self.keys.len()))
            .find_map(|place| Some((P::settle(self, kernels, place)?, place + 1)))
    }

    /// Changes the optimizer's hyperparameters from a round on.
    pub fn set_numbers(&mut self, from: Round, changed: Numbers) {
        // Neither a round in flight nor a later round needs older hyperparameters.
        let oldest = self.front().map_or(from, |front| front.lowest.min(from));
        let numbers = self.stages.numbers();
        numbers.change(from, changed);
        numbers.forget_before(oldest);
    }

    /// Sets the optimizer state of keys to zero before a round, in BSP. The keys are sorted. The caller
    /// has checked that no chunk is past the round.
    pub fn reset_state(&mut self, from: Round, keys: &[KeyId]) {
        for place in 0..self.keys.len() {
            if keys.binary_search(&self.keys[place]).is_ok() && self.pace.round(place) == from {
                self.stages.reset_state(place);
            }
        }
    }

    /// Handles worker `rank`'s push of a chunk. If the step then has all its pushes, makes the step.
    #[inline]
    pub fn arrive(
        &mut self,
        kernels: &Kernels,
        rank: u32,
        immediate: Immediate,
    ) -> Result<Arrived, Violation> {
        let chunk = immediate.chunk;
        match self.place(chunk) {
            Some(place) => self.arrive_at(kernels, place, rank, immediate),
            None => Err(Violation::NotOurs { chunk, chunks: self.places.len() }),
        }
    }

    /// Works like [`arrive`](Self::arrive), for the chunk at index `place`.
    #[inline]
    pub fn arrive_at(
        &mut self,
        kernels: &Kernels,
        place: usize,
        rank: u32,
        immediate: Immediate,
    ) -> Result<Arrived, Violation> {
        let wrong = |wrong| Violation::new(immediate, wrong);
        let round = self.pace.check(place, rank, immediate.round_bits).map_err(wrong)?;
        let content = immediate.content;
        if !self.pace.is_push(rank) {
            self.take_answer(kernels, place, rank, (round, content))?;
        } else if content != Content::Gradient || self.pace.takes(rank, content, round).is_err() {
            return self.arrive_other(kernels, place, rank, (round, content));
        } else {
            match self.stages.check_push(place, rank, Content::Gradient) {
                Ok(true) => {}
                Ok(false) => return Ok(Arrived::Unread(round)),
                Err(why) => return Err(self.lies(place, round, why)),
            }
        }
        Ok(P::take_push(self, kernels, place, rank, (round, content))
            .map_or(Arrived::Noted, Arrived::Finished))
    }

    /// Handles the bytes of an answer from a hub above.
    #[inline]
    fn take_answer(
        &mut self,
        kernels: &Kernels,
        place: usize,
        link: u32,
        (round, content): (Round, Content),
    ) -> Result<(), Violation> {
        match content {
            Content::Gradient | Content::Weights => {
                let first = self.pace.first_round(link);
                let taken = self.stages.take_answer(kernels, place, link, (round, first), content);
                taken.map_err(|why| self.lies(place, round, why))
            }
            Content::Nothing
                if self.wire.skips().skips_any() || self.pace.answered(place, link, round) == content =>
            {
                Ok(())
            }
            _ => Err(self.wrong_content(
                place,
                (round, content),
                "expected weights as the answer to this hub's sum",
            )),
        }
    }

    /// Handles a push that is no gradient. Refuses a content that the job does not allow now.
    #[cold]
    fn arrive_other(
        &mut self,
        kernels: &Kernels,
        place: usize,
        rank: u32,
        of: (Round, Content),
    ) -> Result<Arrived, Violation> {
        let (round, content) = of;
        let is_first = round == Round(0) && self.wire.broadcasts();
        let taken = self.pace.takes(rank, content, round).and_then(|()| M::Read::takes(content, is_first));
        taken.map_err(|why| self.wrong_content(place, of, why))?;
        if content == Content::Ahead {
            let is_ahead = P::take_ahead(self, kernels, place, rank);
            return Ok(if is_ahead { Arrived::Ahead(place, round) } else { Arrived::Noted });
        }
        match self.stages.check_push(place, rank, content) {
            Ok(true) => {}
            Ok(false) => return Ok(Arrived::Unread(round)),
            Err(why) => return Err(self.lies(place, round, why)),
        }
        Ok(P::take_push(self, kernels, place, rank, of).map_or(Arrived::Noted, Arrived::Finished))
    }

    #[cold]
    fn wrong_content(
        &self,
        place: usize,
        (round, content): (Round, Content),
        why: &'static str,
    ) -> Violation {
        let key = self.wire.layout().keys()[self.key(place).index()].name.clone();
        Violation::Content { key, round, content, why }
    }

    /// Fails the job because of a chunk's pushes: from now on, no chunk is stepped and no worker gets an answer. `why` gets the
    /// name of the chunk's key.
    #[cold]
    pub(super) fn fail(&mut self, place: usize, why: impl FnOnce(&Self, &str) -> String) -> Finished {
        let key = &self.wire.layout().keys()[self.key(place).index()].name;
        self.failure = Some(why(self, key));
        (self.until, self.end) = (Round(0), Round(0));
        Finished { ranks: 0..0, ..self.finished(place, self.pace.round(place), 0) }
    }

    /// Returns the reason why the job cannot continue, only the first time.
    pub fn take_failure(&mut self) -> Option<String> {
        self.failure.take()
    }

    /// Notes worker `rank`'s pushes of the chunks at all these places. Returns which chunks now have all their pushes.
    /// If some push is out of turn, not readable, or for another round, notes nothing and returns `None`. The caller
    /// must then note the pushes one by one.
    #[inline]
    pub fn note_all(&mut self, places: Range<usize>, rank: u32, round_bits: u8) -> Option<Whole> {
        self.pace.turn_of_all(places.clone(), rank, round_bits)?;
        let mut reads = places.clone().map(|place| self.stages.check_push(place, rank, Content::Gradient));
        reads.all(|read| read == Ok(true)).then(|| self.pace.note_all(places, rank))
    }

    /// Steps a group whose chunks at these places have all their pushes, if this is possible in one step.
    #[inline]
    pub fn settle_group(&mut self, kernels: &Kernels, id: ChunkId, places: Range<usize>) -> Option<Finished> {
        let joined = self.joined(id)?;
        P::settle_joined(self, kernels, places, joined)
    }

    /// Finishes the chunk at index `place`, if all its pushes are noted and the shard is not held.
    #[inline]
    pub fn settle_at(&mut self, kernels: &Kernels, place: usize) -> Option<Finished> {
        if self.is_held() { None } else { P::settle(self, kernels, place) }
    }

    #[cold]
    fn lies(&self, place: usize, round: Round, why: FrameError) -> Violation {
        Violation::Frame { chunk: self.chunk(place), round, why }
    }

    /// Prepares a chunk's weights for workers that have none. The other workers have these weights already.
    pub fn greet(&mut self, place: usize) {
        self.stages.greet(place);
    }

    /// Whether there is a task for the core between turns: a task of the stages, a [result](Self::taken) of a snapshot, or a
    /// [failure](Self::take_failure).
    #[inline]
    pub fn has_task(&self) -> bool {
        self.stages.has_task() | self.snapshots.has_taken() | self.failure.is_some()
    }

    /// Does one chunk's part of a task of the stages. Returns whether there was something to do. Call `settle` when no task
    /// is left, or earlier for the [places](Self::take_ready) of chunks that may step.
    pub fn work(&mut self) -> bool {
        self.stages.work()
    }

    /// Whether some chunks may step while the shard still has a [task](Self::has_task). The caller gets the places of
    /// these chunks from [`take_ready`](Self::take_ready).
    pub fn steps_when_ready(&self) -> bool {
        M::Gather::WAITS
    }

    /// Returns the places of a set of chunks whose steps waited for other cores, and can be made now. Returns each set once.
    /// During a hold these steps wait.
    pub fn take_ready(&mut self) -> Option<Range<usize>> {
        self.stages.gather.take_ready()
    }

    /// Describes a chunk's new weights of a round, for all workers whose answer is due.
    #[inline]
    pub fn finished(&self, place: usize, round: Round, steps: u32) -> Finished {
        let bytes = self.stages.chunk(place).bytes;
        Finished { place, round, bytes, steps, skipped: 0, ranks: 0..self.terms.workers }
    }

    /// Prepares a chunk's answer to worker `rank`, for a round whose weights the worker may have. Returns the span to post, and
    /// its content.
    #[inline]
    pub fn answer(&mut self, kernels: &Kernels, place: usize, rank: u32, round: Round) -> (Span, Content) {
        self.pace.note_answer(place, rank);
        let (content, has_bytes) = self.pace.answer(place, rank, round);
        if !has_bytes {
            return (NO_BYTES, content);
        }
        let first = self.pace.first_round(rank);
        (self.stages.answer(kernels, place, To { rank, round, first, content }), content)
    }

    /// Returns the span of the weights ahead of a chunk, for a worker that has sent its gradient ahead.
    pub fn answer_ahead(&mut self, place: usize, rank: u32) -> Option<Span> {
        self.pace.note_ahead(place, rank).then(|| self.stages.chunk(place).span)
    }

    /// Sends a worker again an answer that it has lost.
    pub fn answer_again(
        &mut self,
        kernels: &Kernels,
        place: usize,
        rank: u32,
        round: Round,
    ) -> (Span, Content) {
        let content = self.pace.answered(place, rank, round);
        if content == Content::Nothing {
            return (NO_BYTES, content);
        }
        let first = self.pace.first_round(rank);
        (self.stages.answer_again(kernels, place, To { rank, round, first, content }), content)
    }
}
