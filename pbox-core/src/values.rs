//! The values of a shard: weights, what is kept beside them, the workers' windows, and the step.
//!
//! Owned by the core, as a part of its shard, and laid out by place: the chunks' order in the shard.
//! Knows who steps only by what it is told.
//!
//! ```text
//!   BSP        slots of all --step--> weights: the window that all workers read
//!   SSP, ASP   slot of one  --step--> weights: the hub's own --at each answer--> that worker's window
//! ```
//!
//! In a compressed job slots and windows hold frames, and the weights are the hub's own, in f32: see `framed`.
//!
//! On the `unsafe` list: the call that reads the workers' slots.

use std::ops::Range;
use std::sync::Arc;
use std::task::Waker;

use fabric::{MapError, RecvWindow, Slab, Span, SpanError, Spans};

use crate::chunk::{ChunkId, Round};
use crate::element::{Element, typed};
use crate::frame::FrameError;
use crate::framed::Framed;
use crate::kernels::{Kernels, Slots};
use crate::key::Dtype;
use crate::layout::{Chunk, Layout};
use crate::optimizer::{Ablate, LearningRates, Optimizer};
use crate::oracle::Step;
use crate::restored::Restored;
use crate::slim::{Selection, Slimmed};
use crate::slots::Gradients;
use crate::wire::Wire;

/// One owned chunk.
#[derive(Debug)]
pub(crate) struct Owned {
    pub chunk: ChunkId,
    /// Its place in the windows.
    pub span: Span,
    /// Length of its values there, without frames.
    pub bytes: usize,
    elements: usize,
    /// Of the weights as the hub has them.
    dtype: Dtype,
    /// Where what is kept of it begins: master weights, where the window is too coarse, then state.
    kept: usize,
    /// Where its values begin in a snapshot's part.
    values: usize,
    lr_mult: f32,
    wd_mult: f32,
}

/// Memory and arithmetic of a shard's chunks.
#[derive(Debug)]
pub(crate) struct Values {
    owned: Vec<Owned>,
    weights: Weights,
    kept: Slab,
    gradients: Gradients,
    /// Weights windows of single workers, by rank.
    own_weights: Vec<Option<Spans>>,
    optimizer: Optimizer,
    ablate: Ablate,
    learning_rates: LearningRates,
    answers_apart: bool,
}

/// Where the weights are that steps go to.
#[derive(Debug)]
enum Weights {
    /// In a window, in the keys' types.
    Window(Spans),
    /// With the hub, in f32.
    Framed(Box<Framed>),
    /// The same, in a job with Slim-DP.
    Slim(Box<Slimmed>),
}

impl Weights {
    fn elements<E: Element>(&self, place: usize) -> &[E] {
        match self {
            Weights::Window(spans) => spans.elements(place),
            Weights::Framed(framed) => framed.weights(place),
            Weights::Slim(slimmed) => slimmed.weights(place),
        }
    }

    #[inline]
    fn elements_mut<E: Element>(&mut self, place: usize) -> &mut [E] {
        match self {
            Weights::Window(spans) => spans.elements_mut(place),
            Weights::Framed(framed) => framed.weights_mut(place),
            Weights::Slim(slimmed) => slimmed.weights_mut(place),
        }
    }
}

impl Values {
    /// Allocates and touches memory: on the thread that owns the core.
    pub fn new(
        wire: &Wire,
        chunks: &[ChunkId],
        mut weights: Spans,
        workers: u32,
        optimizer: Optimizer,
        ablate: Ablate,
        selection: Option<Selection>,
    ) -> Result<Self, MapError> {
        assert_eq!(weights.len(), chunks.len(), "one span a chunk");
        let layout = wire.layout();
        let mut owned = Vec::with_capacity(chunks.len());
        let (mut kept_elements, mut values) = (0, 0);
        for &id in chunks {
            let chunk = layout.chunk(id);
            let key = &layout.keys()[chunk.key.index()];
            let dtype = if wire.framing().is_some() { Dtype::F32 } else { key.dtype };
            let elements = chunk.span.bytes / key.dtype.bytes();
            owned.push(Owned {
                chunk: id,
                span: wire.span(id),
                bytes: chunk.span.bytes,
                elements,
                dtype,
                kept: kept_elements,
                values,
                lr_mult: key.lr_mult,
                wd_mult: key.wd_mult,
            });
            kept_elements += elements * optimizer.kept_per_element(dtype);
            values += elements * (1 + optimizer.state_per_element());
        }
        let framing = wire.framing().map(|framing| (framing, framing.codecs()));
        let weights = match (framing, selection) {
            (Some((framing, Some(codecs))), _) => {
                Weights::Framed(Box::new(Framed::new(framing, codecs, chunks, weights)?))
            }
            (Some((framing, None)), Some(selection)) if !chunks.is_empty() => {
                Weights::Slim(Box::new(Slimmed::new(framing, chunks, workers, selection)?))
            }
            _ => {
                (0..weights.len()).for_each(|place| weights.elements_mut::<u8>(place).fill(0));
                Weights::Window(weights)
            }
        };
        let mut kept = Slab::zeroed("master weights and optimizer state", kept_elements)?;
        kept.as_mut_slice().fill(0.0);
        Ok(Values {
            owned,
            weights,
            kept,
            gradients: Gradients::new(workers),
            own_weights: (0..workers).map(|_| None).collect(),
            learning_rates: LearningRates::new(optimizer.learning_rate()),
            answers_apart: wire.framing().is_some_and(|framing| framing.terms().compression.answers_apart()),
            optimizer,
            ablate,
        })
    }

    /// Takes weights, state and learning rates from a checkpoint.
    pub fn restore(&mut self, layout: &Layout, restored: &Restored) {
        self.learning_rates = restored.learning_rates();
        for place in 0..self.owned.len() {
            typed!(self.owned[place].dtype, E => self.restore_in::<E>(place, layout, restored));
            let windows = self.own_weights.iter_mut().flatten();
            match &mut self.weights {
                Weights::Window(_) => {}
                Weights::Framed(framed) => framed.send_weights(place),
                Weights::Slim(slimmed) => {
                    windows.for_each(|own| slimmed.show_weights(place, own.elements_mut(place)));
                }
            }
        }
        if let Weights::Slim(slimmed) = &mut self.weights {
            slimmed.begin_at(restored.round().max(Round(1)));
        }
    }

    fn restore_in<E: Element>(&mut self, place: usize, layout: &Layout, restored: &Restored) {
        let owned = &self.owned[place];
        let Chunk { key, span } = layout.chunk(owned.chunk);
        let start = (span.offset - layout.key_span(key).offset) / layout.keys()[key.index()].dtype.bytes();
        let elements = owned.elements;
        let range = start..start + elements;
        let weights = restored.weights(key, range.clone());
        round_into::<E>(self.weights.elements_mut(place), weights);
        let kept = &mut self.kept.as_mut_slice()[owned.kept..];
        let (master, state) = kept.split_at_mut(elements * self.optimizer.master_per_element(E::DTYPE));
        master.copy_from_slice(&weights[..master.len()]);
        for which in 0..self.optimizer.state_per_element() {
            let state = &mut state[which * elements..][..elements];
            state.copy_from_slice(restored.state(key, which, range.clone()));
        }
    }

    /// The chunk at a place.
    #[inline]
    pub fn owned(&self, place: usize) -> &Owned {
        &self.owned[place]
    }

    /// What is done with sums.
    pub fn optimizer(&self) -> &Optimizer {
        &self.optimizer
    }

    /// Learning rates by round.
    pub fn learning_rates(&mut self) -> &mut LearningRates {
        &mut self.learning_rates
    }

    /// Length of a snapshot's part.
    pub fn snapshot_elements(&self) -> usize {
        self.owned.last().map_or(0, |last| self.snapshot_range(last).end)
    }

    /// Where a chunk's values are in a snapshot's part.
    pub fn in_snapshot(&self, place: usize) -> Range<usize> {
        self.snapshot_range(&self.owned[place])
    }

    fn snapshot_range(&self, owned: &Owned) -> Range<usize> {
        owned.values..owned.values + owned.elements * (1 + self.optimizer.state_per_element())
    }

    /// A chunk's values for a snapshot: the weights, which are the master's where there is one, then the
    /// state.
    pub fn copy_to_snapshot(&self, place: usize, values: &mut [f32]) {
        typed!(self.owned[place].dtype, E => self.copy_in::<E>(place, values));
    }

    fn copy_in<E: Element>(&self, place: usize, values: &mut [f32]) {
        let owned = &self.owned[place];
        let kept_elements = owned.elements * self.optimizer.kept_per_element(E::DTYPE);
        // What is kept is laid out as a snapshot is, but for weights that the window alone has.
        let (weights, kept) = values.split_at_mut(values.len() - kept_elements);
        weights.iter_mut().zip(self.weights.elements::<E>(place)).for_each(|(w, e)| *w = e.to_f32());
        kept.copy_from_slice(&self.kept.as_slice()[owned.kept..][..kept_elements]);
    }

    /// Brings in a worker's gradients, and the window for its own weights where it has one; checks every
    /// span once, and touches this core's part.
    pub fn add_worker(
        &mut self,
        rank: u32,
        gradients: Arc<RecvWindow>,
        weights: Option<Spans>,
    ) -> Result<(), SpanError> {
        self.gradients.add(rank, gradients, self.owned.iter().map(|owned| owned.span))?;
        self.own_weights[rank as usize] = weights.map(|mut weights| {
            assert_eq!(weights.len(), self.owned.len(), "one span a chunk");
            for place in 0..weights.len() {
                weights.elements_mut::<u8>(place).fill(0);
                if let Weights::Slim(slimmed) = &self.weights {
                    // Where a job goes on from a checkpoint, these are what it is sent first.
                    slimmed.show_weights(place, weights.elements_mut(place));
                }
            }
            weights
        });
        Ok(())
    }

    /// Takes a worker's windows out.
    pub fn remove_worker(&mut self, rank: u32) {
        self.gradients.remove(rank);
        self.own_weights[rank as usize] = None;
    }

    /// Copies a chunk's weights to where worker `rank` alone reads them; nothing where all read the same.
    #[inline]
    pub fn show(&mut self, place: usize, rank: u32) {
        if let Some(own) = &mut self.own_weights[rank as usize] {
            match &self.weights {
                Weights::Window(weights) => {
                    own.elements_mut::<u8>(place).copy_from_slice(weights.elements(place));
                }
                Weights::Framed(framed) => framed.show_weights(place, own.elements_mut(place)),
                Weights::Slim(slimmed) => slimmed.show_weights(place, own.elements_mut(place)),
            }
        }
    }

    /// Sees to it that one who has no weights yet is sent what the others have; they may still read their answer.
    pub fn show_newcomers(&mut self, place: usize) {
        if let Weights::Framed(framed) = &mut self.weights {
            framed.show_raw(place);
        }
    }

    /// What worker `rank` pushes for a round of its own, where that must be looked at before it counts; false where it
    /// does not count, and must come again.
    ///
    /// # Errors
    /// When it is no frame of this chunk and round.
    #[inline]
    pub fn check_push(&self, place: usize, rank: u32, round: Round) -> Result<bool, FrameError> {
        match &self.weights {
            Weights::Window(_) => Ok(true),
            _ => self.check_frame(place, rank, round),
        }
    }

    fn check_frame(&self, place: usize, rank: u32, round: Round) -> Result<bool, FrameError> {
        let Owned { span, .. } = self.owned[place];
        // SAFETY: the worker has posted this chunk, and is not answered before this returns. Whatever it writes all
        // the same is looked at as bytes, each of which is a value.
        let bytes = unsafe { self.gradients.bytes(rank, span) };
        match &self.weights {
            Weights::Window(_) => Ok(true),
            Weights::Framed(framed) => framed.check_push(place, round, bytes).map(|()| true),
            Weights::Slim(slimmed) => slimmed.check_push(place, round, bytes),
        }
    }

    /// What of a chunk is posted to a worker for a round, which takes part from `first` on.
    #[inline]
    pub fn answer_span(&self, place: usize, rank: u32, round: Round, first: Round) -> Span {
        match &self.weights {
            Weights::Window(_) => self.owned[place].span,
            Weights::Framed(framed) => framed.frame(place, round, first),
            Weights::Slim(slimmed) => slimmed.frame(place, rank, round, first),
        }
    }

    /// Whether a chunk that has all pushes of a round must wait for a selection of Slim-DP's core.
    #[inline]
    pub fn is_awaited(&self, round: Round) -> bool {
        matches!(&self.weights, Weights::Slim(slimmed) if slimmed.is_awaited(round))
    }

    /// Whether each worker is sent something else, in rounds that end for all at once.
    pub fn answers_apart(&self) -> bool {
        self.answers_apart
    }

    /// What to wake the core with that owns these values, when a selection can go on.
    pub fn wake_for_selections(&self, waker: Waker) {
        if let Weights::Slim(slimmed) = &self.weights {
            slimmed.wake_for_selections(waker);
        }
    }

    /// Whether a selection may go on between turns.
    #[inline]
    pub fn is_selecting(&self) -> bool {
        matches!(&self.weights, Weights::Slim(slimmed) if slimmed.is_selecting())
    }

    /// Goes on with a selection by one chunk; whether it did.
    pub fn select(&mut self) -> bool {
        match &mut self.weights {
            Weights::Slim(slimmed) => slimmed.select(),
            _ => false,
        }
    }

    /// Sum of the slots of `ranks` and step of a chunk in `round`, as the chunk's step of this `number`
    /// from 1. In round 0, where weights are kept, the first slot becomes the weights.
    ///
    /// # Safety
    /// All of `ranks` have pushed the chunk, and none of them is answered before this returns.
    #[inline]
    pub unsafe fn step(
        &mut self,
        kernels: &Kernels,
        place: usize,
        ranks: impl Iterator<Item = u32>,
        round: Round,
        number: Round,
    ) {
        match self.weights {
            Weights::Window(_) => {}
            // SAFETY: the caller's word.
            Weights::Framed(_) => return unsafe { self.step_framed(kernels, place, ranks, round, number) },
            // SAFETY: the caller's word.
            Weights::Slim(_) => return unsafe { self.step_slim(kernels, place, ranks, round) },
        }
        typed!(self.owned[place].dtype, E => {
            // SAFETY: the caller's word.
            unsafe { self.step_in::<E>(kernels, place, ranks, round, number) }
        });
    }

    /// As [`step`](Self::step), of frames; and the answer.
    ///
    /// # Safety
    /// As for [`step`](Self::step).
    unsafe fn step_framed(
        &mut self,
        kernels: &Kernels,
        place: usize,
        mut ranks: impl Iterator<Item = u32>,
        round: Round,
        number: Round,
    ) {
        let Values { owned, weights, kept, gradients, optimizer, ablate, learning_rates, .. } = self;
        let (Weights::Framed(framed), owned) = (weights, &owned[place]) else { return };
        // SAFETY: all of them have pushed this chunk, and are answered after this function: the caller's word.
        let pushed = |rank| unsafe { gradients.bytes(rank, owned.span) };
        if round == Round(0) && optimizer.keeps_weights() {
            return ranks.next().map_or((), |first| framed.begin(place, pushed(first)));
        }
        let mut workers = 0;
        framed.begin_sum(place);
        for rank in ranks {
            if workers == 0 || !ablate.aggregate {
                framed.add(kernels, place, pushed(rank));
            }
            workers += 1;
        }
        if let Some(rule) = rule(optimizer, *ablate) {
            let step =
                Step::new(rule, workers, number, learning_rates.at(round), owned.lr_mult, owned.wd_mult);
            let (sum, window) = framed.step_parts(place);
            step_sum(kernels, rule, &step, sum, window, kept_mut(kept, owned, rule));
        }
        framed.answer(kernels, place, round);
    }

    /// As [`step`](Self::step), in a job with Slim-DP; and the answers.
    ///
    /// # Safety
    /// As for [`step`](Self::step).
    unsafe fn step_slim(
        &mut self,
        kernels: &Kernels,
        place: usize,
        mut ranks: impl Iterator<Item = u32>,
        round: Round,
    ) {
        let Values {
            owned, weights, kept, gradients, own_weights, optimizer, ablate, learning_rates, ..
        } = self;
        let (Weights::Slim(slimmed), owned) = (weights, &owned[place]) else { return };
        // SAFETY: all of them have pushed this chunk, and are answered after this function: the caller's word.
        let pushed = |rank| unsafe { gradients.bytes(rank, owned.span) };
        if round == Round(0) {
            if let Some(first) = ranks.next() {
                slimmed.begin(place, pushed(first));
            }
            let windows = own_weights.iter_mut().flatten();
            return windows.for_each(|own| slimmed.show_weights(place, own.elements_mut(place)));
        }
        let mut workers = 0;
        slimmed.begin_sum(place);
        for rank in ranks {
            slimmed.add(place, workers, rank, round, pushed(rank));
            workers += 1;
        }
        if let Some(rule) = rule(optimizer, *ablate) {
            let rate = learning_rates.at(round);
            let step = Step::new(rule, workers as u32, round, rate, owned.lr_mult, owned.wd_mult);
            let (sum, window) = slimmed.step_parts(place);
            step_sum(kernels, rule, &step, sum, window, kept_mut(kept, owned, rule));
        }
        slimmed.stepped(place, round, workers as u32);
        for number in 0..workers {
            if let Some(own) = &mut own_weights[slimmed.rank(number) as usize] {
                slimmed.answer(place, number, own.elements_mut(place));
            }
        }
    }

    /// # Safety
    /// As for [`step`](Self::step).
    unsafe fn step_in<E: Element>(
        &mut self,
        kernels: &Kernels,
        place: usize,
        ranks: impl Iterator<Item = u32>,
        round: Round,
        number: Round,
    ) {
        let owned = &self.owned[place];
        let elements = owned.elements;
        // SAFETY: all of them have pushed this chunk, and are answered after this function: the caller's
        // word.
        let mut slots = unsafe { self.gradients.slots::<E>(owned.span, ranks) };
        let workers = slots.workers() as u32;
        let weights = self.weights.elements_mut::<E>(place);
        let kept_elements = elements * self.optimizer.kept_per_element(E::DTYPE);
        let mut kept = &mut self.kept.as_mut_slice()[owned.kept..][..kept_elements];
        if round == Round(0) && self.optimizer.keeps_weights() {
            // The first round is the broadcast of rank 0's weights.
            weights.copy_from_slice(slots.slot(0));
            let (master, _state) = kept.split_at_mut(elements * self.optimizer.master_per_element(E::DTYPE));
            master.iter_mut().zip(weights).for_each(|(master, weight)| *master = weight.to_f32());
            return;
        }
        if self.ablate.aggregate {
            slots = slots.first();
        }
        let Some(rule) = rule(&self.optimizer, self.ablate) else { return };
        if self.ablate.optimize {
            kept = &mut [];
        }
        let learning_rate = self.learning_rates.at(round);
        let step = Step::new(rule, workers, number, learning_rate, owned.lr_mult, owned.wd_mult);
        kernels.run(rule, &step, &slots, weights, kept);
    }
}

/// What a rule keeps of a chunk whose weights are f32.
fn kept_mut<'a>(kept: &'a mut Slab, owned: &Owned, rule: &Optimizer) -> &'a mut [f32] {
    &mut kept.as_mut_slice()[owned.kept..][..owned.elements * rule.kept_per_element(Dtype::F32)]
}

/// The step of a chunk whose pushes are summed already.
fn step_sum(
    kernels: &Kernels,
    rule: &Optimizer,
    step: &Step,
    sum: &[f32],
    weights: &mut [f32],
    kept: &mut [f32],
) {
    let start = [sum.as_ptr()];
    // SAFETY: the one start is that of `sum`, which lives as long and is as long as this chunk.
    let slots = unsafe { Slots::<f32>::new(&start, sum.len()) };
    kernels.run(rule, step, &slots, weights, kept);
}

/// What is done with a sum; nothing where neither is wanted.
fn rule(optimizer: &Optimizer, ablate: Ablate) -> Option<&Optimizer> {
    match ablate {
        Ablate { optimize: true, aggregate: true } => None,
        Ablate { optimize: true, aggregate: false } => Some(&Optimizer::Average),
        _ => Some(optimizer),
    }
}

/// Weights as a window of this type holds them.
fn round_into<E: Element>(window: &mut [E], weights: &[f32]) {
    window.iter_mut().zip(weights).for_each(|(place, &weight)| *place = E::from_f32(weight));
}
