//! Which workers' slots of which chunks are in, for one core's chunks of one job.
//!
//! Owned by the core. A bit per (chunk, worker) and a count per chunk; plain memory, no atomics.

use crate::chunk::Round;

/// Arrival state of `chunks` chunks from `workers` workers.
#[derive(Debug)]
pub(crate) struct Arrivals {
    workers: u32,
    words_per_chunk: usize,
    bits: Vec<u64>,
    chunks: Vec<State>,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    round: Round,
    count: u32,
}

/// What an arrival meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrived {
    /// Others are missing.
    Waiting,
    /// This was the last one of the round.
    Complete(Round),
}

/// The worker had pushed this chunk in this round already, or is in another round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutOfTurn {
    Again(Round),
    OtherRound { expected: Round },
}

impl Arrivals {
    pub fn new(chunks: usize, workers: u32) -> Self {
        let words_per_chunk = workers.div_ceil(64) as usize;
        Arrivals {
            workers,
            words_per_chunk,
            bits: vec![0; chunks * words_per_chunk],
            chunks: vec![State::default(); chunks],
        }
    }

    /// Notes that `rank`'s slot of chunk `index` is in. On the last one of a round the chunk moves
    /// on to the next.
    pub fn arrive(&mut self, index: usize, rank: u32, round_bits: u8) -> Result<Arrived, OutOfTurn> {
        let state = &mut self.chunks[index];
        let round = state.round;
        if round.low_bits() != round_bits {
            return Err(OutOfTurn::OtherRound { expected: round });
        }
        let words = &mut self.bits[index * self.words_per_chunk..][..self.words_per_chunk];
        let (word, bit) = (&mut words[rank as usize / 64], 1u64 << (rank % 64));
        if *word & bit != 0 {
            return Err(OutOfTurn::Again(round));
        }
        *word |= bit;
        state.count += 1;
        if state.count < self.workers {
            return Ok(Arrived::Waiting);
        }
        words.fill(0);
        *state = State { round: round.next(), count: 0 };
        Ok(Arrived::Complete(round))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_of_any_order_completes() {
        let mut arrivals = Arrivals::new(1, 130);
        for round in 0..300u32 {
            for step in 0..130u32 {
                let rank = (step * 7 + round) % 130;
                let arrived = arrivals.arrive(0, rank, round as u8).unwrap();
                let last = step == 129;
                assert_eq!(arrived, if last { Arrived::Complete(Round(round)) } else { Arrived::Waiting });
            }
        }
    }

    #[test]
    fn repeats_and_other_rounds_are_seen() {
        let mut arrivals = Arrivals::new(2, 2);
        arrivals.arrive(1, 0, 0).unwrap();
        assert_eq!(arrivals.arrive(1, 0, 0), Err(OutOfTurn::Again(Round(0))));
        assert_eq!(arrivals.arrive(1, 1, 1), Err(OutOfTurn::OtherRound { expected: Round(0) }));
        assert_eq!(arrivals.arrive(1, 1, 0), Ok(Arrived::Complete(Round(0))));
        assert_eq!(arrivals.arrive(1, 1, 0), Err(OutOfTurn::OtherRound { expected: Round(1) }));
    }
}
