//! Records how many rounds of which chunks each worker has pushed, for one core's chunks of one job, when every push
//! is a step of its own: SSP and ASP. `arrival` does the same for BSP.
//!
//! ```text
//!   Idle --push--> Pushed --step: clock + 1--> Waiting --slowest is near enough--> Allowed --answer--> Idle
//! ```
//!
//! Owned by the core. Eight bytes per (chunk, worker) and twelve per chunk; plain memory, no atomics.

use super::arrival::OutOfTurn;
use crate::job::Consistency;
use crate::layout::Round;

/// Clocks of a shard's chunks.
#[derive(Debug)]
pub(crate) struct Clocks {
    consistency: Consistency,
    ranks: usize,
    /// By rank: the round that it takes part from.
    first: Vec<Round>,
    /// By chunk, then by rank.
    clocks: Vec<Clock>,
    chunks: Vec<State>,
}

/// One worker's clock of one chunk.
#[derive(Clone, Copy, Debug)]
struct Clock {
    /// Its next round: equal to the number of rounds that it has pushed.
    next: Round,
    standing: Standing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// The worker does not take part.
    Absent,
    /// The worker has its weights.
    Idle,
    /// The worker has pushed its next round, and the push is not stepped yet.
    Pushed,
    /// The worker's push is stepped and has no answer.
    Waiting,
    /// The worker may get its answer: at once, or with all of its layer, or when it pulls the layer.
    Allowed,
}

#[derive(Clone, Copy, Debug)]
struct State {
    /// The lowest clock of the workers that take part.
    slowest: Round,
    /// The number of workers at the lowest clock.
    count: u32,
    /// Steps made so far.
    steps: u32,
}

impl Clocks {
    /// `chunks` chunks, all of which begin with round `first`, and no workers.
    ///
    /// A job that goes on from a checkpoint counts as having made a step for each of its workers in every round but
    /// the broadcast.
    pub fn new(consistency: Consistency, chunks: usize, ranks: u32, first: Round) -> Self {
        let steps = first.0.saturating_sub(1).saturating_mul(ranks);
        let absent = Clock { next: first, standing: Standing::Absent };
        Clocks {
            consistency,
            ranks: ranks as usize,
            first: vec![first; ranks as usize],
            clocks: vec![absent; chunks * ranks as usize],
            chunks: vec![State { slowest: first, count: 0, steps }; chunks],
        }
    }

    /// Lets `rank` take part from round `from` on, which no chunk is past, as if it had pushed every round before.
    /// Call `settle` for every chunk afterwards.
    pub fn admit(&mut self, rank: u32, from: Round) {
        self.first[rank as usize] = from;
        let standing = if from > Round(0) { Standing::Waiting } else { Standing::Idle };
        self.of_rank(rank).for_each(|clock| *clock = Clock { next: from, standing });
    }

    /// `rank` takes part no more; its pushes that are not stepped do not count. Call `settle` for every chunk
    /// afterwards: until then the chunks' rounds stand still.
    pub fn remove(&mut self, rank: u32) {
        self.of_rank(rank).for_each(|clock| clock.standing = Standing::Absent);
    }

    fn of_rank(&mut self, rank: u32) -> impl Iterator<Item = &mut Clock> {
        self.clocks.iter_mut().skip(rank as usize).step_by(self.ranks)
    }

    /// The round of chunk `index`: the next round of its slowest worker.
    pub fn round(&self, index: usize) -> Round {
        self.chunks[index].slowest
    }

    /// Lowest and highest round; `None` if there are no chunks.
    pub fn front(&self) -> Option<(Round, Round)> {
        let rounds = || self.chunks.iter().map(|chunk| chunk.slowest);
        Some((rounds().min()?, rounds().max()?))
    }

    /// Whether it is `rank`'s turn to push chunk `index`, and for which round.
    #[inline]
    pub fn check(&self, index: usize, rank: u32, round_bits: u8) -> Result<Round, OutOfTurn> {
        let slowest = self.chunks[index].slowest;
        let clock = &self.clocks[index * self.ranks + rank as usize];
        match clock.standing {
            Standing::Absent => Err(OutOfTurn::NotYet(slowest)),
            Standing::Pushed => Err(OutOfTurn::Unanswered(clock.next)),
            Standing::Waiting | Standing::Allowed => Err(OutOfTurn::Unanswered(Round(clock.next.0 - 1))),
            Standing::Idle if clock.next.low_bits() != round_bits => {
                Err(OutOfTurn::OtherRound { expected: clock.next })
            }
            Standing::Idle => Ok(clock.next),
        }
    }

    /// Notes that `rank`'s slot of chunk `index` is in; it [must be](Self::check) the rank's turn.
    #[inline]
    pub fn note(&mut self, index: usize, rank: u32) {
        self.clocks[index * self.ranks + rank as usize].standing = Standing::Pushed;
    }

    /// The round that `rank` has pushed of chunk `index`, if the push is not stepped yet.
    #[inline]
    pub fn pushed(&self, index: usize, rank: u32) -> Option<Round> {
        let clock = self.clocks[index * self.ranks + rank as usize];
        (clock.standing == Standing::Pushed).then_some(clock.next)
    }

    /// The number of the chunk's next step, from 1.
    #[inline]
    pub fn next_step(&self, index: usize) -> Round {
        Round(self.chunks[index].steps.saturating_add(1))
    }

    /// The noted push is stepped. Returns true when this moved the chunk's round on, by one.
    #[inline]
    pub fn advance(&mut self, index: usize, rank: u32) -> bool {
        let clock = &mut self.clocks[index * self.ranks + rank as usize];
        debug_assert_eq!(clock.standing, Standing::Pushed);
        let round = clock.next;
        *clock = Clock { next: round.next(), standing: Standing::Waiting };
        let state = &mut self.chunks[index];
        if round > Round(0) {
            state.steps = state.steps.saturating_add(1); // round 0 is no step
        }
        if round > state.slowest {
            return false;
        }
        state.count -= 1;
        if state.count > 0 {
            return false;
        }
        self.settle(index);
        true
    }

    /// Finds the slowest worker anew, and returns the chunk's round.
    pub fn settle(&mut self, index: usize) -> Round {
        let row = &self.clocks[index * self.ranks..][..self.ranks];
        let present = || row.iter().filter(|clock| clock.standing != Standing::Absent);
        let state = &mut self.chunks[index];
        // Without workers the round stays the same.
        state.slowest = present().map(|clock| clock.next).min().unwrap_or(state.slowest);
        state.count = present().filter(|clock| clock.next == state.slowest).count() as u32;
        state.slowest
    }

    /// Whether `rank` waits for an answer of chunk `index` that it may have now.
    #[inline]
    pub fn may_answer(&self, index: usize, rank: u32) -> bool {
        let clock = self.clocks[index * self.ranks + rank as usize];
        let slowest = self.chunks[index].slowest;
        clock.standing == Standing::Waiting && self.consistency.allows(clock.next, slowest)
    }

    /// Allows `rank`'s answer, if it [may get one](Self::may_answer). Returns the round that it had pushed. Once per
    /// push.
    #[inline]
    pub fn allow(&mut self, index: usize, rank: u32) -> Option<Round> {
        let may = self.may_answer(index, rank);
        let clock = &mut self.clocks[index * self.ranks + rank as usize];
        may.then(|| {
            clock.standing = Standing::Allowed;
            Round(clock.next.0 - 1)
        })
    }

    /// `rank` gets its answer, which must be [allowed](Self::allow).
    #[inline]
    pub fn answer(&mut self, index: usize, rank: u32) {
        let clock = &mut self.clocks[index * self.ranks + rank as usize];
        debug_assert_eq!(clock.standing, Standing::Allowed);
        clock.standing = Standing::Idle;
    }

    /// The round from which `rank` takes part.
    #[inline]
    pub fn first(&self, rank: u32) -> Round {
        self.first[rank as usize]
    }

    /// The round of chunk `index` that `rank` pushes next.
    #[inline]
    pub fn next(&self, index: usize, rank: u32) -> Round {
        self.clocks[index * self.ranks + rank as usize].next
    }
}

#[cfg(test)]
mod tests;
