//! A shard: one core's part of one job, and what it does when a slot arrives.
//!
//! Owned by the core's thread, which also made it: whatever it allocates and touches lies on the
//! core's NUMA node. Knows no link; `turn` brings arrivals and sends what comes out.

use std::fmt;
use std::sync::Arc;

use fabric::{MapError, RecvWindow, Slab, Span, SpanError, Spans};

use crate::arrival::{Arrivals, Arrived, OutOfTurn};
use crate::chunk::{ChunkId, Immediate, Round};
use crate::kernels::Kernels;
use crate::layout::Layout;
use crate::optimizer::{Ablate, LearningRates, Optimizer};
use crate::oracle::Step;
use crate::slots::Gradients;

/// What a shard is made from.
#[derive(Debug)]
pub struct ShardSpec {
    /// The job's layout.
    pub layout: Arc<Layout>,
    /// The chunks that this core owns, ascending.
    pub chunks: Vec<ChunkId>,
    /// The spans of these chunks in the weights window, in the same order.
    pub weights: Spans,
    /// Number of workers.
    pub workers: u32,
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
        }
    }
}

/// One owned chunk.
#[derive(Debug)]
struct Owned {
    span: Span,
    /// Where its optimizer state begins.
    state: usize,
    lr_mult: f32,
    wd_mult: f32,
}

/// One core's part of one job.
#[derive(Debug)]
pub struct Shard {
    owned: Vec<Owned>,
    /// Chunk id to place in `owned`.
    places: Vec<Option<u32>>,
    arrivals: Arrivals,
    weights: Spans,
    state: Slab,
    gradients: Gradients,
    workers: u32,
    optimizer: Optimizer,
    ablate: Ablate,
    learning_rates: LearningRates,
}

impl Shard {
    /// Allocates and touches the shard's own memory: call it on the thread that owns the core.
    pub fn new(spec: ShardSpec) -> Result<Self, MapError> {
        let ShardSpec { layout, chunks, mut weights, workers, optimizer, ablate } = spec;
        assert_eq!(weights.len(), chunks.len(), "one span a chunk");
        let mut places = vec![None; layout.chunks().len()];
        let mut owned = Vec::with_capacity(chunks.len());
        let mut state_elements = 0;
        for (place, &id) in chunks.iter().enumerate() {
            let chunk = layout.chunk(id);
            let key = &layout.keys()[chunk.key.index()];
            places[id.index()] = Some(place as u32);
            owned.push(Owned {
                span: chunk.span,
                state: state_elements,
                lr_mult: key.lr_mult,
                wd_mult: key.wd_mult,
            });
            state_elements += chunk.span.bytes / size_of::<f32>() * optimizer.state_per_element();
            weights.f32_mut(place).fill(0.0);
        }
        let mut state = Slab::zeroed("optimizer state", state_elements)?;
        state.as_mut_slice().fill(0.0);
        Ok(Shard {
            arrivals: Arrivals::new(owned.len(), workers),
            owned,
            places,
            weights,
            state,
            gradients: Gradients::new(workers),
            workers,
            learning_rates: LearningRates::new(optimizer.learning_rate()),
            optimizer,
            ablate,
        })
    }

    /// Brings in worker `rank`'s gradients; checks every span once, and touches this core's part.
    pub fn add_worker(&mut self, rank: u32, gradients: Arc<RecvWindow>) -> Result<(), SpanError> {
        self.gradients.add(rank, gradients, self.owned.iter().map(|owned| owned.span))
    }

    /// Changes the learning rate from a round on.
    pub fn set_learning_rate(&mut self, from: Round, rate: f32) {
        self.learning_rates.change(from, rate);
        // A worker asks between rounds: no chunk is before the round that it has just finished.
        self.learning_rates.forget_before(Round(from.0.saturating_sub(1)));
    }

    /// Worker `rank` pushed a chunk. When it was the last one, the chunk is summed and stepped, and
    /// what to send to every worker is returned.
    #[inline]
    pub fn arrive(
        &mut self,
        kernels: &Kernels,
        rank: u32,
        immediate: Immediate,
    ) -> Result<Option<(Span, Immediate)>, Violation> {
        let chunk = immediate.chunk;
        let place = match self.places.get(chunk.index()) {
            Some(&Some(place)) => place as usize,
            _ => return Err(Violation::NotOurs { chunk, chunks: self.places.len() }),
        };
        match self.arrivals.arrive(place, rank, immediate.round_bits) {
            Ok(Arrived::Waiting) => Ok(None),
            Ok(Arrived::Complete(round)) => {
                self.finish(kernels, place, round);
                Ok(Some((self.owned[place].span, Immediate::new(chunk, round))))
            }
            Err(OutOfTurn::Again(round)) => Err(Violation::Again { chunk, round }),
            Err(OutOfTurn::OtherRound { expected }) => {
                Err(Violation::OtherRound { chunk, expected, seen: immediate.round_bits })
            }
        }
    }

    /// Sum and step of a chunk whose slots are all in.
    fn finish(&mut self, kernels: &Kernels, place: usize, round: Round) {
        let owned = &self.owned[place];
        let elements = owned.span.bytes / size_of::<f32>();
        // SAFETY: all workers have pushed this chunk, and are answered after this function.
        let mut slots = unsafe { self.gradients.slots(owned.span) };
        let weights = self.weights.f32_mut(place);
        if round == Round(0) && self.optimizer.keeps_weights() {
            // The first round is the broadcast of rank 0's weights.
            weights.copy_from_slice(slots.slot(0));
            return;
        }
        let mut optimizer = &self.optimizer;
        let mut state_elements = elements * optimizer.state_per_element();
        if self.ablate.aggregate {
            slots = slots.first();
        }
        if self.ablate.optimize {
            if self.ablate.aggregate {
                return;
            }
            (optimizer, state_elements) = (&Optimizer::Average, 0);
        }
        let learning_rate = self.learning_rates.at(round);
        let step = Step::new(optimizer, self.workers, round, learning_rate, owned.lr_mult, owned.wd_mult);
        let state = &mut self.state.as_mut_slice()[owned.state..][..state_elements];
        kernels.run(optimizer, &step, &slots, weights, state);
    }
}
