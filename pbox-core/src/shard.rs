//! A shard: one core's part of one job, and what it does when a slot arrives.
//!
//! Owned by the core's thread, which also made it: whatever it allocates and touches lies on the
//! core's NUMA node. Knows no link; `turn` brings arrivals and sends what comes out.
//!
//! A shard is *held* while the hub looks for a cut: arrivals count, but no chunk finishes its round,
//! so that no round in flight is overtaken (`docs/architecture.md`, Cuts).

use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;

use fabric::{MapError, RecvWindow, Slab, Span, SpanError, Spans};

use crate::arrival::{Arrivals, OutOfTurn};
use crate::chunk::{ChunkId, Immediate, Round};
use crate::element::{Element, typed};
use crate::kernels::Kernels;
use crate::key::Dtype;
use crate::layout::Layout;
use crate::optimizer::{Ablate, LearningRates, Optimizer};
use crate::oracle::Step;
use crate::slots::Gradients;
use crate::snapshot::Restored;
use crate::taking::{Occasion, Taken, Taking};

/// What a shard is made from.
#[derive(Debug)]
pub struct ShardSpec {
    /// The job's layout.
    pub layout: Arc<Layout>,
    /// The chunks that this core owns, ascending.
    pub chunks: Vec<ChunkId>,
    /// The spans of these chunks in the weights window, in the same order.
    pub weights: Spans,
    /// Number of workers that there may be: ranks go from 0 to below it.
    pub workers: u32,
    /// The state to go on with; without one, weights and state are zero and round 0 begins.
    pub restored: Option<Arc<Restored>>,
    /// A snapshot is due every so many rounds.
    pub snapshot_every: Option<NonZeroU32>,
    /// What to do with a sum.
    pub optimizer: Optimizer,
    /// What to leave out.
    pub ablate: Ablate,
}

/// A worker broke the protocol. It loses its link; its job is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// A chunk that does not exist, or that another core owns.
    NotOurs {
        /// The chunk that the immediate named.
        chunk: ChunkId,
        /// Chunks of the job.
        chunks: usize,
    },
    /// The same chunk twice in a round.
    Again {
        /// The chunk.
        chunk: ChunkId,
        /// The round it is in.
        round: Round,
    },
    /// A chunk of another round than the one in flight.
    OtherRound {
        /// The chunk.
        chunk: ChunkId,
        /// The round it is in.
        expected: Round,
        /// The low bits of the round that the immediate named.
        seen: u8,
    },
    /// A chunk in a round that the worker takes no part in.
    NotYet {
        /// The chunk.
        chunk: ChunkId,
        /// The round it is in.
        round: Round,
    },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Violation::NotOurs { chunk, chunks } => {
                write!(
                    f,
                    "pushed chunk {} over the link of a core that does not own it (the job has {chunks} chunks)",
                    chunk.0
                )
            }
            Violation::Again { chunk, round } => {
                write!(f, "pushed chunk {} twice in round {}", chunk.0, round.0)
            }
            Violation::OtherRound { chunk, expected, seen } => {
                write!(
                    f,
                    "pushed chunk {} for a round that ends in {seen}, but round {} (ends in {}) is in flight",
                    chunk.0,
                    expected.0,
                    expected.low_bits()
                )
            }
            Violation::NotYet { chunk, round } => {
                write!(
                    f,
                    "pushed chunk {} in round {}, which it takes no part in: its job has not begun, or goes on without it",
                    chunk.0, round.0
                )
            }
        }
    }
}

/// One owned chunk.
#[derive(Debug)]
struct Owned {
    chunk: ChunkId,
    span: Span,
    dtype: Dtype,
    /// Where what is kept of it begins: master weights, where the window is too coarse, then state.
    kept: usize,
    /// Where its values begin in a snapshot's part.
    values: usize,
    lr_mult: f32,
    wd_mult: f32,
}

/// The rounds in flight of a shard's chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Front {
    /// Of the chunk that is furthest behind.
    pub lowest: Round,
    /// Of the chunk that is furthest ahead.
    pub highest: Round,
}

/// A chunk that has finished a round: its new weights are at `span`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Finished {
    pub chunk: ChunkId,
    pub span: Span,
    pub round: Round,
}

/// One core's part of one job.
#[derive(Debug)]
pub struct Shard {
    owned: Vec<Owned>,
    /// Chunk id to place in `owned`.
    places: Vec<Option<u32>>,
    arrivals: Arrivals,
    weights: Spans,
    kept: Slab,
    gradients: Gradients,
    optimizer: Optimizer,
    ablate: Ablate,
    learning_rates: LearningRates,
    held: bool,
    taking: Taking,
}

impl Shard {
    /// Allocates and touches the shard's own memory: call it on the thread that owns the core.
    pub fn new(spec: ShardSpec) -> Result<Self, MapError> {
        let ShardSpec { layout, chunks, mut weights, workers, restored, snapshot_every, optimizer, ablate } =
            spec;
        assert_eq!(weights.len(), chunks.len(), "one span a chunk");
        let mut places = vec![None; layout.chunks().len()];
        let mut owned = Vec::with_capacity(chunks.len());
        let (mut kept_elements, mut values) = (0, 0);
        for (place, &id) in chunks.iter().enumerate() {
            let chunk = layout.chunk(id);
            let key = &layout.keys()[chunk.key.index()];
            places[id.index()] = Some(place as u32);
            owned.push(Owned {
                chunk: id,
                span: chunk.span,
                dtype: key.dtype,
                kept: kept_elements,
                values,
                lr_mult: key.lr_mult,
                wd_mult: key.wd_mult,
            });
            let elements = chunk.span.bytes / key.dtype.bytes();
            kept_elements += elements * optimizer.kept_per_element(key.dtype);
            values += elements * (1 + optimizer.state_per_element());
            weights.elements_mut::<u8>(place).fill(0);
        }
        let mut kept = Slab::zeroed("master weights and optimizer state", kept_elements)?;
        kept.as_mut_slice().fill(0.0);
        let (first_round, learning_rates) = match &restored {
            None => (Round(0), LearningRates::new(optimizer.learning_rate())),
            Some(restored) => (restored.round(), restored.learning_rates()),
        };
        let taking = Taking::new(chunks, values, snapshot_every, first_round);
        let mut shard = Shard {
            arrivals: Arrivals::new(owned.len(), workers, first_round),
            owned,
            places,
            weights,
            kept,
            gradients: Gradients::new(workers),
            held: false,
            learning_rates,
            optimizer,
            ablate,
            taking,
        };
        if let Some(restored) = restored {
            shard.restore(&layout, &restored);
        }
        Ok(shard)
    }

    /// Takes weights and state from a checkpoint.
    fn restore(&mut self, layout: &Layout, restored: &Restored) {
        for place in 0..self.owned.len() {
            typed!(self.owned[place].dtype, E => self.restore_in::<E>(place, layout, restored));
        }
    }

    fn restore_in<E: Element>(&mut self, place: usize, layout: &Layout, restored: &Restored) {
        let owned = &self.owned[place];
        let key = layout.chunk(owned.chunk).key;
        let start = (owned.span.offset - layout.key_span(key).offset) / size_of::<E>();
        let elements = owned.span.bytes / size_of::<E>();
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

    /// Takes a snapshot of the state before round `before`, which no chunk may be past: of the chunks
    /// that are there now, of the others when they are.
    pub(crate) fn take_snapshot(&mut self, occasion: Occasion, before: Round) {
        self.taking.begin(occasion, before);
        for place in 0..self.owned.len() {
            if self.arrivals.round(place) == before {
                self.copy_to_snapshot(place, before);
            }
        }
    }

    #[cold]
    fn copy_to_snapshot(&mut self, place: usize, round: Round) {
        typed!(self.owned[place].dtype, E => self.copy_to_snapshot_in::<E>(place, round));
    }

    /// The weights, which are the master's where there is one, then the state.
    fn copy_to_snapshot_in<E: Element>(&mut self, place: usize, round: Round) {
        let owned = &self.owned[place];
        let elements = owned.span.bytes / size_of::<E>();
        let range = owned.values..owned.values + elements * (1 + self.optimizer.state_per_element());
        let kept_elements = elements * self.optimizer.kept_per_element(E::DTYPE);
        if let Some(values) = self.taking.place(round, range) {
            // What is kept is laid out as a snapshot is, but for weights that the window alone has.
            let (weights, kept) = values.split_at_mut(values.len() - kept_elements);
            weights.iter_mut().zip(self.weights.elements::<E>(place)).for_each(|(w, e)| *w = e.to_f32());
            kept.copy_from_slice(&self.kept.as_slice()[owned.kept..][..kept_elements]);
            self.taking.copied();
        }
    }

    /// What came of a snapshot.
    #[inline]
    pub(crate) fn taken(&mut self) -> Option<Taken> {
        self.taking.taken()
    }

    /// A snapshot's part is written, or will not be; its memory comes back.
    pub(crate) fn give_back(&mut self, values: Slab) {
        self.taking.give_back(values);
    }

    /// Number of workers that there may be.
    pub fn workers(&self) -> u32 {
        self.arrivals.roster().ranks_at_most()
    }

    /// Brings in worker `rank`'s gradients; checks every span once, and touches this core's part. The
    /// worker takes part once it is [admitted](Self::admit).
    pub fn add_worker(&mut self, rank: u32, gradients: Arc<RecvWindow>) -> Result<(), SpanError> {
        self.gradients.add(rank, gradients, self.owned.iter().map(|owned| owned.span))
    }

    /// Worker `rank` takes part from round `from` on. [`settle`](Self::settle) afterwards.
    pub fn admit(&mut self, rank: u32, from: Round) {
        self.arrivals.admit(rank, from);
    }

    /// Goes on without worker `rank`: what it pushed in rounds that are not finished does not count.
    /// [`settle`](Self::settle) afterwards.
    ///
    /// # Errors
    /// When not all weights are broadcast: nobody else might have them.
    pub fn remove_worker(&mut self, rank: u32) -> Result<(), String> {
        self.arrivals.remove(rank);
        self.gradients.remove(rank);
        match self.front() {
            Some(Front { lowest: Round(0), .. }) if self.optimizer.keeps_weights() => {
                Err(format!("worker {rank} is gone before all had the first weights"))
            }
            _ => Ok(()),
        }
    }

    /// Finishes no round until [`release`](Self::release), so that the front stands still.
    pub fn hold(&mut self) {
        self.held = true;
    }

    /// Finishes rounds again. [`settle`](Self::settle) afterwards.
    pub fn release(&mut self) {
        self.held = false;
    }

    /// The rounds in flight; `None` where the core owns no chunk of the job.
    pub fn front(&self) -> Option<Front> {
        self.arrivals.front().map(|(lowest, highest)| Front { lowest, highest })
    }

    /// Who is sent the weights of a round: those who take part in the next one.
    #[inline]
    pub fn is_answered(&self, rank: u32, round: Round) -> bool {
        self.arrivals.roster().has(rank, round.next())
    }

    /// The chunks that have finished the round before `from`, and are in `from`.
    pub(crate) fn finished_before(&self, from: Round) -> impl Iterator<Item = Finished> {
        let at_cut = move |&place: &usize| from > Round(0) && self.arrivals.round(place) == from;
        (0..self.owned.len()).filter(at_cut).map(move |place| {
            let Owned { chunk, span, .. } = self.owned[place];
            Finished { chunk, span, round: Round(from.0 - 1) }
        })
    }

    /// Finishes the next chunk, from `place` on, whose slots are all in, and says where to look next.
    /// For when the roster changed, or after a hold.
    pub(crate) fn settle(&mut self, kernels: &Kernels, place: usize) -> Option<(Finished, usize)> {
        let place = (place..self.owned.len()).find(|&place| self.arrivals.is_whole(place))?;
        (!self.held).then(|| (self.finish(kernels, place), place + 1))
    }

    /// Changes the learning rate from a round on.
    pub fn set_learning_rate(&mut self, from: Round, rate: f32) {
        self.learning_rates.change(from, rate);
        // A worker asks between rounds: no chunk is before the round that it has just finished.
        self.learning_rates.forget_before(Round(from.0.saturating_sub(1)));
    }

    /// Worker `rank` pushed a chunk. When it was the last one, the chunk is summed and stepped.
    #[inline]
    pub(crate) fn arrive(
        &mut self,
        kernels: &Kernels,
        rank: u32,
        immediate: Immediate,
    ) -> Result<Option<Finished>, Violation> {
        let chunk = immediate.chunk;
        let place = match self.places.get(chunk.index()) {
            Some(&Some(place)) => place as usize,
            _ => return Err(Violation::NotOurs { chunk, chunks: self.places.len() }),
        };
        match self.arrivals.arrive(place, rank, immediate.round_bits) {
            Ok(whole) => Ok((whole && !self.held).then(|| self.finish(kernels, place))),
            Err(OutOfTurn::Again(round)) => Err(Violation::Again { chunk, round }),
            Err(OutOfTurn::NotYet(round)) => Err(Violation::NotYet { chunk, round }),
            Err(OutOfTurn::OtherRound { expected }) => {
                Err(Violation::OtherRound { chunk, expected, seen: immediate.round_bits })
            }
        }
    }

    /// Sum and step of a chunk whose slots are all in; it is then in its next round.
    fn finish(&mut self, kernels: &Kernels, place: usize) -> Finished {
        let Owned { chunk, span, .. } = self.owned[place];
        let round = self.arrivals.round(place);
        self.step(kernels, place, round);
        self.arrivals.advance(place);
        if self.taking.concerns(round.next()) {
            self.copy_to_snapshot(place, round.next());
        }
        Finished { chunk, span, round }
    }

    fn step(&mut self, kernels: &Kernels, place: usize, round: Round) {
        typed!(self.owned[place].dtype, E => self.step_in::<E>(kernels, place, round));
    }

    fn step_in<E: Element>(&mut self, kernels: &Kernels, place: usize, round: Round) {
        let owned = &self.owned[place];
        let elements = owned.span.bytes / size_of::<E>();
        let roster = self.arrivals.roster();
        // SAFETY: all who take part have pushed this chunk, and are answered after this function.
        let mut slots = unsafe { self.gradients.slots::<E>(owned.span, roster.ranks(round)) };
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
        let mut optimizer = &self.optimizer;
        if self.ablate.aggregate {
            slots = slots.first();
        }
        if self.ablate.optimize {
            if self.ablate.aggregate {
                return;
            }
            (optimizer, kept) = (&Optimizer::Average, &mut []);
        }
        let learning_rate = self.learning_rates.at(round);
        let step = Step::new(optimizer, workers, round, learning_rate, owned.lr_mult, owned.wd_mult);
        kernels.run(optimizer, &step, &slots, weights, kept);
    }
}

/// Weights as a window of this type holds them.
fn round_into<E: Element>(window: &mut [E], weights: &[f32]) {
    window.iter_mut().zip(weights).for_each(|(place, &weight)| *place = E::from_f32(weight));
}
