//! A shard's three stages: reading, the [step](Steps), and the reply. All modes use the same step.
//!
//! Owned by the core, as a part of its shard. The caller decides which workers' pushes a step uses.
//!
//! On the list of `unsafe` code (`docs/unsafe.md`): the calls that read the workers' pushes.

use std::ops::Range;
use std::sync::Arc;

use fabric::{MapError, RecvWindow, Span, SpanError, Spans};
use zerocopy::{FromBytes, IntoBytes};

use super::bare::Gradients;
use super::chunks::Chunk;
use super::former::Former;
use super::gather::{Gather, NoGather, PassOn, Refused};
use super::gauge::{Gauge, Gauged};
use super::steps::Steps;
use super::{BareSlots, Discarded, Mode, RawForAll, Read, Reply, Stepped, To, Weights};
use crate::job::JobTerms;
use crate::kernels::{Element, Kernels, NumbersByRound, Selection, Slots, typed};
use crate::layout::{ChunkId, Content, Immediate, KeyId, Layout, Round};
use crate::snapshot::Restored;
use crate::whole::Found;
use crate::wire::frame::FrameError;

/// A shard's chunks, their memory and their three stages.
pub(crate) struct Staged<M: Mode> {
    /// The shard's chunks, and after them the groups that are stepped as one. A place is an index in this list.
    chunks: Vec<Chunk>,
    /// The number of the shard's chunks, without groups.
    single: usize,
    gradients: Gradients,
    gauge: Gauge,
    steps: Steps,
    /// Room for former weights, if the stages can [show weights ahead](Self::show).
    former: Option<Former>,
    read: M::Read,
    pub gather: M::Gather,
    weights: M::Weights,
    pub reply: M::Reply,
}

impl<M: Mode<Read = BareSlots, Weights = Spans, Reply = RawForAll>> Staged<M> {
    /// Adds a group of neighbouring chunks after the single chunks, if the group can be [stepped as one](Chunk::joined).
    /// Returns the group's place. `places` are the places of the chunks.
    pub fn join(&mut self, id: ChunkId, places: Range<usize>) -> Option<usize> {
        let joined = Chunk::joined(&self.steps.tensors, id, &self.chunks[places.clone()])?;
        let place = self.weights.join(places.clone())?;
        assert_eq!(place, self.chunks.len(), "one span a place");
        self.steps.counts.join(places);
        self.chunks.push(joined);
        Some(place)
    }
}

impl<M: Mode<Gather = NoGather>> Staged<M> {
    /// Creates the stages of a shard whose steps wait only for pushes. Allocates and touches memory: call it on the
    /// core's NUMA node.
    pub fn new(
        terms: &JobTerms,
        chunks: Vec<Chunk>,
        read: M::Read,
        weights: M::Weights,
        reply: M::Reply,
    ) -> Result<Self, MapError> {
        Self::gathering(terms, chunks, (read, NoGather), weights, reply)
    }
}

impl<M: Mode<Gather = PassOn>> Staged<M> {
    /// Creates the stages of a hub below other hubs, which has no optimizer: a step writes the sum. `link_count` is the
    /// number of links to hubs above.
    pub fn summing(
        terms: &JobTerms,
        chunks: Vec<Chunk>,
        (read, gather): (M::Read, PassOn),
        weights: M::Weights,
        reply: M::Reply,
        link_count: u32,
    ) -> Result<Self, MapError> {
        let (steps, single) = (Steps::sums(terms, chunks.len())?, chunks.len());
        Ok(Staged {
            chunks,
            single,
            gradients: Gradients::new(terms.workers + link_count),
            gauge: Gauge::off(),
            steps,
            former: None,
            read,
            gather,
            weights,
            reply,
        })
    }
}

impl<M: Mode> Staged<M> {
    /// Creates the stages of a shard whose steps wait for gathered values, and otherwise does what [`new`](Self::new) does.
    pub fn gathering(
        terms: &JobTerms,
        chunks: Vec<Chunk>,
        (read, gather): (M::Read, M::Gather),
        weights: M::Weights,
        reply: M::Reply,
    ) -> Result<Self, MapError> {
        let (steps, single) = (Steps::new(terms, &chunks)?, chunks.len());
        let (gradients, gauge) = (Gradients::new(terms.workers), Gauge::new(terms, &chunks));
        Ok(Staged { chunks, single, gradients, gauge, steps, former: None, read, gather, weights, reply })
    }

    /// Makes room so that the stages can [show](Self::show) weights ahead.
    pub fn showing(mut self) -> Result<Self, MapError> {
        let tensors = &self.steps.tensors;
        let kept = |chunk: &Chunk| chunk.elements * tensors.kept_per_element(chunk.dtype);
        self.former = Some(Former::new(&self.chunks, kept)?);
        Ok(self)
    }

    /// Returns the shard's chunks, without groups.
    #[inline]
    pub fn chunks(&self) -> &[Chunk] {
        &self.chunks[..self.single]
    }

    /// Returns the chunk or the group at index `place`.
    #[inline]
    pub fn chunk(&self, place: usize) -> &Chunk {
        &self.chunks[place]
    }

    /// Whether the optimizer's hyperparameters for the chunks at these places are the same in a round. Then a group of
    /// these chunks can make one step.
    #[inline]
    pub fn steps_alike(&self, places: Range<usize>, round: Round) -> bool {
        let numbers = self.steps.numbers.at(round);
        if numbers.multipliers.is_none() && numbers.groups.is_none() {
            return true;
        }
        let multipliers = |key: KeyId| numbers.multipliers.as_ref().map(|table| table[key.index()]);
        let of = |chunk: &Chunk| (multipliers(chunk.key), numbers.of(chunk.key));
        self.chunks[places].windows(2).all(|pair| of(&pair[0]) == of(&pair[1]))
    }

    /// Checks a worker's push before it counts, as [`Read::check`] does.
    #[inline]
    pub fn check_push(&self, place: usize, rank: u32, content: Content) -> Result<bool, FrameError> {
        let chunk = &self.chunks[place];
        // SAFETY: the worker has posted this chunk, and gets no answer before this function returns. If the worker
        // writes nevertheless, the result is read as bytes, and every byte is a valid value.
        self.read.check(chunk, place, content, unsafe { self.gradients.push(rank, chunk.push) })
    }

    /// Handles an answer of a hub above, from the link of this number, as [`Reply::take_answer`] does.
    #[inline]
    pub fn take_answer(
        &mut self,
        kernels: &Kernels,
        place: usize,
        link: u32,
        (round, first): (Round, Round),
        content: Content,
    ) -> Result<(), FrameError> {
        let chunk = &self.chunks[place];
        let Some(span) = self.reply.place_of_answers(chunk) else { return Ok(()) };
        // SAFETY: the hub above has posted this chunk. The hub above posts the chunk again only after this hub's next
        // sum, which is sent after this function returns. If the hub above writes nevertheless, the result is read as
        // bytes, and every byte is a valid value.
        let answer = unsafe { self.gradients.push(link, span) };
        self.reply.take_answer(kernels, chunk, place, answer, To { rank: link, round, first, content })
    }

    /// Adds the window that a hub above writes, for the link of this number. Checks the spans of the chunks at these
    /// places, and of the lines in which that hub sends parts of the gradient norm.
    pub fn add_above(
        &mut self,
        link: u32,
        window: Arc<RecvWindow>,
        places: impl Iterator<Item = usize>,
    ) -> Result<(), SpanError> {
        let Staged { chunks, gradients, gather, reply, .. } = self;
        let answers = places.filter_map(|place| reply.place_of_answers(&chunks[place]));
        let (spans, touched) = (answers.chain(gather.lines_above(link)), Arc::clone(&window));
        gradients.add(link, window, spans.inspect(|&span| touched.touch(span)))
    }

    /// Gathers a chunk for `round`: keeps the mean of the pushes of `ranks` for the later [step](Self::step). The arguments
    /// are those of the later step.
    ///
    /// # Safety
    /// See [`step`](Self::step).
    pub unsafe fn take_in(
        &mut self,
        kernels: &Kernels,
        place: usize,
        ranks: impl Iterator<Item = u32> + Clone,
        missing: u32,
        round: Round,
    ) {
        let Staged { chunks, gradients, gauge, steps, read, gather, weights, .. } = self;
        let chunk = &chunks[place];
        typed!(chunk.dtype, E => {
            let take_in = |slots: &Slots<E>, count| {
                let workers = count + missing;
                if gauge.concerns(round) {
                    gauge.look(kernels, slots, workers, round);
                }
                gather.take_in(kernels, chunk, place, round, slots, workers);
                if gather.adapts_keys() {
                    let (mean, _) = gather.mean(chunk, place);
                    let squares =
                        steps.squares(kernels, (place, chunk), (mean, workers), weights.elements::<E>(place), round);
                    gather.add(place, &squares);
                }
                gather.count_in(place, round, workers);
            };
            // SAFETY: the caller guarantees it.
            let pushes = unsafe { gradients.pushes(ranks, chunk.push) };
            read.sum(kernels, chunk, place, round, pushes, take_in);
        });
    }

    /// Sums the pushes of `ranks`, steps a chunk in `round`, and prepares its answers. `missing` is the number of other
    /// workers, which count as if they had pushed zeros.
    ///
    /// # Safety
    /// All of `ranks` have pushed the chunk, and none of these workers gets an answer before this function returns.
    #[inline]
    pub unsafe fn step(
        &mut self,
        kernels: &Kernels,
        place: usize,
        ranks: impl Iterator<Item = u32> + Clone,
        missing: u32,
        round: Round,
    ) {
        // SAFETY: the caller guarantees it.
        let workers = unsafe { self.last_step(kernels, place, ranks, missing, round) };
        let Staged { chunks, read, weights, reply, .. } = self;
        let stepped =
            Stepped { kernels, chunk: &chunks[place], place, round, content: Content::Gradient, workers };
        reply.prepare(stepped, read, weights);
    }

    /// Replaces a chunk's weights in `round` by the first push of `ranks`, and prepares the chunk's answers. The
    /// optimizer's state stays.
    ///
    /// # Safety
    /// See [`step`](Self::step).
    #[cold]
    pub unsafe fn put(
        &mut self,
        kernels: &Kernels,
        place: usize,
        ranks: impl Iterator<Item = u32>,
        round: Round,
    ) {
        // SAFETY: the caller guarantees it.
        unsafe { self.last_put(place, ranks) };
        let Staged { chunks, read, weights, reply, .. } = self;
        let stepped =
            Stepped { kernels, chunk: &chunks[place], place, round, content: Content::Weights, workers: 0 };
        reply.prepare(stepped, read, weights);
    }

    /// Replaces weights, as [`put`](Self::put) does, but prepares no answers: the job is over, and workers may still read the
    /// answers of the previous round.
    ///
    /// # Safety
    /// See [`step`](Self::step).
    pub unsafe fn last_put(&mut self, place: usize, mut ranks: impl Iterator<Item = u32>) {
        let Staged { chunks, gradients, steps, read, weights, .. } = self;
        let (chunk, Some(first)) = (&chunks[place], ranks.next()) else { return };
        typed!(chunk.dtype, E => {
            let weights = weights.elements_mut::<E>(place);
            // SAFETY: the caller guarantees it.
            read.begin(chunk, unsafe { gradients.push(first, chunk.push) }, weights);
            steps.begin((place, chunk), weights);
        });
    }

    /// Returns the number of workers for which the pushes of `ranks` count. These pushes have no gradient.
    ///
    /// # Safety
    /// See [`step`](Self::step).
    #[cold]
    pub unsafe fn without_gradient(&self, place: usize, ranks: impl Iterator<Item = u32>) -> u32 {
        // SAFETY: the caller guarantees it.
        let push = |rank| unsafe { self.gradients.push(rank, self.chunks[place].push) };
        ranks.map(|rank| self.read.workers_without(push(rank))).sum()
    }

    /// Prepares the notice to the hubs above that no worker has a gradient. `ranks` are all workers.
    ///
    /// # Safety
    /// See [`step`](Self::step).
    #[cold]
    pub unsafe fn relay_nothing(&mut self, place: usize, ranks: impl Iterator<Item = u32>) {
        if M::Gather::WAITS {
            return; // this hub steps; its workers may have lost their links since the chunk was gathered
        }
        // SAFETY: the caller guarantees it.
        let workers = unsafe { self.without_gradient(place, ranks) };
        self.reply.prepare_nothing(&self.chunks[place], place, workers);
    }

    /// Shows in a chunk's window the weights that a step with the pushes of `ranks` would make. Nothing else changes. The
    /// chunk's own weights are kept until the chunk [is hidden](Self::hide), or [has stepped](Self::step_shown).
    ///
    /// # Safety
    /// All of `ranks` have posted bytes of this chunk.
    #[cold]
    pub unsafe fn show(
        &mut self,
        kernels: &Kernels,
        place: usize,
        ranks: impl Iterator<Item = u32> + Clone,
        round: Round,
    ) {
        let Staged { chunks, gradients, steps, former: Some(former), read, weights, .. } = self else {
            return;
        };
        let chunk = &chunks[place];
        typed!(chunk.dtype, E => {
            let weights = weights.elements_mut::<E>(place);
            former.of::<E>(chunk, place).copy_from_slice(weights);
            let step = |slots: &Slots<E>, workers| {
                steps.run_trial(kernels, (place, chunk), slots, workers, weights, round, former);
            };
            // SAFETY: the caller guarantees that all of `ranks` have posted their bytes. A worker that writes its bytes again
            // during the call changes only this trial.
            let pushes = unsafe { gradients.pushes(ranks, chunk.push) };
            read.sum(kernels, chunk, place, round, pushes, step);
        });
    }

    /// Restores a chunk's own weights in its window.
    #[cold]
    pub fn hide(&mut self, place: usize) {
        let Staged { chunks, former: Some(former), weights, .. } = self else { return };
        let chunk = &chunks[place];
        typed!(chunk.dtype, E => {
            weights.elements_mut::<E>(place).copy_from_slice(former.of::<E>(chunk, place));
        });
    }

    /// Makes the [step](Self::step) of a chunk whose window [shows](Self::show) weights ahead. Returns whether the step's
    /// weights equal the shown weights, bit by bit.
    ///
    /// # Safety
    /// See [`step`](Self::step).
    #[cold]
    pub unsafe fn step_shown(
        &mut self,
        kernels: &Kernels,
        place: usize,
        ranks: impl Iterator<Item = u32> + Clone,
        missing: u32,
        round: Round,
    ) -> bool {
        // SAFETY: the caller guarantees it.
        unsafe { self.step_on::<true>(kernels, place, ranks, missing, round) };
        let Staged { chunks, former: Some(former), weights, .. } = self else { return false };
        let chunk = &chunks[place];
        typed!(chunk.dtype, E => {
            let (stepped, shown) = (former.of::<E>(chunk, place), weights.elements_mut::<E>(place));
            let is_same = stepped.as_bytes() == shown.as_bytes();
            if !is_same {
                shown.copy_from_slice(stepped);
            }
            is_same
        })
    }

    /// Steps a chunk of a job that is over, and prepares no answers: workers may still read the answers of the previous
    /// round. Returns the number of workers in the sum.
    ///
    /// # Safety
    /// See [`step`](Self::step).
    #[inline]
    pub unsafe fn last_step(
        &mut self,
        kernels: &Kernels,
        place: usize,
        ranks: impl Iterator<Item = u32> + Clone,
        missing: u32,
        round: Round,
    ) -> u32 {
        // SAFETY: the caller guarantees it.
        unsafe { self.step_on::<false>(kernels, place, ranks, missing, round) }
    }

    /// Steps the weights in the window or, if `FORMER`, the former weights.
    ///
    /// # Safety
    /// See [`step`](Self::step).
    #[inline]
    unsafe fn step_on<const FORMER: bool>(
        &mut self,
        kernels: &Kernels,
        place: usize,
        ranks: impl Iterator<Item = u32> + Clone,
        missing: u32,
        round: Round,
    ) -> u32 {
        let Staged { chunks, gradients, gauge, steps, former, read, gather, weights, .. } = self;
        let chunk = &chunks[place];
        let by_former = M::Gather::WAITS && gather.steps_at_once();
        if M::Gather::WAITS && !by_former {
            let (mean, workers) = gather.mean(chunk, place);
            let found = gather.found(place, round).filter(|&found| found != Found::Skip);
            let Some(found) = found else { return 0 }; // no worker steps this round
            typed!(chunk.dtype, E => {
                let weights = weights.elements_mut::<E>(place);
                steps.run_on_mean(kernels, (place, chunk), (mean, workers), found, weights, round);
            });
            return workers;
        }
        let found = gather.found_before(round).filter(|_| by_former);
        if by_former && found.is_none() {
            return 0;
        }
        let mut workers = 0;
        typed!(chunk.dtype, E => {
            let weights = match former {
                Some(former) if FORMER => former.of::<E>(chunk, place),
                _ => weights.elements_mut::<E>(place),
            };
            let step = |slots: &Slots<E>, count| {
                workers = count + missing;
                if gauge.concerns(round) {
                    gauge.look(kernels, slots, workers, round);
                }
                let Some(found) = found else {
                    return steps.run(kernels, (place, chunk), slots, workers, weights, round);
                };
                // All chunks use the same memory for the mean, which stays in the cache.
                gather.take_in(kernels, chunk, place, round, slots, workers);
                let (mean, _) = gather.mean(chunk, place);
                steps.run_on_mean(kernels, (place, chunk), (mean, workers), found, weights, round);
                gather.count_in(place, round, workers);
            };
            // SAFETY: the caller guarantees it.
            let pushes = unsafe { gradients.pushes(ranks, chunk.push) };
            read.sum(kernels, chunk, place, round, pushes, step);
        });
        workers
    }

    /// Returns the span to post to a worker, as [`Reply::answer`] does.
    #[inline]
    pub fn answer(&mut self, kernels: &Kernels, place: usize, to: To) -> Span {
        self.reply.answer(kernels, &self.chunks[place], place, &self.weights, to)
    }

    /// Does the same as [`answer`](Self::answer), for an answer that was lost.
    #[cold]
    pub fn answer_again(&mut self, kernels: &Kernels, place: usize, to: To) -> Span {
        self.reply.answer_again(kernels, &self.chunks[place], place, &self.weights, to)
    }

    /// Adds a worker's gradients and, in modes with own weights windows, the window for its weights. Checks every span
    /// once, also those of lines in which the worker may pass on parts of the gradient norm. If the worker had lost its
    /// links, the new windows replace its former windows.
    pub fn add_worker(
        &mut self,
        rank: u32,
        gradients: Arc<RecvWindow>,
        lines: impl Iterator<Item = Span>,
        own: Option<Spans>,
        discarded: &mut Discarded,
    ) -> Result<(), SpanError> {
        let chunks = self.chunks.iter().map(|chunk| chunk.push);
        self.gradients.add(rank, gradients, chunks.chain(lines))?;
        let former = self.reply.remove_worker(rank);
        self.reply.add_worker(&self.chunks, &self.weights, rank, own);
        if let Some(former) = &former {
            self.reply.take_over(rank, former);
        }
        discarded.add(former);
        Ok(())
    }

    /// Removes the gradient window of a worker that has lost its links. The window with its answers stays until the worker
    /// has [new](Self::add_worker) links.
    pub fn unlink(&mut self, rank: u32, discarded: &mut Discarded) {
        discarded.add(self.gradients.remove(rank));
    }

    /// Removes a worker's windows.
    pub fn remove_worker(&mut self, rank: u32, discarded: &mut Discarded) {
        discarded.add(self.gradients.remove(rank));
        discarded.add(self.reply.remove_worker(rank));
    }

    /// Takes weights, optimizer state and the optimizer's hyperparameters from a checkpoint or from workers. Values
    /// that are missing in this state do not change.
    pub fn restore(&mut self, layout: &Layout, restored: &Restored) {
        let Staged { chunks, single, steps, weights, reply, .. } = self;
        let chunks = &chunks[..*single];
        steps.numbers = restored.numbers();
        let kept = if steps.keeps_weights() { chunks } else { &[] };
        for (place, chunk) in kept.iter().enumerate() {
            let of_layout = layout.chunk(chunk.id);
            let key = of_layout.key;
            let before = of_layout.span.offset - layout.key_span(key).offset;
            let start = before / layout.keys()[key.index()].dtype.bytes();
            typed!(chunk.dtype, E => {
                let values = steps.restore::<E>((place, chunk), key, start, restored);
                let weights = weights.elements_mut::<E>(place).iter_mut();
                weights.zip(values).for_each(|(weight, &value)| *weight = E::from_f32(value));
            });
        }
        reply.restore(chunks, weights, restored.round());
    }

    /// Writes a chunk's selected values into a snapshot. Returns how many steps the chunk has made.
    pub fn copy_to_snapshot(&self, place: usize, selection: Selection, values: &mut [f32]) -> u32 {
        let chunk = &self.chunks[place];
        if self.steps.keeps_weights() {
            typed!(chunk.dtype, E => {
                self.steps.copy_to_snapshot(chunk, self.weights.elements::<E>(place), selection, values);
            });
        } // otherwise a snapshot has no values of the chunk
        self.steps.counts.of(place)
    }

    /// Handles a line, a message with a hub's part of the norm. A worker has passed the line on, or a hub above has sent it.
    /// The line is at `span` in the window of the link's peer.
    pub fn take_line(&mut self, link: u32, line: Immediate, span: Span) -> Result<(), Refused> {
        // SAFETY: the other end has posted this line. If it writes nevertheless, the result is read as words, and every
        // word is checked.
        let bytes = unsafe { self.gradients.push(link, span) }.bytes();
        self.gather.take_line(
            line,
            <[u64]>::ref_from_bytes(bytes).expect("lines are whole words, at a multiple of 64 bytes"),
        )
    }

    /// Prepares a chunk's weights for workers that have none, as [`Reply::greet`] does.
    pub fn greet(&mut self, place: usize) {
        self.reply.greet(&self.chunks[place], place);
    }

    /// Returns the measurements of the gradients.
    pub fn gauged(&self) -> Gauged {
        Gauged { found: self.gather.last_found(), ..self.gauge.gauged() }
    }

    /// Sets a chunk's optimizer state to zero, as if the chunk had made no step. Its weights and their average stay.
    pub fn reset_state(&mut self, place: usize) {
        let Staged { chunks, steps, .. } = self;
        let chunk = &chunks[place];
        typed!(chunk.dtype, E => {
            let (_, state, _) = steps.kept_of::<E>(chunk);
            state.fill(0.0);
        });
        steps.counts.reset(place);
    }

    /// Returns the optimizer's hyperparameters by round.
    pub fn numbers(&mut self) -> &mut NumbersByRound {
        &mut self.steps.numbers
    }

    /// Whether there is a task for the core between turns.
    #[inline]
    pub fn has_task(&self) -> bool {
        self.reply.has_task() | self.gather.awaits_others()
    }

    /// Does [the reply's work](Reply::work), or takes the results of other cores for which steps wait.
    pub fn work(&mut self) -> bool {
        if M::Gather::WAITS { self.gather.receive_parts() } else { self.reply.work(&self.weights) }
    }
}
