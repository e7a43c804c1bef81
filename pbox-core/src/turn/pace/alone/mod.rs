//! Workers that step alone (SSP and ASP). Each push is a separate step. A worker is answered as soon as it is not too far
//! ahead of the slowest worker.
//!
//! ```text
//!   Idle --push--> Pushed --step: clock + 1--> Waiting --slowest is near enough--> Allowed --answer--> Idle
//!                                                |  ^
//!                                 links are lost v  | the push again
//!                                               Unlinked
//! ```
//!
//! A job may end at a cut, which is a pause between two rounds. For each worker, the job then ends at the worker's own *line*:
//! the first round in which no chunk has stepped the worker's push. Each push before the line is stepped and answered. Pushes
//! from the line on are neither stepped nor answered.
//!
//! Owned by the core. Takes eight bytes per (chunk, worker) and eight per chunk.
//!
//! On the list of `unsafe` code (`docs/unsafe.md`): the call of the step.

use super::{OutOfTurn, Pace, Repeated};
use crate::job::Consistency;
use crate::kernels::Kernels;
use crate::layout::{Content, Round};
use crate::turn::shard::{Finished, ShardOf};
use crate::weights::Mode;

/// Clocks of a shard's chunks.
#[derive(Debug)]
pub(crate) struct Clocks {
    consistency: Consistency,
    /// Whether round 0 is the broadcast of weights.
    broadcasts: bool,
    ranks: usize,
    /// The first round in which each worker takes part, by rank.
    first: Vec<Round>,
    /// The clock of each worker, by chunk, then by rank.
    clocks: Vec<Clock>,
    chunks: Vec<State>,
    /// Each worker's lead over the slowest worker in a job that begins again, in rounds, by rank. Otherwise empty.
    ahead: Vec<u32>,
    /// The line of each worker, by rank, in a job that ends: the first round that is not stepped. Otherwise empty.
    ends: Vec<Round>,
}

/// One worker's clock of one chunk.
#[derive(Clone, Copy, Debug)]
struct Clock {
    /// The next round, which is also the number of rounds that the worker has pushed.
    next: Round,
    standing: Standing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// The worker does not take part.
    Absent,
    /// The worker has the answer to its last push.
    Idle,
    /// The worker has pushed its next round, and the push is not stepped yet.
    Pushed,
    /// The worker's push is stepped and has no answer.
    Waiting,
    /// The worker lost its links in the state `Waiting`. It pushes the chunk again, and gets one answer.
    Unlinked,
    /// The worker may get its answer: now, together with the other chunks of the layer, or when the worker pulls the
    /// layer.
    Allowed,
}

#[derive(Clone, Copy, Debug)]
struct State {
    /// The lowest next round of the workers that take part.
    slowest: Round,
    /// The number of workers whose next round is the lowest.
    count: u32,
}

impl Clocks {
    /// Creates clocks: all chunks begin at round 0, and no worker takes part.
    pub fn new(consistency: Consistency, chunks: usize, workers: u32, broadcasts: bool) -> Self {
        let ranks = workers as usize;
        let absent = Clock { next: Round(0), standing: Standing::Absent };
        let state = State { slowest: Round(0), count: 0 };
        Clocks {
            consistency,
            broadcasts,
            ranks,
            first: vec![Round(0); ranks],
            clocks: vec![absent; chunks * ranks],
            chunks: vec![state; chunks],
            ahead: Vec::new(),
            ends: Vec::new(),
        }
    }

    fn of_rank(&mut self, rank: u32) -> impl Iterator<Item = &mut Clock> {
        self.clocks.iter_mut().skip(rank as usize).step_by(self.ranks)
    }

    /// Notes that `rank`'s push of chunk `index` has arrived. The push must be in [turn](Self::check).
    #[inline]
    fn note(&mut self, index: usize, rank: u32) {
        self.clocks[index * self.ranks + rank as usize].standing = Standing::Pushed;
    }

    /// Returns the round of `rank`'s push of chunk `index`, if the push has arrived, is not stepped, and is before the
    /// worker's line.
    #[inline]
    fn pushed(&self, index: usize, rank: u32) -> Option<Round> {
        let clock = self.clocks[index * self.ranks + rank as usize];
        let ends = self.ends.get(rank as usize).is_some_and(|&end| clock.next >= end);
        (clock.standing == Standing::Pushed && !ends).then_some(clock.next)
    }

    /// Returns the round of the last state in a job that ends: the earliest line.
    #[inline]
    fn last(&self) -> Option<Round> {
        self.ends.iter().min().copied()
    }

    /// Whether the job ends, and all workers that take part have reached their lines at chunk `index`.
    fn is_over(&self, index: usize) -> bool {
        let row = self.clocks[index * self.ranks..][..self.ranks].iter().zip(&self.ends);
        let mut present = row.filter(|(clock, _)| clock.standing != Standing::Absent);
        !self.ends.is_empty() && present.all(|(clock, end)| clock.next >= *end)
    }

    /// Notes that the step of `rank`'s push was made. Returns true if this moves the chunk to its next round.
    #[inline]
    fn advance(&mut self, index: usize, rank: u32) -> bool {
        let clock = &mut self.clocks[index * self.ranks + rank as usize];
        debug_assert_eq!(clock.standing, Standing::Pushed);
        let round = clock.next;
        *clock = Clock { next: round.next(), standing: Standing::Waiting };
        let state = &mut self.chunks[index];
        if round > state.slowest {
            return false;
        }
        state.count -= 1;
        if state.count > 0 {
            return false;
        }
        self.find_slowest(index);
        true
    }

    /// Finds the slowest worker again, and returns the chunk's round.
    fn find_slowest(&mut self, index: usize) -> Round {
        let row = &self.clocks[index * self.ranks..][..self.ranks];
        let present = || row.iter().filter(|clock| clock.standing != Standing::Absent);
        let state = &mut self.chunks[index];
        // If no worker takes part, the round stays as it is.
        state.slowest = present().map(|clock| clock.next).min().unwrap_or(state.slowest);
        state.count = present().filter(|clock| clock.next == state.slowest).count() as u32;
        state.slowest
    }

    /// Whether `rank` waits for an answer of chunk `index`, and may get this answer now. In a job that ends, a worker does not
    /// wait for slower workers: after the end all workers begin again with the same round.
    #[inline]
    fn may_answer(&self, index: usize, rank: u32) -> bool {
        let clock = self.clocks[index * self.ranks + rank as usize];
        let slowest = self.chunks[index].slowest;
        let is_near = self.consistency.allows(clock.next, slowest);
        clock.standing == Standing::Waiting && (is_near || (!self.ends.is_empty() && slowest > Round(0)))
    }

    /// Allows the answer to `rank`, if the rank [may get an answer](Self::may_answer). Returns the round of the rank's
    /// push, only once per push.
    #[inline]
    fn allow(&mut self, index: usize, rank: u32) -> Option<Round> {
        let may = self.may_answer(index, rank);
        let clock = &mut self.clocks[index * self.ranks + rank as usize];
        may.then(|| {
            clock.standing = Standing::Allowed;
            Round(clock.next.0 - 1)
        })
    }
}

impl Pace for Clocks {
    fn begin_at(&mut self, first: Round) {
        self.first.fill(first);
        self.clocks.fill(Clock { next: first, standing: Standing::Absent });
        self.chunks.fill(State { slowest: first, count: 0 });
    }

    /// Admits a worker as if it had pushed every earlier round.
    fn admit(&mut self, rank: u32, from: Round) {
        let ahead = self.ahead.get_mut(rank as usize).map_or(0, std::mem::take);
        let from = Round(from.0.saturating_add(ahead));
        self.first[rank as usize] = from;
        let standing = if from > Round(0) { Standing::Waiting } else { Standing::Idle };
        self.of_rank(rank).for_each(|clock| *clock = Clock { next: from, standing });
    }

    /// Removes a worker. A chunk's round does not move until `settle` is called for the chunk.
    fn remove(&mut self, rank: u32) {
        self.of_rank(rank).for_each(|clock| clock.standing = Standing::Absent);
    }

    fn forget(&mut self, rank: u32) {
        for clock in self.of_rank(rank) {
            clock.standing = match clock.standing {
                Standing::Pushed => Standing::Idle,
                Standing::Waiting => Standing::Unlinked,
                standing => standing,
            };
        }
    }

    fn handle_repeat(&mut self, index: usize, rank: u32, round_bits: u8) -> Option<Repeated> {
        let clock = &mut self.clocks[index * self.ranks + rank as usize];
        let round = Round(clock.next.0.checked_sub(1)?);
        if round.low_bits() != round_bits {
            return None;
        }
        match clock.standing {
            Standing::Absent | Standing::Pushed | Standing::Waiting => None,
            Standing::Idle => Some(Repeated::Answered(round)),
            Standing::Allowed => Some(Repeated::Due(round)),
            Standing::Unlinked => {
                clock.standing = Standing::Waiting;
                Some(self.allow(index, rank).map_or(Repeated::Waits, Repeated::Due))
            }
        }
    }

    fn round(&self, index: usize) -> Round {
        self.chunks[index].slowest
    }

    /// Whether the chunk can now be copied into a snapshot before `round`. In a job that ends, the chunk must have reached each
    /// worker's line.
    fn has_come_to(&self, index: usize, round: Round) -> bool {
        match self.last() {
            Some(last) => last == round && self.is_over(index),
            None => self.round(index) == round,
        }
    }

    fn lines(&self) -> Vec<Option<Round>> {
        let of_rank = |rank| self.clocks.iter().skip(rank).step_by(self.ranks);
        let present = |rank| of_rank(rank).filter(|clock| clock.standing != Standing::Absent);
        (0..self.ranks).map(|rank| present(rank).map(|clock| clock.next).max()).collect()
    }

    fn begin_ahead(&mut self, ahead: &[u32]) {
        self.ahead = ahead.to_vec();
    }

    fn end_at(&mut self, lines: &[Option<Round>]) {
        // A rank that does not take part pushes nothing, so it needs no line.
        self.ends = lines.iter().map(|line| line.unwrap_or(Round(u32::MAX))).collect();
    }

    #[inline]
    fn next_round(&self, index: usize, rank: u32) -> Round {
        self.clocks[index * self.ranks + rank as usize].next
    }

    #[inline]
    fn first_round(&self, rank: u32) -> Round {
        self.first[rank as usize]
    }

    #[inline]
    fn takes(&self, rank: u32, content: Content, round: Round) -> Result<(), &'static str> {
        match (round == Round(0) && self.broadcasts, content) {
            (false, Content::Gradient) | (true, Content::Weights) => Ok(()),
            (true, Content::Nothing) if rank > 0 => Ok(()),
            (true, _) => {
                Err("round 0 is the broadcast: rank 0 pushes weights, and each other rank weights or nothing")
            }
            (false, _) => {
                Err("workers that step alone push gradients only: push zeros, or choose the consistency bsp")
            }
        }
    }

    #[inline]
    fn answered(&self, _: usize, _: u32, round: Round) -> Content {
        if round == Round(0) && self.broadcasts { Content::Weights } else { Content::Gradient }
    }

    #[inline]
    fn check(&self, index: usize, rank: u32, round_bits: u8) -> Result<Round, OutOfTurn> {
        let slowest = self.chunks[index].slowest;
        let clock = &self.clocks[index * self.ranks + rank as usize];
        match clock.standing {
            Standing::Absent => Err(OutOfTurn::NotYet(slowest)),
            Standing::Pushed => Err(OutOfTurn::Unanswered(clock.next)),
            Standing::Waiting | Standing::Unlinked | Standing::Allowed => {
                Err(OutOfTurn::Unanswered(Round(clock.next.0 - 1)))
            }
            Standing::Idle if clock.next.low_bits() != round_bits => {
                Err(OutOfTurn::OtherRound { expected: clock.next })
            }
            Standing::Idle => Ok(clock.next),
        }
    }

    /// Calls `each` for the workers that wait because they are too far ahead, and for the slowest workers, which owe a
    /// push.
    fn each_waiting(&self, index: usize, each: &mut dyn FnMut(u32, bool)) -> u64 {
        let row = || (0u32..).zip(&self.clocks[index * self.ranks..][..self.ranks]);
        let waits = |rank| {
            let clock = self.clocks[index * self.ranks + rank as usize];
            clock.standing == Standing::Waiting && !self.may_answer(index, rank)
        };
        if row().any(|(rank, _)| waits(rank)) {
            for (rank, clock) in row() {
                let owes = clock.standing == Standing::Idle && clock.next == self.chunks[index].slowest;
                if owes || waits(rank) {
                    each(rank, owes);
                }
            }
        }
        let pushed = row().filter(|(_, clock)| clock.standing != Standing::Absent);
        pushed.map(|(_, clock)| u64::from(clock.next.0)).sum()
    }

    #[inline]
    fn answer_due(&mut self, place: usize, _: Round, rank: u32) -> Option<Round> {
        self.allow(place, rank)
    }

    #[inline]
    fn note_answer(&mut self, index: usize, rank: u32) {
        let clock = &mut self.clocks[index * self.ranks + rank as usize];
        debug_assert_eq!(clock.standing, Standing::Allowed);
        clock.standing = Standing::Idle;
    }

    /// Handles a push. Then the worker may get an answer, and so may other workers that waited for this push.
    #[inline]
    fn take_push<M: Mode>(
        shard: &mut ShardOf<Self, M>,
        kernels: &Kernels,
        place: usize,
        rank: u32,
        (round, _): (Round, Content),
    ) -> Option<Finished> {
        shard.pace.note(place, rank);
        if shard.is_held() {
            return None;
        }
        let moved = step(shard, kernels, place, rank)?;
        let ranks = if moved { 0..shard.terms.workers } else { rank..rank + 1 };
        Some(Finished { ranks, ..shard.finished(place, round, 1) })
    }

    /// Steps every push that has arrived, also pushes of later rounds. Then moves the chunk to round `before`, although some
    /// workers have perhaps not pushed.
    fn end_rounds<M: Mode>(
        shard: &mut ShardOf<Self, M>,
        kernels: &Kernels,
        place: usize,
        before: Round,
    ) -> bool {
        let ShardOf { pace, stages, terms, .. } = shard;
        for rank in 0..terms.workers {
            let Some(round) = pace.pushed(place, rank) else { continue };
            let pushed = std::iter::once(rank);
            // SAFETY: this worker has pushed the chunk, and no worker gets an answer from now on.
            unsafe {
                match pace.answered(place, rank, round) {
                    // In the broadcast, only rank 0's slot counts.
                    Content::Weights if rank > 0 => {}
                    Content::Weights => stages.last_put(place, pushed),
                    _ => _ = stages.last_step(kernels, place, pushed, 0, round),
                }
            }
            pace.advance(place, rank);
        }
        pace.chunks[place].slowest = before;
        true
    }

    fn settle<M: Mode>(shard: &mut ShardOf<Self, M>, kernels: &Kernels, place: usize) -> Option<Finished> {
        let (former, now) = (shard.pace.round(place), shard.pace.find_slowest(place));
        // When its slowest worker is lost, a chunk may pass several rounds at once. In a job that ends, the last state is
        // captured separately.
        let now_captured = shard.pace.last().map_or(now, |last| now.min(Round(last.0.saturating_sub(1))));
        if now_captured > former {
            shard.capture_passed(place, former, now_captured);
        }
        let ranks = 0..shard.terms.workers;
        let steps = ranks.clone().filter(|&rank| step(shard, kernels, place, rank).is_some()).count() as u32;
        let is_due = steps > 0 || ranks.into_iter().any(|rank| shard.pace.may_answer(place, rank));
        is_due.then(|| shard.finished(place, now, steps))
    }
}

/// Makes the step of `rank`'s push, if the push has arrived. Returns whether the chunk has moved to its next round.
fn step<M: Mode>(shard: &mut ShardOf<Clocks, M>, kernels: &Kernels, place: usize, rank: u32) -> Option<bool> {
    let ShardOf { pace, stages, .. } = shard;
    let round = pace.pushed(place, rank)?;
    let pushed = std::iter::once(rank);
    // SAFETY: this worker has pushed the chunk, and gets its answer only after this function returns.
    unsafe {
        match pace.answered(place, rank, round) {
            // In the broadcast, only rank 0's slot counts.
            Content::Weights if rank > 0 => {}
            Content::Weights => stages.put(kernels, place, pushed, round),
            _ => stages.step(kernels, place, pushed, 0, round),
        }
    }
    let moved = pace.advance(place, rank);
    let (round, last) = (pace.round(place), pace.last());
    if moved {
        come_to(shard, place, round);
    }
    if let Some(last) = last
        && shard.pace.is_over(place)
    {
        shard.capture(place, last);
    }
    Some(moved)
}

/// Moves a chunk to a round. In a job that ends, the chunk stays in the last round while faster workers push up to their
/// lines.
fn come_to<M: Mode>(shard: &mut ShardOf<Clocks, M>, place: usize, round: Round) {
    if shard.pace.last().is_none_or(|last| round < last) {
        shard.capture(place, round);
    }
}

#[cfg(test)]
mod tests;
