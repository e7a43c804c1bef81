//! What a core keeps of a job with Slim-DP beside its optimizer's state, and how its answers come of it.
//!
//! Owned by the core, as a part of its values, and laid out by place. Each worker has a weights window of its own:
//! what it explored, nobody else did.
//!
//! ```text
//!   push of worker 0 --+
//!   push of worker 1 --+-- sum --step--> weights, f32, that only the hub sees
//!                                           | core and what worker 0 explored --> its window
//!                                           | core and what worker 1 explored --> its window
//! ```

use std::ops::Range;
use std::sync::Arc;
use std::task::Waker;

use fabric::{MapError, Span};
use zerocopy::{FromBytes, IntoBytes};

use crate::kernels::{Element, Kernels, typed};
use crate::layout::{ChunkId, Round};
use crate::weights::HubWeights;
use crate::wire::frame::{self, FrameError, HEADER_BYTES, Kind};
use crate::wire::{Frames, Framing};

use super::board::Board;
use super::explorer::Drawer;
use super::payload::{self, Push};
use super::selector::Selector;
use super::{SlimDp, set};

/// What a job's cores are selected by.
#[derive(Debug)]
pub(crate) struct Selection {
    pub slim: SlimDp,
    /// The first round that is trained in.
    pub first: Round,
    pub board: Arc<Board>,
}

/// A shard's chunks in a job with Slim-DP.
#[derive(Debug)]
pub(crate) struct Slimmed {
    slim: SlimDp,
    framing: Arc<Framing>,
    chunks: Vec<Chunk>,
    weights: HubWeights,
    /// The cores of all chunks.
    cores: Vec<u64>,
    selector: Selector,
    /// Sum of a chunk's pushes, then their mean.
    sum: Vec<f32>,
    /// A chunk's weights in its key's type.
    rounded: Vec<u64>,
    /// Whose pushes are in the sum, and what each has pushed: a set where it is not all.
    pushed: Vec<Pushed>,
    /// The core of the chunk that was stepped last came into force with that.
    is_new: bool,
    /// Of the chunk whose selection goes on.
    scratch: Vec<f32>,
}

#[derive(Debug)]
struct Chunk {
    id: ChunkId,
    /// Its words among the cores.
    core: Range<usize>,
    signature: u64,
    /// A core was selected.
    has_core: bool,
    /// Payload of the last answer to each worker.
    answers: Vec<u32>,
}

#[derive(Debug)]
struct Pushed {
    rank: u32,
    whole: bool,
    set: Vec<u64>,
}

impl Slimmed {
    /// For these chunks, of which there is at least one. Allocates and touches memory: on the thread that owns the core.
    pub fn new(
        framing: &Arc<Framing>,
        ids: &[ChunkId],
        workers: u32,
        Selection { slim, first, board }: Selection,
    ) -> Result<Self, MapError> {
        let (mut words, mut longest) = (0, 0);
        let mut chunks = Vec::with_capacity(ids.len());
        for &id in ids {
            let of_chunk = framing.frames(id).elements;
            let core = words..words + set::words(of_chunk);
            (words, longest) = (core.end, longest.max(of_chunk));
            let answers = vec![0; workers as usize];
            chunks.push(Chunk { id, core, signature: 0, has_core: false, answers });
        }
        let weights = HubWeights::new(ids.iter().map(|&id| framing.frames(id).elements))?;
        let of_chunks = ids.iter().map(|&id| (id.index(), framing.frames(id).elements));
        let selector = Selector::new(slim, first, board, of_chunks)?;
        let pushed = |_| Pushed { rank: 0, whole: false, set: vec![0; set::words(longest)] };
        Ok(Slimmed {
            slim,
            framing: Arc::clone(framing),
            chunks,
            weights,
            cores: vec![0; words],
            selector,
            sum: vec![0.0; longest],
            rounded: vec![0; longest.div_ceil(2)],
            pushed: (0..workers).map(pushed).collect(),
            is_new: false,
            scratch: Vec::with_capacity(longest),
        })
    }

    fn frames(&self, place: usize) -> Frames {
        *self.framing.frames(self.chunks[place].id)
    }

    /// The weights.
    pub fn weights(&self) -> &HubWeights {
        &self.weights
    }

    /// The same, to write.
    pub fn weights_mut(&mut self) -> &mut HubWeights {
        &mut self.weights
    }

    /// Begins with these values as weights: a broadcast's raw frame. One that is torn begins with zeros.
    pub fn begin(&mut self, place: usize, bytes: &[u8]) {
        self.frames(place).read_raw(bytes, self.weights.of_mut(place));
    }

    /// The job trains from round `first` on.
    pub fn begin_at(&mut self, first: Round) {
        self.selector.begin_at(first);
    }

    /// A raw frame of the weights, in a worker's window.
    pub fn show_weights(&self, place: usize, window: &mut [u8]) {
        self.frames(place).write_raw(self.weights.of(place), window);
    }

    /// Checks a worker's push of a chunk; false where it is of a core that the hub does not have, and must come again.
    pub fn check_push(&self, place: usize, round: Round, bytes: &[u8]) -> Result<bool, FrameError> {
        let (frames, chunk) = (self.frames(place), &self.chunks[place]);
        if self.framing.push_kind(round) == Kind::Raw {
            return frames.raw(bytes).map(|_| true);
        }
        let core = chunk.has_core.then(|| (&self.cores[chunk.core.clone()], chunk.signature));
        let push = self.slim.check_push(frames.elements, frames.dtype.bytes(), core, frames.coded(bytes)?)?;
        Ok(push != Push::OtherCore)
    }

    /// A sum of pushes begins: each adds to it.
    pub fn begin_sum(&mut self, place: usize) {
        let elements = self.frames(place).elements;
        self.sum[..elements].fill(0.0);
    }

    /// Adds the push of worker `rank`, as the so-manieth; `bytes` are the chunk's in its window. Total: they may have
    /// changed since they were checked.
    pub fn add(&mut self, place: usize, number: usize, rank: u32, round: Round, bytes: &[u8]) {
        let frames = self.frames(place);
        let Chunk { id, ref core, .. } = self.chunks[place];
        let (core, sum) = (&self.cores[core.clone()], &mut self.sum[..frames.elements]);
        let pushed = &mut self.pushed[number];
        let set = &mut pushed.set[..core.len()];
        let drawer = Drawer { seed: self.framing.seed(), rank, round, chunk: id };
        let payload = frames.coded(bytes).unwrap_or_default();
        pushed.rank = rank;
        pushed.whole = typed!(frames.dtype, E => self.slim.add_push::<E>(core, set, drawer, payload, sum));
    }

    /// The sum, and where its step goes.
    pub fn step_parts(&mut self, place: usize) -> (&[f32], &mut [f32]) {
        (&self.sum[..self.frames(place).elements], self.weights.of_mut(place))
    }

    /// After the step of a round with the pushes of so many workers: another core comes into force where one was
    /// selected, and the chunk is noted where the round selects.
    pub fn stepped(&mut self, kernels: &Kernels, place: usize, round: Round, workers: u32) {
        let frames = self.frames(place);
        let chunk = &mut self.chunks[place];
        let weights = self.weights.of(place);
        let mean = &mut self.sum[..frames.elements];
        let share = 1.0 / workers as f32;
        mean.iter_mut().for_each(|sum| *sum *= share);
        let core = &mut self.cores[chunk.core.clone()];
        self.is_new = self.selector.stepped(place, round, weights, mean, core);
        if self.is_new {
            (chunk.signature, chunk.has_core) = (set::signature(core), true);
        }
        typed!(frames.dtype, E => {
            kernels.narrow(weights, rounded_mut::<E>(&mut self.rounded, frames.elements));
        });
    }

    /// Writes the answer to the so-manieth push into the window of its [worker](Self::rank).
    pub fn answer(&mut self, place: usize, number: usize, window: &mut [u8]) {
        let frames = self.frames(place);
        let chunk = &mut self.chunks[place];
        let core = &self.cores[chunk.core.clone()];
        let Pushed { rank, whole, ref set } = self.pushed[number];
        let set = (!whole).then_some(&set[..core.len()]);
        // Who pushes all may do so because it has no core.
        let brings = chunk.has_core && (self.is_new || whole);
        let room = &mut window[HEADER_BYTES..frames.coded_bytes];
        let bytes = typed!(frames.dtype, E => {
            let weights = rounded_mut::<E>(&mut self.rounded, frames.elements);
            payload::answer::<E>(set, core, chunk.signature, brings, weights, room)
        });
        frame::write_header(window, Kind::Coded, bytes);
        chunk.answers[rank as usize] = bytes as u32;
    }

    /// The worker of the so-manieth push that was added.
    pub fn rank(&self, number: usize) -> u32 {
        self.pushed[number].rank
    }

    /// Where the frame is that worker `rank` is sent for a round, which takes part from `first` on.
    pub fn frame(&self, place: usize, rank: u32, round: Round, first: Round) -> Span {
        let frames = self.frames(place);
        match self.framing.answer_kind(round, first) {
            Kind::Raw => frames.frame(Kind::Raw, frames.value_bytes()),
            Kind::Coded => frames.frame(Kind::Coded, self.chunks[place].answers[rank as usize] as usize),
        }
    }

    /// Whether a chunk that has all pushes of a round must wait for a selection.
    pub fn is_awaited(&self, round: Round) -> bool {
        self.selector.is_awaited(round)
    }

    /// What to wake the core with, when a selection can go on.
    pub fn wake_for_selections(&self, waker: Waker) {
        self.selector.wake_with(waker);
    }

    /// Whether there may be something to do between turns.
    #[inline]
    pub fn is_selecting(&self) -> bool {
        self.selector.is_selecting()
    }

    /// Goes on with a selection by one chunk; whether it did.
    pub fn select(&mut self) -> bool {
        let Slimmed { selector, weights, scratch, .. } = self;
        let read = |place: usize, values: &mut Vec<f32>| {
            values.clear();
            values.extend_from_slice(weights.of(place));
        };
        selector.go_on(read, scratch)
    }
}

fn rounded_mut<E: Element>(words: &mut [u64], elements: usize) -> &mut [E] {
    let bytes = &mut words.as_mut_bytes()[..elements * size_of::<E>()];
    <[E]>::mut_from_bytes(bytes).expect("whole elements, on 8 bytes")
}
