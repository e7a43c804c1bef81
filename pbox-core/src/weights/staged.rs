//! The three stages together, and the step. A step has the optimizer's rule, its numbers, and the values that it keeps of
//! each chunk in addition to the weights. All modes use this step.
//!
//! Owned by the core, as a part of its shard. The caller says which workers step.
//!
//! On the `unsafe` list: the calls that read the workers' pushes.

use std::ops::Range;
use std::sync::Arc;

use fabric::{MapError, RecvWindow, Slab, Span, SpanError, Spans};
use zerocopy::{FromBytes, IntoBytes};

use super::bare::Gradients;
use super::chunks::Chunk;
use super::counts::StepCounts;
use super::former::Former;
use super::gather::{Gather, NoGather, PassOn, Refused};
use super::gauge::{Gauge, Gauged};
use super::{BareSlots, Discarded, Mode, RawForAll, Read, Reply, Stepped, To, Weights};
use crate::job::JobTerms;
use crate::kernels::oracle::BLOCK_BYTES;
use crate::kernels::{
    Ablate, Before, Decay, Element, Kernels, Numbers, NumbersByRound, Optimizer, Slots, Step, Tensors, typed,
};
use crate::layout::{ChunkId, Content, Immediate, KeyId, Layout, Round};
use crate::snapshot::Restored;
use crate::whole::{Found, Sums};
use crate::wire::frame::FrameError;

/// A shard's chunks, their memory and their three stages.
pub(crate) struct Staged<M: Mode> {
    /// The chunks, by place. The groups that step as one follow the shard's chunks.
    chunks: Vec<Chunk>,
    /// The number of the shard's chunks.
    single: usize,
    gradients: Gradients,
    gauge: Gauge,
    steps: Steps,
    /// Room for former weights, if [weights ahead](Self::show) are shown.
    former: Option<Former>,
    read: M::Read,
    pub gather: M::Gather,
    weights: M::Weights,
    pub reply: M::Reply,
}

impl<M: Mode<Read = BareSlots, Weights = Spans, Reply = RawForAll>> Staged<M> {
    /// Gives a separate place to the group of the chunks at these places, if it can [step](Chunk::joined) as one.
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
    /// Allocates and touches memory: call it on the thread that owns the core.
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
    /// Creates the stages without an optimizer: a step writes the sum. `ways` links lead up.
    pub fn summing(
        terms: &JobTerms,
        chunks: Vec<Chunk>,
        (read, gather): (M::Read, PassOn),
        weights: M::Weights,
        reply: M::Reply,
        ways: u32,
    ) -> Result<Self, MapError> {
        let (steps, single) = (Steps::sums(terms, chunks.len())?, chunks.len());
        Ok(Staged {
            chunks,
            single,
            gradients: Gradients::new(terms.workers + ways),
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
    /// Makes a shard, as [`new`](Self::new), whose steps wait for gathered values.
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

    /// Lets it [show](Self::show) weights ahead.
    pub fn showing(mut self) -> Result<Self, MapError> {
        let tensors = &self.steps.tensors;
        let kept = |chunk: &Chunk| chunk.elements * tensors.kept_per_element(chunk.dtype);
        self.former = Some(Former::new(&self.chunks, kept)?);
        Ok(self)
    }

    /// Returns the shard's chunks, by place.
    #[inline]
    pub fn chunks(&self) -> &[Chunk] {
        &self.chunks[..self.single]
    }

    /// Returns the chunk at a place, or the group that has a separate place.
    #[inline]
    pub fn chunk(&self, place: usize) -> &Chunk {
        &self.chunks[place]
    }

    /// Whether the chunks at these places have the same numbers in a round, so that a group of them can step as one.
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

    /// Checks a worker's push before it counts, as [`Read::check`].
    #[inline]
    pub fn check_push(&self, place: usize, rank: u32, content: Content) -> Result<bool, FrameError> {
        let chunk = &self.chunks[place];
        // SAFETY: the worker has posted this chunk, and gets no answer before this returns. If it writes all the
        // same, the result is read as bytes, and every byte is a value.
        self.read.check(chunk, place, content, unsafe { self.gradients.push(rank, chunk.push) })
    }

    /// Takes an answer of a hub above by the link of this number, as [`Reply::take_answer`].
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
        // SAFETY: the hub above has posted this chunk, and posts it again only when it has this hub's next sum, which
        // goes up after this returns. If it writes nevertheless, the result is read as bytes, and every byte is a value.
        let answer = unsafe { self.gradients.push(link, span) };
        self.reply.take_answer(kernels, chunk, place, answer, To { rank: link, round, first, content })
    }

    /// Adds the window that a hub above writes for the link of this number, with the chunks at these places, and its lines.
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

    /// Takes a chunk in for `round`, with the mean of the pushes of `ranks`. The arguments are those of the [step](Self::step)
    /// that uses this mean.
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

    /// Sums the pushes of `ranks`, steps a chunk in `round`, and prepares its answers. `missing`: the number of other workers, which
    /// count as if they had pushed zeros.
    ///
    /// # Safety
    /// All of `ranks` have pushed the chunk, and none of them gets an answer before this returns.
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

    /// Puts the first push of `ranks` as a chunk's weights in `round`, and prepares its answers. The optimizer's state
    /// does not change.
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

    /// Puts weights, like [`put`](Self::put), in a job that is over: its workers may still read the answers of the
    /// round before.
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

    /// Returns the number of workers that the pushes of `ranks`, which are without a gradient, count for.
    ///
    /// # Safety
    /// See [`step`](Self::step).
    #[cold]
    pub unsafe fn without_gradient(&self, place: usize, ranks: impl Iterator<Item = u32>) -> u32 {
        // SAFETY: the caller guarantees it.
        let push = |rank| unsafe { self.gradients.push(rank, self.chunks[place].push) };
        ranks.map(|rank| self.read.workers_without(push(rank))).sum()
    }

    /// Relays that the pushes of `ranks`, of all workers, are without a gradient: hubs above are notified.
    ///
    /// # Safety
    /// See [`step`](Self::step).
    #[cold]
    pub unsafe fn relay_nothing(&mut self, place: usize, ranks: impl Iterator<Item = u32>) {
        if M::Gather::WAITS {
            return; // this hub steps; and since the chunk was taken in, its workers may have lost their links
        }
        // SAFETY: the caller guarantees it.
        let workers = unsafe { self.without_gradient(place, ranks) };
        self.reply.prepare_nothing(&self.chunks[place], place, workers);
    }

    /// Shows in the window of a chunk the weights that a step with the pushes of `ranks` would make; nothing else
    /// changes. They are kept until the chunk [is hidden](Self::hide), or [has stepped](Self::step_shown).
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
            // SAFETY: the caller guarantees it. A worker that writes them again meanwhile alters only this trial.
            let pushes = unsafe { gradients.pushes(ranks, chunk.push) };
            read.sum(kernels, chunk, place, round, pushes, step);
        });
    }

    /// Writes its weights to the window of a chunk again.
    #[cold]
    pub fn hide(&mut self, place: usize) {
        let Staged { chunks, former: Some(former), weights, .. } = self else { return };
        let chunk = &chunks[place];
        typed!(chunk.dtype, E => {
            weights.elements_mut::<E>(place).copy_from_slice(former.of::<E>(chunk, place));
        });
    }

    /// Makes the [step](Self::step) of a chunk whose weights ahead [are shown](Self::show). Returns whether they are those that
    /// the step has made, bit by bit.
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

    /// Steps a chunk of a job that is over: its workers may still read the answers of the round before. Returns the
    /// number of workers in the sum.
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

    /// Steps the weights in the window, or the former ones.
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
        if M::Gather::WAITS && gather.steps_at_once() {
            // SAFETY: the caller guarantees it.
            return unsafe { self.step_by_former(kernels, place, ranks, missing, round) };
        }
        if M::Gather::WAITS {
            let (mean, workers) = gather.mean(chunk, place);
            let found = gather.found(place, round).filter(|&found| found != Found::Skip);
            let Some(found) = found else { return 0 }; // no worker steps this round
            typed!(chunk.dtype, E => {
                let weights = weights.elements_mut::<E>(place);
                steps.run_on_mean(kernels, (place, chunk), (mean, workers), found, weights, round);
            });
            return workers;
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
                steps.run(kernels, (place, chunk), slots, workers, weights, round);
            };
            // SAFETY: the caller guarantees it.
            let pushes = unsafe { gradients.pushes(ranks, chunk.push) };
            read.sum(kernels, chunk, place, round, pushes, step);
        });
        workers
    }

    /// Steps a chunk by the norm of the round before, and adds its squares to those of this round. Its mean is in a place that
    /// all chunks share, which remains in the cache.
    ///
    /// # Safety
    /// See [`step`](Self::step).
    unsafe fn step_by_former(
        &mut self,
        kernels: &Kernels,
        place: usize,
        ranks: impl Iterator<Item = u32> + Clone,
        missing: u32,
        round: Round,
    ) -> u32 {
        let Staged { chunks, gradients, gauge, steps, read, gather, weights, .. } = self;
        let (chunk, mut workers) = (&chunks[place], 0);
        let Some(found) = gather.found_before(round) else { return 0 };
        typed!(chunk.dtype, E => {
            let weights = weights.elements_mut::<E>(place);
            let step = |slots: &Slots<E>, count| {
                workers = count + missing;
                if gauge.concerns(round) {
                    gauge.look(kernels, slots, workers, round);
                }
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

    /// Returns the span to post to a worker, like [`Reply::answer`].
    #[inline]
    pub fn answer(&mut self, kernels: &Kernels, place: usize, to: To) -> Span {
        self.reply.answer(kernels, &self.chunks[place], place, &self.weights, to)
    }

    /// Works like [`answer`](Self::answer), of an answer that is lost.
    #[cold]
    pub fn answer_again(&mut self, kernels: &Kernels, place: usize, to: To) -> Span {
        self.reply.answer_again(kernels, &self.chunks[place], place, &self.weights, to)
    }

    /// Adds a worker's gradients and, in modes with own weights windows, the window for its weights. Checks every
    /// span once, also those of the lines that it may pass on. A worker that lost its links had other ones
    /// before.
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

    /// Unlinks a worker that has lost its links: its pushes are not read any more. Its answers are kept until
    /// it has [other](Self::add_worker) links.
    pub fn unlink(&mut self, rank: u32, discarded: &mut Discarded) {
        discarded.add(self.gradients.remove(rank));
    }

    /// Removes a worker's windows.
    pub fn remove_worker(&mut self, rank: u32, discarded: &mut Discarded) {
        discarded.add(self.gradients.remove(rank));
        discarded.add(self.reply.remove_worker(rank));
    }

    /// Takes weights, state and the optimizer's numbers from a checkpoint, or from workers. Missing parts do not change.
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

    /// Writes a chunk's values into a snapshot. Returns how many steps it has made.
    pub fn copy_to_snapshot(&self, place: usize, values: &mut [f32]) -> u32 {
        let chunk = &self.chunks[place];
        if self.steps.keeps_weights() {
            typed!(chunk.dtype, E => {
                self.steps.copy_to_snapshot(chunk, self.weights.elements::<E>(place), values);
            });
        } // else nothing of it is saved
        self.steps.counts.of(place)
    }

    /// Takes the line that a worker has passed on at this span, or that a hub above has sent by the link of this number.
    pub fn take_line(&mut self, link: u32, line: Immediate, span: Span) -> Result<(), Refused> {
        // SAFETY: the other end has posted this line. If it writes nevertheless, the result is read as words, and all words are
        // looked at.
        let bytes = unsafe { self.gradients.push(link, span) }.bytes();
        self.gather
            .take_line(line, <[u64]>::ref_from_bytes(bytes).expect("lines are whole words, on 64 bytes"))
    }

    /// Works like [`Reply::greet`].
    pub fn greet(&mut self, place: usize) {
        self.reply.greet(&self.chunks[place], place);
    }

    /// Returns the observations of the gradients.
    pub fn gauged(&self) -> Gauged {
        Gauged { found: self.gather.last_found(), ..self.gauge.gauged() }
    }

    /// Sets a chunk's optimizer state to zero, as if it had made no step. Its weights and their average do
    /// not change.
    pub fn reset_state(&mut self, place: usize) {
        let Staged { chunks, steps, .. } = self;
        let chunk = &chunks[place];
        typed!(chunk.dtype, E => {
            let (_, state, _) = steps.kept_of::<E>(chunk);
            state.fill(0.0);
        });
        steps.counts.reset(place);
    }

    /// Returns the optimizer's numbers by round.
    pub fn numbers(&mut self) -> &mut NumbersByRound {
        &mut self.steps.numbers
    }

    /// Whether there is a task for the core between turns.
    #[inline]
    pub fn has_task(&self) -> bool {
        self.reply.has_task() | self.gather.awaits_others()
    }

    /// Does [the reply's work](Reply::work), or takes the values that the other cores have gathered.
    pub fn work(&mut self) -> bool {
        if M::Gather::WAITS { self.gather.hear() } else { self.reply.work(&self.weights) }
    }
}

/// Steps a shard's chunks.
#[derive(Debug)]
struct Steps {
    tensors: Tensors,
    /// The decay of the average of weights, if an average is kept.
    decay: Option<Decay>,
    rule: Rule,
    /// 1, or -1 where steps go up the gradient.
    sign: f32,
    numbers: NumbersByRound,
    counts: StepCounts,
    /// The f32 of these tensors that are kept in addition to the weights, chunk by chunk.
    kept: Slab,
}

/// The use of a sum by a step.
#[derive(Debug)]
enum Rule {
    /// No work: the job leaves out both sum and step.
    Nothing,
    /// The sum takes the place of the weights.
    Sum,
    /// The mean does: the job leaves out the step.
    Mean,
    /// The optimizer's.
    Step,
}

impl Steps {
    /// Steps of a shard that posts its sums to a hub above.
    fn sums(terms: &JobTerms, chunks: usize) -> Result<Self, MapError> {
        let JobTerms { ablate, .. } = terms;
        let rule = if ablate.optimize && ablate.aggregate { Rule::Nothing } else { Rule::Sum };
        let kept = Slab::zeroed("nothing beside the sums", 0)?;
        let tensors = Tensors::from(Optimizer::Average);
        let numbers = NumbersByRound::new(Numbers::new(*tensors.optimizer()));
        let counts = StepCounts::new(terms, chunks);
        Ok(Steps { tensors, decay: None, rule, sign: 1.0, numbers, counts, kept })
    }

    /// Allocates and touches memory: call it on the thread that owns the core.
    fn new(terms: &JobTerms, chunks: &[Chunk]) -> Result<Self, MapError> {
        let (tensors, sign) = (terms.tensors(), if terms.maximize { -1.0 } else { 1.0 });
        let of = |chunk: &Chunk| chunk.elements * tensors.kept_per_element(chunk.dtype);
        let mut kept = Slab::zeroed("master weights and optimizer state", chunks.iter().map(of).sum())?;
        kept.as_mut_slice().fill(0.0);
        let rule = match terms.ablate {
            Ablate { optimize: true, aggregate: true } => Rule::Nothing,
            Ablate { optimize: true, aggregate: false } => Rule::Mean,
            _ => Rule::Step,
        };
        let numbers = NumbersByRound::new(Numbers::new(terms.optimizer));
        let counts = StepCounts::new(terms, chunks.len());
        Ok(Steps { tensors, decay: tensors.decay(), rule, sign, numbers, counts, kept })
    }

    /// Whether a checkpoint has values of this shard.
    fn keeps_weights(&self) -> bool {
        self.tensors.optimizer().keeps_weights()
    }

    /// Sums the slots, which are the pushes of this many workers, steps the weights of the chunk at a place, and counts the
    /// step.
    #[inline]
    fn run<E: Element>(
        &mut self,
        kernels: &Kernels,
        (place, chunk): (usize, &Chunk),
        slots: &Slots<E>,
        workers: u32,
        weights: &mut [E],
        round: Round,
    ) {
        let number = self.counts.count(place);
        let Some((rule, step)) = self.step(chunk, workers, number, round) else { return };
        let kept =
            &mut self.kept.as_mut_slice()[chunk.kept..][..chunk.elements * rule.kept_per_element(E::DTYPE)];
        kernels.run(&rule, &step, slots, weights, kept);
        self.average(kernels, chunk, weights);
    }

    /// Steps, as [`run`](Self::run), on the mean of this many workers, by the finding of the round.
    fn run_on_mean<E: Element>(
        &mut self,
        kernels: &Kernels,
        (place, chunk): (usize, &Chunk),
        (mean, workers): (&[f32], u32),
        found: Found,
        weights: &mut [E],
        round: Round,
    ) {
        let number = self.counts.count(place);
        let Some((rule, mut step)) = self.step(chunk, workers, number, round) else { return };
        step.rescale = 1f32.copysign(step.rescale);
        match found {
            Found::Scale(scale) => step.rescale *= scale,
            Found::Quotient(quotient) => step = step.adapted(&rule, quotient),
            Found::Skip => return,
        }
        let kept =
            &mut self.kept.as_mut_slice()[chunk.kept..][..chunk.elements * rule.kept_per_element(E::DTYPE)];
        kernels.step(&rule, &step, mean, weights, kept);
        self.average(kernels, chunk, weights);
    }

    /// Returns the squares that the norms of a chunk's key are made of, before its step on the mean of this many workers. Nothing
    /// changes.
    fn squares<E: Element>(
        &self,
        kernels: &Kernels,
        (place, chunk): (usize, &Chunk),
        (mean, workers): (&[f32], u32),
        weights: &[E],
        round: Round,
    ) -> Sums {
        let mut sums = Sums::default();
        let number = Round(self.counts.of(place).saturating_add(1));
        let Some((rule, mut step)) = self.step(chunk, workers, number, round) else { return sums };
        step.rescale = 1f32.copysign(step.rescale);
        let (master, states) = (rule.master_per_element(E::DTYPE), rule.state_per_element());
        let kept = &self.kept.as_slice()[chunk.kept..];
        let (master, kept) = kept.split_at(chunk.elements * master);
        let (first, kept) = kept.split_at(chunk.elements);
        let second = &kept[..chunk.elements * (states - 1)];
        let in_f32 = |weights| <[f32]>::ref_from_bytes(weights).expect("weights without a master are f32");
        let weights = if master.is_empty() { in_f32(weights.as_bytes()) } else { master };
        let length = BLOCK_BYTES / size_of::<E>();
        for at in (0..chunk.elements).step_by(length) {
            let block = at..chunk.elements.min(at + length);
            let second = if second.is_empty() { second } else { &second[block.clone()] };
            let states = [&first[block.clone()], second];
            let before = Before { mean: &mean[block.clone()], weights: &weights[block], states };
            let squares = kernels.squares(&rule, &step, before);
            sums.iter_mut().zip(squares).for_each(|(sum, square)| sum.add(square));
        }
        sums
    }

    /// Moves the average of a chunk's weights, which a step has just made, if the job keeps one.
    #[inline]
    fn average<E: Element>(&mut self, kernels: &Kernels, chunk: &Chunk, weights: &[E]) {
        let Some(decay) = self.decay else { return };
        let (master, _, averages) = self.kept_of::<E>(chunk);
        // Where there is no master, the weights are f32.
        let in_f32 = |weights| <[f32]>::ref_from_bytes(weights).expect("weights without a master are f32");
        let weights = if master.is_empty() { in_f32(weights.as_bytes()) } else { &*master };
        kernels.average(decay, weights, averages);
    }

    /// Makes a trial of the [step](Self::run): nothing changes except the weights.
    #[allow(clippy::too_many_arguments)]
    fn run_trial<E: Element>(
        &self,
        kernels: &Kernels,
        (place, chunk): (usize, &Chunk),
        slots: &Slots<E>,
        workers: u32,
        weights: &mut [E],
        round: Round,
        former: &mut Former,
    ) {
        let number = Round(self.counts.of(place).saturating_add(1));
        let Some((rule, step)) = self.step(chunk, workers, number, round) else { return };
        let kept = &self.kept.as_slice()[chunk.kept..][..chunk.elements * rule.kept_per_element(E::DTYPE)];
        kernels.run(&rule, &step, slots, weights, former.trial(kept));
    }

    /// Returns the rule of a chunk's step of this number, and its numbers. `None` if a step leaves the weights.
    #[inline]
    fn step(&self, chunk: &Chunk, workers: u32, number: Round, round: Round) -> Option<(Optimizer, Step)> {
        let numbers = self.numbers.at(round);
        let optimizer = numbers.of(chunk.key);
        let (rule, workers) = match self.rule {
            Rule::Nothing => return None,
            Rule::Sum => (Optimizer::Average, 1), // divided by the hub that steps
            Rule::Mean => (Optimizer::Average, workers),
            Rule::Step => (*optimizer, workers),
        };
        let [lr_mult, wd_mult] = match &numbers.multipliers {
            None => [chunk.lr_mult, chunk.wd_mult],
            Some(multipliers) => multipliers[chunk.key.index()],
        };
        let mut step = Step::new(&rule, workers, number, optimizer.learning_rate(), lr_mult, wd_mult);
        step.rescale *= self.sign;
        Some((rule, step))
    }

    /// Begins with new weights of a chunk. They become the master weights, too, and the average of a chunk that has
    /// made no step.
    fn begin<E: Element>(&mut self, (place, chunk): (usize, &Chunk), weights: &[E]) {
        let is_first = self.counts.of(place) == 0;
        let (master, _, averages) = self.kept_of::<E>(chunk);
        let averages = if is_first { averages } else { &mut [] };
        master.iter_mut().zip(weights).for_each(|(master, weight)| *master = weight.to_f32());
        averages.iter_mut().zip(weights).for_each(|(average, weight)| *average = weight.to_f32());
    }

    /// Returns master weights, optimizer state and average of a chunk.
    fn kept_of<E: Element>(&mut self, chunk: &Chunk) -> (&mut [f32], &mut [f32], &mut [f32]) {
        let optimizer = self.tensors.optimizer();
        let (master, states) = (optimizer.master_per_element(E::DTYPE), optimizer.state_per_element());
        let kept = chunk.elements * self.tensors.kept_per_element(E::DTYPE);
        let kept = &mut self.kept.as_mut_slice()[chunk.kept..][..kept];
        let (master, rest) = kept.split_at_mut(chunk.elements * master);
        let (state, averages) = rest.split_at_mut(chunk.elements * states);
        (master, state, averages)
    }

    /// Takes a chunk's state from a checkpoint, and with the state the number of its steps. The chunk's elements begin at `start`
    /// in the key. Returns the chunk's weights in the checkpoint.
    fn restore<'a, E: Element>(
        &mut self,
        (place, chunk): (usize, &Chunk),
        key: KeyId,
        start: usize,
        restored: &'a Restored,
    ) -> &'a [f32] {
        let elements = chunk.elements;
        let range = start..start + elements;
        let weights = restored.weights(key, range.clone());
        self.counts.restore(place, key, restored);
        let (master, state, averages) = self.kept_of::<E>(chunk);
        master.copy_from_slice(&weights[..master.len()]);
        let states =
            state.chunks_exact_mut(elements.max(1)).chain(averages.chunks_exact_mut(elements.max(1)));
        for (which, state) in states.enumerate() {
            state.copy_from_slice(restored.state(key, which, range.clone()));
        }
        weights
    }

    /// Writes a chunk's values for a snapshot: its weights (the master weights, if there are any), then its state.
    fn copy_to_snapshot<E: Element>(&self, chunk: &Chunk, weights: &[E], values: &mut [f32]) {
        let kept = chunk.elements * self.tensors.kept_per_element(E::DTYPE);
        // Kept values are laid out as in a snapshot. Weights without a master come before them.
        let (rounded, rest) = values.split_at_mut(values.len() - kept);
        rounded.iter_mut().zip(weights).for_each(|(value, weight)| *value = weight.to_f32());
        rest.copy_from_slice(&self.kept.as_slice()[chunk.kept..][..kept]);
    }
}
