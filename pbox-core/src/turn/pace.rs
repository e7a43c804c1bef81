//! The pace of a job's workers on one core: all in step (`arrival`, BSP), or each on its own (`clocks`, SSP and ASP).
//!
//! Owned by the core. One place for what a shard asks of both; what only one of them has, the shard asks of that one.

use super::arrival::{Arrivals, OutOfTurn};
use super::clocks::Clocks;
use crate::job::Consistency;
use crate::layout::Round;

/// Who has pushed what.
#[derive(Debug)]
pub(crate) enum Pace {
    Together(Arrivals),
    Alone(Clocks),
}

/// The rounds in flight of a shard's chunks. Where workers are apart, a chunk's round is that of its slowest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Front {
    /// Of the chunk that is furthest behind.
    pub lowest: Round,
    /// Of the chunk that is furthest ahead.
    pub highest: Round,
}

impl Pace {
    /// All chunks begin with round `first`, and nobody takes part.
    pub fn new(consistency: Consistency, chunks: usize, workers: u32, first: Round) -> Self {
        match consistency {
            Consistency::Bsp => Pace::Together(Arrivals::new(chunks, workers, first)),
            alone => Pace::Alone(Clocks::new(alone, chunks, workers, first)),
        }
    }

    /// How many workers there may be.
    pub fn ranks_at_most(&self) -> u32 {
        match self {
            Pace::Together(arrivals) => arrivals.roster().ranks_at_most(),
            Pace::Alone(clocks) => clocks.ranks_at_most(),
        }
    }

    /// Worker `rank` takes part from round `from` on.
    pub fn admit(&mut self, rank: u32, from: Round) {
        match self {
            Pace::Together(arrivals) => arrivals.admit(rank, from),
            Pace::Alone(clocks) => clocks.admit(rank, from),
        }
    }

    /// Worker `rank` takes part no more; what it pushed that is not stepped does not count.
    pub fn remove(&mut self, rank: u32) {
        match self {
            Pace::Together(arrivals) => arrivals.remove(rank),
            Pace::Alone(clocks) => clocks.remove(rank),
        }
    }

    /// The rounds in flight; `None` of no chunks.
    pub fn front(&self) -> Option<Front> {
        let front = match self {
            Pace::Together(arrivals) => arrivals.front(),
            Pace::Alone(clocks) => clocks.front(),
        };
        front.map(|(lowest, highest)| Front { lowest, highest })
    }

    /// The round in flight of the chunk at a place.
    pub fn round(&self, place: usize) -> Round {
        match self {
            Pace::Together(arrivals) => arrivals.round(place),
            Pace::Alone(clocks) => clocks.round(place),
        }
    }

    /// The round that worker `rank` pushes next of a chunk whose last push may be answered.
    #[inline]
    pub fn next_round(&self, place: usize, rank: u32) -> Round {
        match self {
            Pace::Together(arrivals) => arrivals.round(place),
            Pace::Alone(clocks) => clocks.next(place, rank),
        }
    }

    /// From which round on worker `rank` is answered with less than all there is.
    #[inline]
    pub fn first_round(&self, rank: u32) -> Round {
        match self {
            Pace::Together(arrivals) => arrivals.roster().first(rank),
            Pace::Alone(_) => Round(0), // no difference: an answer is all there is
        }
    }

    /// Whether it is worker `rank`'s turn to push a chunk, and for which round.
    #[inline]
    pub fn check(&self, place: usize, rank: u32, round_bits: u8) -> Result<Round, OutOfTurn> {
        match self {
            Pace::Together(arrivals) => arrivals.check(place, rank, round_bits),
            Pace::Alone(clocks) => clocks.check(place, rank, round_bits),
        }
    }

    /// Who is sent the weights of a round that is over for all: those who take part in the next one.
    #[inline]
    pub fn is_answered(&self, rank: u32, round: Round) -> bool {
        match self {
            Pace::Together(arrivals) => arrivals.roster().has(rank, round.next()),
            Pace::Alone(_) => false,
        }
    }

    /// Where worker `rank` waits for an answer of its own, and is not too far ahead: the round that it had pushed.
    #[inline]
    pub fn allow(&mut self, place: usize, rank: u32) -> Option<Round> {
        match self {
            Pace::Together(_) => None,
            Pace::Alone(clocks) => clocks.allow(place, rank),
        }
    }

    /// Whether the chunk at a place has finished the round before `from` for all at once, and is in `from`.
    pub fn has_finished_before(&self, place: usize, from: Round) -> bool {
        match self {
            Pace::Together(arrivals) => from > Round(0) && arrivals.round(place) == from,
            Pace::Alone(_) => false,
        }
    }

    /// The oldest round that may still be stepped, seen from a worker that is about to push `from`.
    pub fn oldest(&self, from: Round) -> Round {
        match self {
            // A worker asks between rounds: no chunk is before the round that it has just finished.
            Pace::Together(_) => Round(from.0.saturating_sub(1)),
            Pace::Alone(clocks) => clocks.front().map_or(from, |(lowest, _)| lowest.min(from)),
        }
    }
}
