//! A shard: one core's part of one job, and what it does when a slot arrives.
//!
//! Owned by the core's thread, which also made it: whatever it allocates and touches lies on the
//! core's NUMA node. Knows no link; `turn` brings arrivals and sends what comes out.
//!
//! A shard is *held* while the hub looks for a cut: arrivals are noted, but no chunk is stepped and nobody
//! is answered, so that no round in flight is overtaken (`docs/architecture.md`, Cuts).

use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::Arc;
use std::task::Waker;

use fabric::{MapError, RecvWindow, Slab, Span, SpanError, Spans};

use super::pace::{Front, Pace};
use super::violation::Violation;
use crate::job::{Compression, JobTerms, OnLoss};
use crate::kernels::Kernels;
use crate::layout::{ChunkId, Immediate, KeyId, Layout, Round};
use crate::slim::{Board, Selection};
use crate::snapshot::{Capture, Occasion, Restored, Taken};
use crate::weights::{Owned, Values};
use crate::wire::Wire;

/// What a shard is made from.
#[derive(Debug)]
pub struct ShardSpec {
    /// The job's terms.
    pub terms: Arc<JobTerms>,
    /// The job's layout, and what crosses of it.
    pub wire: Wire,
    /// The chunks that this core owns, ascending.
    pub chunks: Vec<ChunkId>,
    /// The spans of these chunks in the job's weights, in the same order: with BSP the window that all
    /// workers read, otherwise one that only the hub sees.
    pub weights: Spans,
    /// In a job with Slim-DP: where the hub's cores meet to select what matters.
    board: Option<Arc<Board>>,
    /// The state to go on with; without one, weights and state are zero and round 0 begins.
    pub restored: Option<Arc<Restored>>,
    /// A snapshot is due every so many rounds.
    pub snapshot_every: Option<NonZeroU32>,
}

impl ShardSpec {
    /// The shards of a job's cores: each core with its chunks, ascending, and its part of the job's weights window.
    pub fn of_cores(
        terms: &Arc<JobTerms>,
        wire: &Wire,
        cores: impl IntoIterator<Item = (Vec<ChunkId>, Spans)>,
    ) -> Vec<ShardSpec> {
        let spec = |(chunks, weights)| ShardSpec {
            terms: Arc::clone(terms),
            wire: wire.clone(),
            chunks,
            weights,
            board: None,
            restored: None,
            snapshot_every: None,
        };
        let mut specs: Vec<ShardSpec> = cores.into_iter().map(spec).collect();
        if let Some(Compression::Slim(slim)) = &terms.level.compression {
            let parts = specs.iter().filter(|spec| !spec.chunks.is_empty()).count();
            let elements =
                |chunk: &ChunkId| wire.framing().expect("compressed").frames(*chunk).elements as u64;
            let all = specs.iter().flat_map(|spec| &spec.chunks).map(elements).sum();
            let board = Arc::new(Board::new(slim, parts, wire.layout().chunks().len(), all));
            specs.iter_mut().for_each(|spec| spec.board = Some(Arc::clone(&board)));
        }
        specs
    }
}

/// A chunk with new weights for somebody.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finished {
    /// Where it is in the shard.
    pub place: usize,
    pub bytes: usize,
    /// Steps that were made.
    pub steps: u32,
    /// Rounds that ended without a step, because nobody is left who could push them.
    pub skipped: u32,
    pub to: Recipients,
}

/// Who is sent a chunk's weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Recipients {
    /// Everybody who takes part in the round after this one, which is over.
    All(Round),
    /// Those of these ranks that [`Shard::allow`] names.
    Waiting(Range<u32>),
}

/// What came of a push.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Arrived {
    /// It waits for others.
    Noted,
    /// It was the last one.
    Finished(Finished),
    /// It cannot be read here, and does not count: the worker is to push the chunk again for this round.
    Unread(Round),
}

/// One core's part of one job.
#[derive(Debug)]
pub struct Shard {
    /// Chunk id to place.
    places: Vec<Option<u32>>,
    /// Number of chunks.
    chunks: usize,
    /// By place.
    keys: Vec<KeyId>,
    terms: Arc<JobTerms>,
    pace: Pace,
    values: Values,
    held: bool,
    /// A worker was lost before all had the first weights: it is held for good.
    deserted: bool,
    capture: Capture,
}

impl Shard {
    /// Allocates and touches the shard's own memory: call it on the thread that owns the core.
    pub fn new(spec: ShardSpec) -> Result<Self, MapError> {
        let ShardSpec { terms, wire, chunks, weights, board, restored, snapshot_every } = spec;
        let layout = wire.layout();
        let mut places = vec![None; layout.chunks().len()];
        (0..).zip(&chunks).for_each(|(place, id)| places[id.index()] = Some(place));
        let first = restored.as_ref().map_or(Round(0), |restored| restored.round());
        let selection = match (terms.level.compression, board) {
            (Some(Compression::Slim(slim)), Some(board)) => {
                Some(Selection { slim, first: first.max(Round(1)), board })
            }
            _ => None,
        };
        let mut values = Values::new(&wire, &chunks, weights, &terms, selection)?;
        if let Some(restored) = &restored {
            values.restore(layout, restored);
        }
        let snapshot_every = snapshot_every.filter(|_| terms.optimizer.keeps_weights());
        Ok(Shard {
            places,
            chunks: chunks.len(),
            keys: chunks.iter().map(|&id| layout.chunk(id).key).collect(),
            pace: Pace::new(terms.level.consistency, chunks.len(), terms.workers, first),
            terms,
            held: false,
            deserted: false,
            capture: Capture::new(chunks, values.snapshot_elements(), snapshot_every, first),
            values,
        })
    }

    /// Begins with a state that was brought after the shard was made. Nobody takes part yet.
    pub(crate) fn restore(&mut self, layout: &Layout, restored: &Restored) {
        let first = restored.round();
        self.values.restore(layout, restored);
        self.pace = Pace::new(self.terms.level.consistency, self.chunks, self.workers(), first);
        self.capture.begin_at(first);
    }

    /// Takes a snapshot of the state before round `before`, which no chunk may be past: of the chunks
    /// that are there now, of the others when they are.
    pub(crate) fn take_snapshot(&mut self, occasion: Occasion, before: Round) {
        self.capture.begin(occasion, before);
        for place in 0..self.chunks {
            if self.round(place) == before {
                self.copy_to_snapshot(place, before);
            }
        }
    }

    /// A chunk has come to a round.
    #[inline]
    fn reach(&mut self, place: usize, round: Round) {
        if self.capture.concerns(round) {
            self.copy_to_snapshot(place, round);
        }
    }

    #[cold]
    fn copy_to_snapshot(&mut self, place: usize, round: Round) {
        if let Some(values) = self.capture.place(round, self.values.in_snapshot(place)) {
            self.values.copy_to_snapshot(place, values);
            self.capture.copied();
        }
    }

    /// Whether anything came of a snapshot.
    #[inline]
    pub(crate) fn has_taken(&self) -> bool {
        self.capture.has_taken()
    }

    /// What came of a snapshot.
    pub(crate) fn taken(&mut self) -> Option<Taken> {
        self.capture.taken()
    }

    /// A snapshot's part is written, or will not be; its memory comes back, unless it is lost.
    pub(crate) fn give_back(&mut self, values: Option<Slab>) {
        self.capture.give_back(values);
    }

    /// The job's terms.
    pub(crate) fn terms(&self) -> &JobTerms {
        &self.terms
    }

    /// Whether the job goes on without workers that are lost.
    pub(crate) fn goes_on(&self) -> bool {
        self.terms.on_loss == OnLoss::Continue
    }

    /// The keys of its chunks, by place.
    pub(crate) fn keys(&self) -> &[KeyId] {
        &self.keys
    }

    /// Where a chunk is, if it is here.
    pub(crate) fn place(&self, chunk: ChunkId) -> Option<usize> {
        let place = self.places.get(chunk.index()).copied().flatten()?;
        Some(place as usize)
    }

    /// The chunk at a place.
    #[inline]
    pub(crate) fn chunk(&self, place: usize) -> (ChunkId, Span) {
        let &Owned { chunk, span, .. } = self.values.owned(place);
        (chunk, span)
    }

    /// What of a chunk is posted to worker `rank` as the answer of a round.
    #[inline]
    pub(crate) fn answer_span(&self, place: usize, rank: u32, round: Round) -> Span {
        let first = self.pace.first_round(rank);
        self.values.answer_span(place, rank, round, first)
    }

    /// A worker that has no weights yet is to be sent those of a chunk that is between two rounds.
    pub(crate) fn show_newcomers(&mut self, place: usize) {
        self.values.show_newcomers(place);
    }

    /// Number of workers that there may be.
    pub fn workers(&self) -> u32 {
        self.pace.ranks_at_most()
    }

    /// Brings in worker `rank`'s gradients and, unless all read the same, the spans of this core's chunks
    /// in its own weights window; checks every span once, and touches this core's part. The worker takes
    /// part once it is [admitted](Self::admit).
    pub fn add_worker(
        &mut self,
        rank: u32,
        gradients: Arc<RecvWindow>,
        weights: Option<Spans>,
    ) -> Result<(), SpanError> {
        let apart = matches!(self.pace, Pace::Alone(_)) || self.values.answers_apart();
        assert_eq!(weights.is_some(), apart, "a weights window for each worker that is answered apart");
        self.values.add_worker(rank, gradients, weights)
    }

    /// Worker `rank` takes part from round `from` on. `settle` afterwards.
    pub fn admit(&mut self, rank: u32, from: Round) {
        self.pace.admit(rank, from);
    }

    /// Goes on without worker `rank`: what it pushed that is not stepped does not count.
    /// `settle` afterwards.
    ///
    /// # Errors
    /// When not all weights are broadcast: nobody else might have them. Nothing is stepped then, and nobody answered,
    /// any more: who is left would broadcast other weights.
    pub fn remove_worker(&mut self, rank: u32) -> Result<(), String> {
        self.pace.remove(rank);
        self.values.remove_worker(rank);
        match self.front() {
            Some(Front { lowest: Round(0), .. }) if self.values.optimizer().keeps_weights() => {
                (self.held, self.deserted) = (true, true);
                Err(format!("worker {rank} is gone before all had the first weights"))
            }
            _ => Ok(()),
        }
    }

    /// Steps nothing and answers nobody until [`release`](Self::release), so that the front stands still.
    pub fn hold(&mut self) {
        self.held = true;
    }

    /// Goes on. `settle` afterwards.
    pub fn release(&mut self) {
        self.held = self.deserted;
    }

    /// The rounds in flight; `None` where the core owns no chunk of the job.
    pub fn front(&self) -> Option<Front> {
        self.pace.front()
    }

    /// The round in flight of the chunk at a place.
    pub(crate) fn round(&self, place: usize) -> Round {
        self.pace.round(place)
    }

    /// Who is sent the weights of a round that is over for all: those who take part in the next one.
    #[inline]
    pub fn is_answered(&self, rank: u32, round: Round) -> bool {
        self.pace.is_answered(rank, round)
    }

    /// Where worker `rank` waits for its answer of a chunk, and is not too far ahead: the round that it had pushed. It is
    /// to be [answered](Self::answer).
    #[inline]
    pub(crate) fn allow(&mut self, place: usize, rank: u32) -> Option<Round> {
        self.pace.allow(place, rank)
    }

    /// Worker `rank` is sent a chunk that it may have: from now on it may push it, and its weights as they are now are
    /// in the window that it reads.
    #[inline]
    pub(crate) fn answer(&mut self, place: usize, rank: u32) {
        if let Pace::Alone(clocks) = &mut self.pace {
            clocks.answer(place, rank);
            self.values.show(place, rank);
        }
    }

    /// The round that worker `rank` pushes next of a chunk whose last push may be answered.
    #[inline]
    pub(crate) fn next_round(&self, place: usize, rank: u32) -> Round {
        self.pace.next_round(place, rank)
    }

    /// Where the chunks are that have finished the round before `from` for all, and are in `from`. Those who come to
    /// a job where each has its own pace are answered by `settle`.
    pub(crate) fn finished_before(&self, from: Round) -> impl Iterator<Item = usize> {
        (0..self.chunks).filter(move |&place| self.pace.has_finished_before(place, from))
    }

    /// Does for the next chunk, from `place` on, what it has been held from or what follows from a changed
    /// roster, and says where to look next.
    pub(crate) fn settle(&mut self, kernels: &Kernels, place: usize) -> Option<(Finished, usize)> {
        if self.held {
            return None;
        }
        (place..self.chunks).find_map(|place| Some((self.settle_chunk(kernels, place)?, place + 1)))
    }

    fn settle_chunk(&mut self, kernels: &Kernels, place: usize) -> Option<Finished> {
        let (former, now, ranks) = match &mut self.pace {
            Pace::Together(arrivals) if arrivals.is_whole(place) => {
                let is_awaited = self.values.is_awaited(arrivals.round(place));
                return (!is_awaited).then(|| self.finish_round(kernels, place));
            }
            Pace::Together(_) => return self.skip_deserted(place),
            Pace::Alone(clocks) => (clocks.round(place), clocks.settle(place), clocks.ranks_at_most()),
        };
        // Without its slowest worker a chunk may pass several rounds at once.
        (former.0 + 1..=now.0).for_each(|round| self.reach(place, Round(round)));
        let mut finished = self.finished(place, 0, Recipients::Waiting(0..ranks));
        for rank in 0..ranks {
            finished.steps += u32::from(self.step_alone(kernels, place, rank).is_some());
        }
        let Pace::Alone(clocks) = &self.pace else { return None };
        (finished.steps > 0 || (0..ranks).any(|rank| clocks.may_answer(place, rank))).then_some(finished)
    }

    /// All who took part in a chunk's round are gone, and others wait for its end, who come after it: they are
    /// sent the weights as they are.
    fn skip_deserted(&mut self, place: usize) -> Option<Finished> {
        let Pace::Together(arrivals) = &mut self.pace else { return None };
        let skipped = arrivals.skip_deserted(place);
        let round = arrivals.round(place);
        if skipped > 0 {
            self.values.show_newcomers(place);
        }
        (round.0 - skipped + 1..=round.0).for_each(|round| self.reach(place, Round(round)));
        let last = Round(round.0.wrapping_sub(1));
        let finished = self.finished(place, 0, Recipients::All(last));
        (skipped > 0).then_some(Finished { skipped, ..finished })
    }

    /// Changes the learning rate from a round on.
    pub fn set_learning_rate(&mut self, from: Round, rate: f32) {
        let oldest = self.pace.oldest(from);
        let rates = self.values.learning_rates();
        rates.change(from, rate);
        rates.forget_before(oldest);
    }

    /// Worker `rank` pushed a chunk. When it was the last one, or steps alone, the chunk is summed and
    /// stepped.
    #[inline]
    pub(crate) fn arrive(
        &mut self,
        kernels: &Kernels,
        rank: u32,
        immediate: Immediate,
    ) -> Result<Arrived, Violation> {
        let chunk = immediate.chunk;
        let Some(place) = self.place(chunk) else {
            return Err(Violation::NotOurs { chunk, chunks: self.places.len() });
        };
        let wrong = |wrong| Violation::new(immediate, wrong);
        let round = self.pace.check(place, rank, immediate.round_bits).map_err(wrong)?;
        let lies = |why| Violation::Frame { chunk, round, why };
        if !self.values.check_push(place, rank, round).map_err(lies)? {
            return Ok(Arrived::Unread(round));
        }
        let finished = match &mut self.pace {
            Pace::Together(arrivals) => {
                let whole = arrivals.note(place, rank) && !self.held && !self.values.is_awaited(round);
                whole.then(|| self.finish_round(kernels, place))
            }
            Pace::Alone(clocks) => {
                clocks.note(place, rank);
                if self.held { None } else { self.finish_push(kernels, place, rank) }
            }
        };
        Ok(finished.map_or(Arrived::Noted, Arrived::Finished))
    }

    /// Where selections of Slim-DP's core concern other cores, too, what to wake this one with.
    pub(crate) fn wake_for_selections(&self, waker: Waker) {
        self.values.wake_for_selections(waker);
    }

    /// Whether a selection of Slim-DP's core may go on between turns.
    #[inline]
    pub(crate) fn is_selecting(&self) -> bool {
        self.values.is_selecting()
    }

    /// Goes on with a selection by one chunk; whether it did. `settle` where it is then over.
    pub(crate) fn select(&mut self) -> bool {
        self.values.select()
    }

    fn finished(&self, place: usize, steps: u32, to: Recipients) -> Finished {
        Finished { place, bytes: self.values.owned(place).bytes, steps, skipped: 0, to }
    }

    /// Sum and step of a chunk whose slots are all in; it is then in its next round.
    fn finish_round(&mut self, kernels: &Kernels, place: usize) -> Finished {
        let Pace::Together(arrivals) = &mut self.pace else { unreachable!("rounds end for all at once") };
        let round = arrivals.round(place);
        // SAFETY: all who take part have pushed this chunk, and are answered after this function.
        unsafe { self.values.step(kernels, place, arrivals.roster().ranks(round), round, round) };
        let newcomers = arrivals.roster().has_newcomers(round.next());
        arrivals.advance(place);
        if newcomers {
            self.values.show_newcomers(place);
        }
        self.reach(place, round.next());
        self.finished(place, 1, Recipients::All(round))
    }

    /// Step of a chunk with the slot of one worker. It may be answered now, and so may others, if they
    /// waited for it.
    fn finish_push(&mut self, kernels: &Kernels, place: usize, rank: u32) -> Option<Finished> {
        let moved = self.step_alone(kernels, place, rank)?;
        let to = if moved { 0..self.workers() } else { rank..rank + 1 };
        Some(self.finished(place, 1, Recipients::Waiting(to)))
    }

    /// The step of a push that is noted, if one is; whether the chunk is then in its next round.
    fn step_alone(&mut self, kernels: &Kernels, place: usize, rank: u32) -> Option<bool> {
        let Pace::Alone(clocks) = &mut self.pace else { return None };
        let round = clocks.pushed(place, rank)?;
        // Of the broadcast only rank 0's slot counts.
        if round > Round(0) || rank == 0 {
            let number = clocks.next_step(place);
            // SAFETY: this worker has pushed the chunk, and is answered after this function.
            unsafe { self.values.step(kernels, place, std::iter::once(rank), round, number) };
        }
        let moved = clocks.advance(place, rank);
        if moved {
            let round = clocks.round(place);
            self.reach(place, round);
        }
        Some(moved)
    }
}
