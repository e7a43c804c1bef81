//! Records which workers' slots of which chunks are in, for one core's chunks of one job, when a round ends for all
//! workers at once: BSP. `clocks` does the same for SSP and ASP.
//!
//! Owned by the core. A bit per (chunk, worker) and a count per chunk; plain memory, no atomics.

use super::roster::Roster;
use crate::layout::Round;

/// Arrival state of a shard's chunks.
#[derive(Debug)]
pub(crate) struct Arrivals {
    roster: Roster,
    words_per_chunk: usize,
    bits: Vec<u64>,
    chunks: Vec<State>,
}

#[derive(Clone, Copy, Debug)]
struct State {
    /// The round in flight.
    round: Round,
    /// Slots that are in.
    count: u32,
}

/// The worker may not push this chunk for this round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutOfTurn {
    /// It has pushed the chunk already.
    Again(Round),
    /// Its last push has no answer yet.
    Unanswered(Round),
    /// Another round is next.
    OtherRound { expected: Round },
    /// It does not take part in the round in flight.
    NotYet(Round),
}

impl Arrivals {
    /// `chunks` chunks, all of which begin with round `first`, and an empty roster.
    pub fn new(chunks: usize, ranks: u32, first: Round) -> Self {
        let words_per_chunk = ranks.div_ceil(64) as usize;
        Arrivals {
            roster: Roster::new(ranks),
            words_per_chunk,
            bits: vec![0; chunks * words_per_chunk],
            chunks: vec![State { round: first, count: 0 }; chunks],
        }
    }

    /// The workers that take part.
    pub fn roster(&self) -> &Roster {
        &self.roster
    }

    /// Lets `rank` take part from round `from` on.
    pub fn admit(&mut self, rank: u32, from: Round) {
        self.roster.admit(rank, from);
    }

    /// Takes `rank` off the roster, and its slots out of the rounds in flight.
    pub fn remove(&mut self, rank: u32) {
        if !self.roster.remove(rank) {
            return;
        }
        let (word, bit) = (rank as usize / 64, 1u64 << (rank % 64));
        for (words, state) in self.bits.chunks_exact_mut(self.words_per_chunk).zip(&mut self.chunks) {
            if words[word] & bit != 0 {
                words[word] &= !bit;
                state.count -= 1;
            }
        }
    }

    /// The round in flight of chunk `index`.
    pub fn round(&self, index: usize) -> Round {
        self.chunks[index].round
    }

    /// Lowest and highest round in flight; `None` if there are no chunks.
    pub fn front(&self) -> Option<(Round, Round)> {
        let rounds = || self.chunks.iter().map(|chunk| chunk.round);
        Some((rounds().min()?, rounds().max()?))
    }

    /// Whether it is `rank`'s turn to push chunk `index`, and for which round.
    #[inline]
    pub fn check(&self, index: usize, rank: u32, round_bits: u8) -> Result<Round, OutOfTurn> {
        let round = self.chunks[index].round;
        if round.low_bits() != round_bits {
            return Err(OutOfTurn::OtherRound { expected: round });
        }
        if !self.roster.has(rank, round) {
            return Err(OutOfTurn::NotYet(round));
        }
        let (word, bit) = self.bit(index, rank);
        if self.bits[word] & bit != 0 {
            return Err(OutOfTurn::Again(round));
        }
        Ok(round)
    }

    /// Notes that `rank`'s slot of chunk `index` is in; it [must be](Self::check) the rank's turn. Returns true when
    /// the slot was the last of its round.
    #[inline]
    pub fn note(&mut self, index: usize, rank: u32) -> bool {
        let (word, bit) = self.bit(index, rank);
        self.bits[word] |= bit;
        let state = &mut self.chunks[index];
        state.count += 1;
        state.count == self.roster.size(state.round)
    }

    #[inline(always)]
    fn bit(&self, index: usize, rank: u32) -> (usize, u64) {
        (index * self.words_per_chunk + rank as usize / 64, 1 << (rank % 64))
    }

    /// Whether the slots of all workers that take part are in.
    pub fn is_whole(&self, index: usize) -> bool {
        let State { round, count } = self.chunks[index];
        count > 0 && count == self.roster.size(round)
    }

    /// Moves chunk `index` past rounds without workers, to the first round with a worker. Returns the number of
    /// rounds. The workers of that round wait for the weights before it.
    pub fn skip_deserted(&mut self, index: usize) -> u32 {
        let State { round, .. } = self.chunks[index];
        let Some(next) = self.roster.first_after(round) else { return 0 };
        self.chunks[index].round = next; // nobody's slot is in
        next.0 - round.0
    }

    /// Moves a whole chunk on to its next round.
    #[inline]
    pub fn advance(&mut self, index: usize) {
        self.bits[index * self.words_per_chunk..][..self.words_per_chunk].fill(0);
        let state = &mut self.chunks[index];
        *state = State { round: state.round.next(), count: 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Arrivals {
        fn arrive(&mut self, index: usize, rank: u32, round_bits: u8) -> Result<bool, OutOfTurn> {
            self.check(index, rank, round_bits)?;
            Ok(self.note(index, rank))
        }
    }

    fn arrivals(chunks: usize, ranks: u32) -> Arrivals {
        let mut arrivals = Arrivals::new(chunks, ranks, Round(0));
        (0..ranks).for_each(|rank| arrivals.admit(rank, Round(0)));
        arrivals
    }

    #[test]
    fn the_last_of_any_order_makes_a_chunk_whole() {
        let mut arrivals = arrivals(1, 130);
        for round in 0..300u32 {
            for step in 0..130u32 {
                let rank = (step * 7 + round) % 130;
                assert!(!arrivals.is_whole(0));
                assert_eq!(arrivals.arrive(0, rank, round as u8), Ok(step == 129));
            }
            assert!(arrivals.is_whole(0));
            arrivals.advance(0);
        }
    }

    #[test]
    fn repeats_and_other_rounds_are_seen() {
        let mut arrivals = arrivals(2, 2);
        arrivals.arrive(1, 0, 0).unwrap();
        assert_eq!(arrivals.arrive(1, 0, 0), Err(OutOfTurn::Again(Round(0))));
        assert_eq!(arrivals.arrive(1, 1, 1), Err(OutOfTurn::OtherRound { expected: Round(0) }));
        assert_eq!(arrivals.arrive(1, 1, 0), Ok(true));
        arrivals.advance(1);
        assert_eq!(arrivals.arrive(1, 1, 0), Err(OutOfTurn::OtherRound { expected: Round(1) }));
        assert_eq!(arrivals.front(), Some((Round(0), Round(1))));
    }

    #[test]
    fn a_rank_that_is_gone_is_not_waited_for_and_does_not_count() {
        let mut arrivals = arrivals(2, 3);
        arrivals.arrive(0, 1, 0).unwrap();
        arrivals.arrive(1, 0, 0).unwrap();
        arrivals.arrive(1, 2, 0).unwrap();
        arrivals.remove(1);
        assert!(!arrivals.is_whole(0), "what it had pushed is out again");
        assert!(arrivals.is_whole(1));
        assert_eq!(arrivals.arrive(0, 1, 0), Err(OutOfTurn::NotYet(Round(0))));
    }

    #[test]
    fn rounds_that_nobody_is_left_of_are_skipped() {
        let mut arrivals = arrivals(2, 2);
        arrivals.remove(1);
        arrivals.arrive(0, 0, 0).unwrap();
        arrivals.advance(0);
        arrivals.admit(1, Round(1));
        assert_eq!(arrivals.skip_deserted(1), 0, "worker 0 may still push it");
        arrivals.remove(0);
        assert_eq!([0, 1].map(|index| arrivals.skip_deserted(index)), [0, 1]);
        assert_eq!(arrivals.arrive(1, 1, 1), Ok(true));
        arrivals.remove(1);
        assert_eq!(arrivals.skip_deserted(0), 0, "nobody waits");
    }

    #[test]
    fn a_newcomer_is_waited_for_from_its_round_on() {
        let mut arrivals = arrivals(1, 2);
        arrivals.remove(1);
        arrivals.admit(1, Round(1));
        assert_eq!(arrivals.arrive(0, 1, 0), Err(OutOfTurn::NotYet(Round(0))));
        assert_eq!(arrivals.arrive(0, 0, 0), Ok(true));
        arrivals.advance(0);
        assert_eq!(arrivals.arrive(0, 0, 1), Ok(false));
        assert_eq!(arrivals.arrive(0, 1, 1), Ok(true));
    }
}
