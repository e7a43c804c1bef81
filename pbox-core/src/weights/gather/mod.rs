//! The stage between sum and step, if steps wait for a norm: of the whole gradient, or of a key. A core keeps the mean of
//! each chunk until all cores have the means of the round.
//!
//! ```text
//!   last push of a chunk --> its mean, which is kept, and the sum of its squares
//!   last chunk of the core --> the core's sum
//!   last core --> a *line* with the hub's part of the gradient norm, which workers pass on
//!   last hub --> the scale --> every chunk steps on its mean, times the scale
//! ```
//!
//! A kept mean is final. A worker that is lost afterwards still has its gradient in the step of every chunk. If there
//! are three or more workers, keeping means is also cheaper than reading the pushes a second time.
//!
//! Owned by the core, and laid out in the order of the shard's chunks.

mod norm_sender;
mod pass_on;

use std::ops::Range;
use std::task::Waker;

use fabric::{MapError, Slab, Span, Spans};

use super::chunks::Chunk;
use crate::kernels::oracle::BLOCK_BYTES;
use crate::kernels::{Element, Kernels, Slots};
use crate::layout::{Immediate, Round};
use crate::whole::{ExactSum, Found, NormMean, NormSum, Scope, Sums};
use crate::wire::Wire;
use norm_sender::NormSender;

pub(crate) use norm_sender::Refused;
pub(crate) use pass_on::{PassOn, PassSpec};

/// A mode's rule for steps that wait for more than the pushes of their own chunk. A mode implements only the methods that it
/// needs.
pub(crate) trait Gather {
    /// True if steps wait for more than the pushes of their chunk. If it is false, the compiler removes this whole stage.
    const WAITS: bool;

    /// Whether a chunk has been gathered for a round: its mean is kept, or the chunk has no gradient.
    fn has(&self, _place: usize, _round: Round) -> bool {
        true
    }

    /// Keeps the mean of a chunk's pushes by `workers` workers. The caller then [counts](Self::count_in) the chunk.
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

    /// Whether steps are adapted to the norms of a key. The caller must then [add](Self::add) the squares before it counts
    /// a chunk.
    #[inline]
    fn adapts_keys(&self) -> bool {
        false
    }

    /// Whether steps wait only for the norm of the previous round. Then a step is made at the last push, and no mean is kept.
    #[inline]
    fn steps_at_once(&self) -> bool {
        false
    }

    /// Returns the result of the round before `round`, if the steps of `round` use this result.
    fn found_before(&self, _round: Round) -> Option<Found> {
        None
    }

    /// Returns the sum of squares of the core's chunks in the round before `round`, if steps use the norm of the previous
    /// round.
    fn squares_before(&self, _round: Round) -> Option<ExactSum> {
        None
    }

    /// Returns the running mean of the norms of accepted rounds, if rounds with a spike are skipped.
    fn norm_mean(&self) -> Option<NormMean> {
        None
    }

    /// Adds a chunk's sums of squares to the sums of the chunk's key.
    fn add(&mut self, _place: usize, _squares: &Sums) {}

    /// Counts a chunk as gathered.
    fn count_in(&mut self, _place: usize, _round: Round, _workers: u32) {}

    /// Whether a chunk has been gathered for a round with a mean, so that it will step.
    #[inline]
    fn has_mean(&self, _place: usize, _round: Round) -> bool {
        false
    }

    /// Counts a chunk without a gradient as gathered.
    fn take_nothing(&mut self, _place: usize, _round: Round) {}

    /// Forgets the gathered chunks of a round, unless the hub's part of the norm is complete. Until it is complete, pushes may
    /// change.
    #[inline]
    fn take_back(&mut self) {}

    /// Returns the first round for which the hub's part of the norm is not complete.
    #[inline]
    fn open(&self) -> Round {
        Round(0)
    }

    /// Returns the result of a round's norm, for a chunk's step, once the result is known.
    fn found(&self, _place: usize, _round: Round) -> Option<Found> {
        None
    }

    /// Whether this core sends hubs' parts of the gradient norm to members, and receives the messages with the parts of other
    /// hubs.
    #[inline]
    fn handles_lines(&self) -> bool {
        false
    }

    /// Returns the line (a message) with a hub's part of the norm, if it must now be sent to all workers. Returns each line
    /// once.
    fn next_line_down(&mut self) -> Option<(Immediate, Span)> {
        None
    }

    /// Returns the lines (messages) with the hub's last parts of the norm, the older first. A worker that has seen no line
    /// needs them.
    fn lines(&self) -> Vec<(Immediate, Span)> {
        Vec::new()
    }

    /// Returns the spans of lines with parts of the norm, in the window that a hub above writes over the link of this number.
    fn lines_above(&self, _link: u32) -> Vec<Span> {
        Vec::new()
    }

    /// Returns the span of a line that has arrived in the window of this link. `None` if the link does not lead to the
    /// line's hub.
    fn line_above(&self, _link: u32, _line: Immediate) -> Option<Span> {
        None
    }

    /// Handles a line, a message with a hub's part of the norm. A worker has passed the line on, or a hub above has sent it.
    fn take_line(&mut self, _line: Immediate, _words: &[u64]) -> Result<(), Refused> {
        Err(Refused::NotOfHub)
    }

    /// Returns the next line (a message) that must be sent to a hub above, with the number of the link. `None` if there is no
    /// such line.
    fn next_line_up(&mut self) -> Option<(u32, (Immediate, Span))> {
        None
    }

    /// Makes this core send again the lines that hubs above may still need, because the links to these hubs are new.
    fn pass_again(&mut self) {}

    /// Returns the last round whose result is known. `None` at a core that does not send the hub's parts.
    fn last_found(&self) -> Option<NormSum> {
        None
    }

    /// Returns the mean of a gathered chunk, and the number of workers whose gradients are in the mean.
    fn mean(&self, _chunk: &Chunk, _place: usize) -> (&[f32], u32) {
        (&[], 0)
    }

    /// Begins with round `first`. `squares` is the sum of squares of this hub's gradients in the previous round, and `mean` is
    /// the mean of the norms before. If some hub does not know its sum of squares, the first steps that use this norm are not
    /// scaled at any hub.
    fn begin_at(&mut self, _first: Round, _squares: Option<ExactSum>, _mean: NormMean) {}

    /// Whether the core waits for other cores or hubs.
    #[inline]
    fn awaits_others(&self) -> bool {
        false
    }

    /// Receives the parts of the norm from other cores and hubs. Returns whether chunks may now step.
    fn receive_parts(&mut self) -> bool {
        false
    }

    /// Returns the places of a set of chunks that may step now, because the core [has the result](Self::receive_parts). Returns
    /// each set once.
    fn take_ready(&mut self) -> Option<Range<usize>> {
        None
    }
}

/// The stage of modes whose steps wait only for the pushes of their chunk.
#[derive(Debug)]
pub(crate) struct NoGather;

impl Gather for NoGather {
    const WAITS: bool = false;
}

/// One core's part of the gradient norm.
#[derive(Debug)]
pub(crate) struct GatherNorm {
    /// The gathered values: one entry for the model, or one for each key.
    gathered: Vec<Gathered>,
    /// Whether values are gathered for each key.
    by_key: bool,
    /// Whether steps wait only for the norm of the previous round.
    by_former: bool,
    /// The indices in `gathered` of the entries that [wait](Gathered::awaits) for a result.
    waiting: Vec<u32>,
    /// The indices in `gathered` of the entries that have a new result, and whose chunks may now step.
    ready: Vec<u32>,
    /// The record of each chunk, in the order of the chunks.
    kept: Vec<Kept>,
    /// The means of all chunks while they wait. If no chunk waits, the mean of the chunk that steps.
    means: Slab,
    /// Whether the job's answer is the sum, not the mean.
    of_sum: bool,
    /// The sender of the hub's part of the norm. Only the core that owns the hub's first chunk has it.
    norm_sender: Option<NormSender>,
}

/// The gathered values of one scope: the chunks whose steps wait for each other.
#[derive(Debug)]
struct Gathered {
    scope: Scope,
    /// The place of the scope's first chunk.
    first: usize,
    /// The sums of the squares of the chunks that were gathered in the last round.
    sums: Sums,
    /// The last round in which chunks were gathered.
    round: Round,
    /// The number of chunks that were gathered in the last round. Once all chunks are gathered, the core has given its
    /// sums to the other cores.
    taken: usize,
    /// The round for which the core has given its sums and has no result yet.
    awaits: Option<Round>,
}

impl Gathered {
    /// Begins a round, if it is new. The result of the previous round is then known.
    fn begin(&mut self, round: Round) {
        if round != self.round {
            (self.round, self.taken, self.sums) = (round, 0, Sums::default());
        }
    }

    /// Forgets all gathered chunks, unless the hub's part of the norm is complete. Returns the round of the forgotten chunks.
    fn take_back(&mut self) -> Option<Round> {
        let has_given = self.taken == self.scope.chunks;
        let is_back = self.taken > 0 && (!has_given || self.scope.whole.take_back(self.round));
        is_back.then(|| {
            (self.taken, self.sums) = (0, Sums::default());
            self.awaits = self.awaits.filter(|&awaited| awaited != self.round);
            self.round
        })
    }

    /// Returns the first round for which the hub's part of the norm is not complete.
    fn open(&self) -> Round {
        if self.scope.whole.is_whole(self.round) { self.round.next() } else { self.round }
    }
}

/// The record of a chunk: the position of its mean, and the round and the workers of the mean.
#[derive(Debug)]
struct Kept {
    /// The number of the scope for which the chunk's step waits.
    of: u32,
    /// The last round for which the chunk was gathered.
    round: Option<Round>,
    /// The number of workers in the chunk's mean; 0 if there is no gradient.
    workers: u32,
    /// The start of the chunk's mean.
    start: usize,
}

impl GatherNorm {
    /// Allocates and touches memory: call it on the core's NUMA node.
    pub fn new(
        scopes: Vec<Scope>,
        (wire, lines): (&Wire, Spans),
        of_sum: bool,
        chunks: &[Chunk],
        waker: Waker,
    ) -> Result<Self, MapError> {
        scopes.iter().for_each(|scope| scope.whole.wake(scope.core, waker.clone()));
        let numbers = (0..).zip(&scopes).flat_map(|(of, scope)| std::iter::repeat_n(of, scope.chunks));
        let hub = wire.hub_of(&[chunks[0].id]);
        let norm_sender = hub.map(|hub| NormSender::new(hub, wire.hubs().len(), wire.skips(), lines));
        let by_former = scopes.iter().any(|scope| scope.whole.is_of_former());
        let mut elements = 0;
        let of = |(chunk, of): (&Chunk, u32)| {
            let start = if by_former { 0 } else { elements };
            elements = elements.max(start + chunk.elements);
            Kept { of, round: None, workers: 0, start }
        };
        let kept: Vec<Kept> = chunks.iter().zip(numbers).map(of).collect();
        assert_eq!(kept.len(), chunks.len(), "each chunk is in a scope");
        let mut first = 0;
        let gathered = |scope: Scope| {
            let of =
                Gathered { first, scope, sums: Sums::default(), round: Round(0), taken: 0, awaits: None };
            first += of.scope.chunks;
            of
        };
        let mut means = Slab::zeroed("mean gradients that wait for the norm", elements)?;
        means.as_mut_slice().fill(0.0);
        Ok(GatherNorm {
            by_former,
            by_key: scopes.iter().any(|scope| scope.whole.is_of_key()),
            waiting: Vec::with_capacity(scopes.len()),
            ready: Vec::with_capacity(scopes.len()),
            gathered: scopes.into_iter().map(gathered).collect(),
            kept,
            means,
            of_sum,
            norm_sender,
        })
    }

    /// Begins after `round`, in which this hub's gradients had this sum of squares. The first steps use the norm of `round`.
    /// The first round of a job has no such norm.
    fn begin_after(&mut self, round: Round, squares: ExactSum) {
        let GatherNorm { gathered, waiting, .. } = self;
        let Gathered { scope, sums, round: last, taken, awaits, .. } = &mut gathered[0];
        let of_hub = if scope.core == 0 { squares } else { ExactSum::default() };
        (*last, *sums, *taken) = (round, [of_hub, ExactSum::default()], scope.chunks);
        if scope.whole.found(round).is_none() {
            if awaits.replace(round).is_none() {
                waiting.push(0);
            }
            scope.whole.give(round, scope.core, sums);
        }
    }

    fn of(&mut self, place: usize) -> &mut Gathered {
        &mut self.gathered[self.kept[place].of as usize]
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
        let GatherNorm { gathered, by_key, kept, means, of_sum, .. } = self;
        let Kept { of, start, .. } = kept[place];
        let gathered = &mut gathered[of as usize];
        gathered.begin(round);
        let means = &mut means.as_mut_slice()[start..][..chunk.elements];
        let of_block = BLOCK_BYTES / size_of::<E>();
        let rescale = if *of_sum { 1.0 } else { 1.0 / workers as f32 };
        for (block, means) in means.chunks_mut(of_block).enumerate() {
            let seen = kernels.mean(slots, rescale, block * of_block, means);
            if *by_key {
                continue; // the caller adds the squares
            }
            gathered.sums[0].add(match seen.not_finite {
                0 => seen.squares,
                // The measured squares leave out values that are not finite. If there are such values, the sum must be infinite
                // or NaN, so all squares are added again here.
                _ => means.iter().map(|&mean| f64::from(mean) * f64::from(mean)).sum(),
            });
        }
    }

    fn adapts_keys(&self) -> bool {
        self.by_key
    }

    #[inline]
    fn steps_at_once(&self) -> bool {
        self.by_former
    }

    fn found_before(&self, round: Round) -> Option<Found> {
        self.gathered[0].scope.whole.found_before(round)
    }

    fn squares_before(&self, round: Round) -> Option<ExactSum> {
        let Gathered { round: last, sums, .. } = &self.gathered[0];
        let is_before = *last == Round(round.0.wrapping_sub(1));
        (self.by_former && is_before).then(|| sums[0])
    }

    fn norm_mean(&self) -> Option<NormMean> {
        self.gathered[0].scope.whole.norm_mean()
    }

    fn add(&mut self, place: usize, squares: &Sums) {
        self.of(place).sums.iter_mut().zip(squares).for_each(|(sum, more)| sum.join(more));
    }

    fn count_in(&mut self, place: usize, round: Round, workers: u32) {
        let GatherNorm { gathered, waiting, kept, .. } = self;
        let kept = &mut kept[place];
        (kept.round, kept.workers) = (Some(round), workers);
        let Gathered { scope, sums, taken, awaits, .. } = &mut gathered[kept.of as usize];
        *taken += 1;
        if *taken == scope.chunks {
            if awaits.replace(round).is_none() {
                waiting.push(kept.of);
            }
            scope.whole.give(round, scope.core, sums);
        }
    }

    fn has_mean(&self, place: usize, round: Round) -> bool {
        self.has(place, round) && self.kept[place].workers > 0
    }

    fn take_nothing(&mut self, place: usize, round: Round) {
        self.of(place).begin(round);
        self.count_in(place, round, 0);
    }

    fn take_back(&mut self) {
        if self.by_former {
            return; // a gathered chunk has already stepped
        }
        let GatherNorm { gathered, waiting, kept, .. } = self;
        let back: Vec<Option<Round>> = gathered.iter_mut().map(Gathered::take_back).collect();
        for kept in kept {
            kept.round = kept.round.filter(|&round| back[kept.of as usize] != Some(round));
        }
        waiting.retain(|&of| gathered[of as usize].awaits.is_some());
    }

    fn open(&self) -> Round {
        if self.by_former {
            return Round(0); // steps need only the norm of the round before: a gathered chunk has already stepped
        }
        self.gathered.iter().map(Gathered::open).max().unwrap_or_default()
    }

    #[inline]
    fn found(&self, place: usize, round: Round) -> Option<Found> {
        // The core that sends the hub's part of the norm answers no chunk before it has sent this part.
        let is_sent = self.norm_sender.as_ref().is_none_or(|norm_sender| norm_sender.has_found(round));
        self.gathered[self.kept[place].of as usize].scope.whole.found(round).filter(|_| is_sent)
    }

    fn handles_lines(&self) -> bool {
        self.norm_sender.is_some()
    }

    fn next_line_down(&mut self) -> Option<(Immediate, Span)> {
        self.norm_sender.as_mut()?.next_line_down()
    }

    fn lines(&self) -> Vec<(Immediate, Span)> {
        self.norm_sender.iter().flat_map(NormSender::lines).collect()
    }

    fn take_line(&mut self, line: Immediate, words: &[u64]) -> Result<(), Refused> {
        let round = self.gathered[0].round;
        self.norm_sender
            .as_mut()
            .map_or(Err(Refused::NotOfHub), |norm_sender| norm_sender.take(line, words, round))
    }

    fn last_found(&self) -> Option<NormSum> {
        self.norm_sender.as_ref()?.last_found()
    }

    fn mean(&self, chunk: &Chunk, place: usize) -> (&[f32], u32) {
        let kept = &self.kept[place];
        (&self.means.as_slice()[kept.start..][..chunk.elements], kept.workers)
    }

    fn begin_at(&mut self, first: Round, squares: Option<ExactSum>, mean: NormMean) {
        for each in &mut self.gathered {
            each.round = first;
            each.scope.whole.begin_with(mean);
        }
        if self.by_former {
            self.begin_after(Round(first.0.wrapping_sub(1)), squares.unwrap_or(ExactSum::UNKNOWN));
        }
    }

    #[inline]
    fn awaits_others(&self) -> bool {
        !self.waiting.is_empty()
    }

    fn receive_parts(&mut self) -> bool {
        let GatherNorm { gathered, waiting, ready, norm_sender, .. } = self;
        let before = waiting.len();
        waiting.retain(|&of| {
            let Gathered { scope, awaits, .. } = &mut gathered[of as usize];
            let Some(round) = *awaits else { return false };
            let mut is_sent = true;
            if let Some(norm_sender) = norm_sender {
                norm_sender.add(round, &scope.whole);
                is_sent = norm_sender.has_found(round); // this core answers no chunk before
            }
            let is_found = is_sent && scope.whole.found(round).is_some();
            *awaits = awaits.filter(|_| !is_found);
            ready.extend(is_found.then_some(of));
            !is_found
        });
        waiting.len() < before
    }

    fn take_ready(&mut self) -> Option<Range<usize>> {
        let Gathered { scope, first, .. } = &self.gathered[self.ready.pop()? as usize];
        Some(*first..first + scope.chunks)
    }
}
