//! The random numbers of codecs, from a counter-based generator. Two runs of a job give the same bits on every transport,
//! with any number of cores, and in any order of chunks.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::layout::{ChunkId, Round};

/// The inputs of an encoding's random numbers. Equal inputs give equal numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draw {
    /// The job's seed.
    pub seed: u64,
    /// The rank of the encoding worker. The hub uses a rank that no worker has.
    pub rank: u32,
    /// The round of the values. The warm-up of `dgc` depends on the round.
    pub round: Round,
    /// The chunk of the values.
    pub chunk: ChunkId,
}

impl Draw {
    /// Returns the key of the random numbers: the 64-bit XXH3 of rank, round and chunk, seeded with the job's seed.
    pub(super) fn key(self) -> Key {
        let mut bytes = [0; 12];
        let fields = [self.rank, self.round.0, self.chunk.0];
        bytes
            .as_chunks_mut()
            .0
            .iter_mut()
            .zip(fields)
            .for_each(|(place, field)| *place = field.to_le_bytes());
        Key(xxh3_64_with_seed(&bytes, self.seed))
    }
}

/// A sequence of random numbers, each of which is computed from its index in the sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key(pub(super) u64);

impl Key {
    /// Returns the number at index `place`: 32 bits.
    ///
    /// The function permutes the 32-bit numbers by multiplications and xor-shifts, with constants from Wellons' search
    /// for low bias. One half of the key is added before the permutation, the other half in the middle of the
    /// permutation. With only one half, all sequences would be parts of one sequence. Keys are hashes, so similar draws
    /// have unrelated keys. Every instruction set has these operations for vectors of 32-bit numbers.
    #[inline(always)]
    pub(super) fn at(self, place: u32) -> u32 {
        let mut bits = place.wrapping_mul(0x9e37_79b9).wrapping_add(self.0 as u32);
        bits ^= bits >> 16;
        bits = bits.wrapping_mul(0x21f0_aaad).wrapping_add((self.0 >> 32) as u32);
        bits ^= bits >> 15;
        bits = bits.wrapping_mul(0xd35a_2d97);
        bits ^ bits >> 15
    }

    /// Returns the number at index `place`, uniform in [1, 2). It has 23 random bits: the fraction of an f32.
    #[inline(always)]
    pub(super) fn one_to_two(self, place: u32) -> f32 {
        f32::from_bits(0x3f80_0000 | self.at(place) >> 9)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(rank: u32, round: u32, chunk: u32) -> Key {
        Draw { seed: 1, rank, round: Round(round), chunk: ChunkId(chunk) }.key()
    }

    /// Returns how far counts are from equal counts, in standard deviations of the chi-square distribution.
    fn unevenness(counts: &[u32]) -> f64 {
        let mean = counts.iter().sum::<u32>() as f64 / counts.len() as f64;
        let chi_square: f64 = counts.iter().map(|&count| (f64::from(count) - mean).powi(2) / mean).sum();
        let freedom = (counts.len() - 1) as f64;
        (chi_square - freedom) / (2.0 * freedom).sqrt()
    }

    #[test]
    fn numbers_are_uniform() {
        for key in [Key(0), Key(1), Key(u64::MAX), key(0, 1, 0), key(1, 1, 0)] {
            for shift in [0, 8, 16, 24] {
                let mut counts = [0; 256];
                (0..1 << 16).for_each(|place| counts[(key.at(place) >> shift & 255) as usize] += 1);
                assert!(unevenness(&counts).abs() < 5.0, "{key:?} byte {shift}: {}", unevenness(&counts));
            }
        }
    }

    /// Counts the pairs of the upper four bits of two numbers. The numbers are neighbours in one sequence, or have the
    /// same index in the sequences of neighbouring draws.
    #[test]
    fn numbers_are_independent_of_their_neighbours() {
        let first = key(0, 1, 0);
        for (second, ahead) in [
            (first, 1),
            (first, 2),
            (first, 16),
            (first, 512),
            (key(1, 1, 0), 0),
            (key(0, 2, 0), 0),
            (key(0, 1, 1), 0),
            (key(1, 2, 3), 5),
            (Key(first.0 ^ 1), 0),
        ] {
            let mut counts = [0; 256];
            for place in 0..1 << 16 {
                let (one, other) = (first.at(place) >> 28, second.at(place + ahead) >> 28);
                counts[(one << 4 | other) as usize] += 1;
            }
            let seen = unevenness(&counts);
            assert!(seen.abs() < 5.0, "{second:?} {ahead} ahead: {seen}");
        }
    }

    #[test]
    fn every_part_of_a_draw_changes_the_numbers() {
        let draw = Draw { seed: 1, rank: 2, round: Round(3), chunk: ChunkId(4) };
        let others = [
            Draw { seed: 2, ..draw },
            Draw { rank: 3, ..draw },
            Draw { round: Round(4), ..draw },
            Draw { chunk: ChunkId(5), ..draw },
        ];
        assert!(others.iter().all(|other| other.key() != draw.key()));
        assert_eq!(draw.key().one_to_two(9), draw.key().one_to_two(9));
        assert!((0..1000).all(|place| (1.0..2.0).contains(&draw.key().one_to_two(place))));
    }
}
