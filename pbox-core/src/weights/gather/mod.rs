//! The stage between sum and step, where steps wait for a number of the whole gradient: a core keeps the mean of each chunk until
//! those of the round are there at all cores.
//!
//! ```text
//!   last push of a chunk --> its mean, which is kept, and the sum of its squares
//!   last chunk of the core --> its sum
//!   last core --> the hub's part of the whole gradient, which workers pass on
//!   last hub --> the scale --> every chunk steps on its mean, times the scale
//! ```
//!
//! A mean that is kept is decided: a worker that is lost afterwards has its gradient in the step of every chunk. That also costs
//! less than a second pass over the pushes, from three workers on.
//!
//! Owned by the core, and laid out by place.

mod pass_on;
mod teller;

use std::sync::Arc;
use std::task::Waker;

use fabric::{MapError, Slab, Span, Spans};

use super::chunks::Chunk;
use crate::kernels::oracle::BLOCK_BYTES;
use crate::kernels::{Element, Kernels, Slots};
use crate::layout::{Immediate, Round};
use crate::whole::{ExactSum, Found, Told, WholeGradient};
use crate::wire::Wire;
use teller::Teller;

pub(crate) use pass_on::{PassOn, PassSpec};
pub(crate) use teller::Refused;

/// The wait of a mode's steps for more than the pushes of their chunk. A mode implements only the methods that it needs.
pub(crate) trait Gather {
    /// Whether steps wait for anything. Where they do not, the compiler leaves all of it out.
    const WAITS: bool;

    /// Whether a chunk is taken in for a round.
    fn has(&self, _place: usize, _round: Round) -> bool {
        true
    }

    /// Keeps the mean of a chunk's pushes, which are those of `workers` workers.
    fn take_in<E: Element>(
        &mut self,
        _kernels: &Kernels,
        _chunk: &Chunk,
        _place: usize,
        _round: Round,
        _slots: &Slots<E>,
        _workers: u32,
    ) {
    }

    /// Whether a chunk is taken in for a round with a mean, and steps.
    #[inline]
    fn has_mean(&self, _place: usize, _round: Round) -> bool {
        false
    }

    /// Takes a chunk in that has no gradient in its round.
    fn take_nothing(&mut self, _place: usize, _round: Round) {}

    /// Takes in none of the chunks of a round of which the hub's part is not whole: their pushes may change.
    #[inline]
    fn take_back(&mut self) {}

    /// The first round of which the hub's part is not whole.
    #[inline]
    fn open(&self) -> Round {
        Round(0)
    }

    /// Returns what a round's steps do, once it is found.
    fn found(&self, _round: Round) -> Option<Found> {
        None
    }

    /// Whether this core tells the parts of a hub to members, and takes lines.
    #[inline]
    fn tells(&self) -> bool {
        false
    }

    /// Takes the line that all workers are to be told now, if there is one.
    fn untold(&mut self) -> Option<(Immediate, Span)> {
        None
    }

    /// The lines that a worker needs which has seen none, the older first.
    fn lines(&self) -> Vec<(Immediate, Span)> {
        Vec::new()
    }

    /// The lines in the window that a hub above writes for the link of this number.
    fn lines_above(&self, _link: u32) -> Vec<Span> {
        Vec::new()
    }

    /// The place in that window of a line that has come, if the link leads to the hub that it names.
    fn line_above(&self, _link: u32, _line: Immediate) -> Option<Span> {
        None
    }

    /// Takes a line that a worker has passed on, or that a hub above has told.
    fn take_line(&mut self, _line: Immediate, _words: &[u64]) -> Result<(), Refused> {
        Err(Refused::NotOfHub)
    }

    /// Takes the line that is to go up next, if there is one, and the number of its link.
    fn unpassed(&mut self) -> Option<(u32, (Immediate, Span))> {
        None
    }

    /// The links that lead up are others: lines that hubs may still need go up again.
    fn pass_again(&mut self) {}

    /// The last round that is found, at the core that tells.
    fn last_found(&self) -> Option<Told> {
        None
    }

    /// The mean of a chunk that was taken in, and the workers in it.
    fn mean(&self, _chunk: &Chunk, _place: usize) -> (&[f32], u32) {
        (&[], 0)
    }

    /// The chunks begin with this round.
    fn begin_at(&mut self, _first: Round) {}

    /// Whether the core waits for the others.
    #[inline]
    fn awaits_others(&self) -> bool {
        false
    }

    /// Hears of the others. Returns whether the round is found.
    fn hear(&mut self) -> bool {
        false
    }
}

/// Steps that wait for nothing but the pushes of their chunk.
#[derive(Debug)]
pub(crate) struct NoGather;

impl Gather for NoGather {
    const WAITS: bool = false;
}

/// One core's part of the whole gradient.
#[derive(Debug)]
pub(crate) struct GatherNorm {
    whole: Arc<WholeGradient>,
    /// The core's number there.
    core: usize,
    /// One for each place.
    kept: Vec<Kept>,
    /// The squares of the chunks that were taken in for the last round.
    sum: ExactSum,
    /// Means of all chunks, while they wait.
    means: Slab,
    /// The last round in which chunks were taken in.
    round: Round,
    /// How many chunks were taken in for it: all, once the core has given its sum.
    taken: usize,
    /// The round for which it has given its sum, until it has heard what was found.
    awaits: Option<Round>,
    /// Whether the answer is a sum and not a mean.
    of_sum: bool,
    /// The work of the core of the hub's first chunk beside.
    teller: Option<Teller>,
}

/// What is kept of a chunk.
#[derive(Debug)]
struct Kept {
    /// The last round for which it was taken in.
    round: Option<Round>,
    /// The workers in its mean; 0 without a gradient.
    workers: u32,
    /// The start of its mean.
    start: usize,
}

impl GatherNorm {
    /// Allocates and touches memory: call it on the thread that owns the core.
    pub fn new(
        (whole, core): (Arc<WholeGradient>, usize),
        (wire, lines): (&Wire, Spans),
        of_sum: bool,
        chunks: &[Chunk],
        waker: Waker,
    ) -> Result<Self, MapError> {
        whole.wake(core, waker);
        let hub = wire.hub_of(&[chunks[0].id]);
        let teller = hub.map(|hub| Teller::new(hub, wire.hubs().len(), wire.skips(), lines));
        let mut elements = 0;
        let of = |chunk: &Chunk| {
            let start = elements;
            elements += chunk.elements;
            Kept { round: None, workers: 0, start }
        };
        let kept: Vec<Kept> = chunks.iter().map(of).collect();
        let mut means = Slab::zeroed("means that wait for the whole gradient", elements)?;
        means.as_mut_slice().fill(0.0);
        Ok(GatherNorm {
            whole,
            core,
            kept,
            sum: ExactSum::default(),
            means,
            round: Round(0),
            taken: 0,
            awaits: None,
            of_sum,
            teller,
        })
    }

    /// Begins a round, if it is another one: the round before is found.
    fn begin(&mut self, round: Round) {
        if round != self.round {
            (self.round, self.taken, self.sum) = (round, 0, ExactSum::default());
        }
    }

    fn note(&mut self, place: usize, round: Round, workers: u32) {
        let kept = &mut self.kept[place];
        (kept.round, kept.workers) = (Some(round), workers);
        self.taken += 1;
        if self.taken == self.kept.len() {
            self.awaits = Some(round);
            self.whole.give(round, self.core, &self.sum);
        }
    }
}

impl Gather for GatherNorm {
    const WAITS: bool = true;

    fn has(&self, place: usize, round: Round) -> bool {
        self.kept[place].round == Some(round)
    }

    fn take_in<E: Element>(
        &mut self,
        kernels: &Kernels,
        chunk: &Chunk,
        place: usize,
        round: Round,
        slots: &Slots<E>,
        workers: u32,
    ) {
        self.begin(round);
        let means = &mut self.means.as_mut_slice()[self.kept[place].start..][..chunk.elements];
        let of_block = BLOCK_BYTES / size_of::<E>();
        let rescale = if self.of_sum { 1.0 } else { 1.0 / workers as f32 };
        for (block, means) in means.chunks_mut(of_block).enumerate() {
            let seen = kernels.mean(slots, rescale, block * of_block, means);
            self.sum.add(match seen.not_finite {
                0 => seen.squares,
                // Infinite, or no number, as the values are.
                _ => means.iter().map(|&mean| f64::from(mean) * f64::from(mean)).sum(),
            });
        }
        self.note(place, round, workers);
    }

    fn has_mean(&self, place: usize, round: Round) -> bool {
        self.has(place, round) && self.kept[place].workers > 0
    }

    fn take_nothing(&mut self, place: usize, round: Round) {
        self.begin(round);
        self.note(place, round, 0);
    }

    fn take_back(&mut self) {
        let has_given = self.taken == self.kept.len();
        if self.taken > 0 && (!has_given || self.whole.take_back(self.round)) {
            let open = self.round;
            self.kept.iter_mut().for_each(|kept| kept.round = kept.round.filter(|&round| round != open));
            (self.taken, self.sum) = (0, ExactSum::default());
            self.awaits = self.awaits.filter(|&awaited| awaited != open);
        }
    }

    fn open(&self) -> Round {
        if self.whole.is_whole(self.round) { self.round.next() } else { self.round }
    }

    #[inline]
    fn found(&self, round: Round) -> Option<Found> {
        // The core that tells answers nothing before.
        let is_told = self.teller.as_ref().is_none_or(|teller| teller.has_found(round));
        self.whole.found(round).filter(|_| is_told)
    }

    fn tells(&self) -> bool {
        self.teller.is_some()
    }

    fn untold(&mut self) -> Option<(Immediate, Span)> {
        self.teller.as_mut()?.untold()
    }

    fn lines(&self) -> Vec<(Immediate, Span)> {
        self.teller.iter().flat_map(Teller::lines).collect()
    }

    fn take_line(&mut self, line: Immediate, words: &[u64]) -> Result<(), Refused> {
        let round = self.round;
        self.teller.as_mut().map_or(Err(Refused::NotOfHub), |teller| teller.take(line, words, round))
    }

    fn last_found(&self) -> Option<Told> {
        self.teller.as_ref()?.last_found()
    }

    fn mean(&self, chunk: &Chunk, place: usize) -> (&[f32], u32) {
        let kept = &self.kept[place];
        (&self.means.as_slice()[kept.start..][..chunk.elements], kept.workers)
    }

    fn begin_at(&mut self, first: Round) {
        self.round = first;
    }

    #[inline]
    fn awaits_others(&self) -> bool {
        self.awaits.is_some()
    }

    fn hear(&mut self) -> bool {
        let Some(round) = self.awaits else { return false };
        if let Some(teller) = &mut self.teller {
            teller.add(round, &self.whole);
        }
        let is_found = self.found(round).is_some();
        self.awaits = self.awaits.filter(|_| !is_found);
        is_found
    }
}
