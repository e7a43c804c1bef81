//! The norms of keys whose elements repeat with a small period.
//!
//! A lane of a block has every 32nd element, so the lane's squares depend only on the phase of its first element. There
//! are only 61 different lanes. Each lane is summed once, in the order of the oracle, and a block adds up the lanes
//! that it has.

use pbox_core::oracle::{self, LANES};
use pbox_core::{Chunk, ChunkId, Element, KeyId, Layout};

use super::{PERIOD, phase};

/// The blocks of all keys.
#[derive(Clone, Debug)]
pub(super) struct Norms {
    by_key: Vec<Vec<Block>>,
}

/// A group of elements whose squares are added up before other groups are added.
#[derive(Clone, Copy, Debug)]
struct Block {
    /// The phase of the group's first element.
    phase: usize,
    elements: usize,
}

impl Norms {
    /// Finds the blocks of a layout's keys, which are all of type `E`.
    pub fn new<E: Element>(layout: &Layout) -> Self {
        let length = oracle::BLOCK_BYTES / size_of::<E>();
        let of_chunk = |key: KeyId, chunk: &Chunk| {
            let first = (chunk.span.offset - layout.key_span(key).offset) / size_of::<E>();
            let elements = chunk.span.bytes / size_of::<E>();
            let block = move |at: usize| Block {
                phase: phase(key, first + at),
                elements: (elements - at).min(length),
            };
            (0..elements).step_by(length).map(block)
        };
        let of_key = |key: usize| {
            let key = KeyId(key as u32);
            layout.key_chunks(key).flat_map(|chunk| of_chunk(key, &layout.chunk(ChunkId(chunk)))).collect()
        };
        Norms { by_key: (0..layout.keys().len()).map(of_key).collect() }
    }

    /// Returns the quotient of two norms of a key: the second divided by the first. `periods` has one period of the
    /// elements for each norm.
    pub fn quotient(&self, key: usize, periods: [[f32; PERIOD]; 2]) -> f32 {
        let blocks = &self.by_key[key];
        let most = blocks.iter().map(|block| block.elements).max().unwrap_or(0);
        let [weights, others] = periods.map(|period| Lanes::new(&period, most.div_ceil(LANES)));
        oracle::quotient(blocks.iter().map(|block| [weights.squares(block), others.squares(block)]))
    }
}

/// The sums of squares of every 32nd element.
struct Lanes {
    /// The sums, by the number of elements, and then by the phase of the first element.
    sums: Vec<[f64; PERIOD]>,
}

impl Lanes {
    /// Computes the sums for up to `most` elements.
    fn new(period: &[f32; PERIOD], most: usize) -> Self {
        let mut sums = vec![[0.0; PERIOD]];
        for count in 0..most {
            let add = |phase: usize| {
                let value = f64::from(period[(phase + count * LANES) % PERIOD]);
                sums[count][phase] + value * value
            };
            let more = std::array::from_fn(add);
            sums.push(more);
        }
        Lanes { sums }
    }

    /// Returns the squares of a block, in the order in which [`oracle::squares`] adds them.
    fn squares(&self, block: &Block) -> f64 {
        let lane = |lane: usize| {
            let count = (block.elements + LANES - 1 - lane) / LANES;
            self.sums[count][(block.phase + lane) % PERIOD]
        };
        (0..LANES).map(lane).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pbox_core::Key;

    #[test]
    fn squares_of_a_period_are_those_of_all_elements() {
        let period: [f32; PERIOD] = std::array::from_fn(|p| 1.0 / (p as f32 - 20.5));
        let others = period.map(|value| value * 0.37 - 0.1);
        let keys = [1u64, 31, 61, 1000, 8191, 8192, 20_000].map(|size| Key::f32(format!("{size}"), [size]));
        for chunk_bytes in [4096, 32 << 10, 96 << 10] {
            let layout = Layout::new(keys.to_vec(), chunk_bytes).unwrap();
            let norms = Norms::new::<f32>(&layout);
            for key in (0..keys.len()).map(|key| KeyId(key as u32)) {
                let of = |period: &[f32; PERIOD]| -> Vec<f64> {
                    let chunks = layout.key_chunks(key).map(|chunk| layout.chunk(ChunkId(chunk)).span);
                    let elements = chunks.map(|span| {
                        let first = (span.offset - layout.key_span(key).offset) / 4;
                        let elements = first..first + span.bytes / 4;
                        elements.map(|i| period[phase(key, i)]).collect::<Vec<_>>()
                    });
                    elements
                        .flat_map(|chunk| chunk.chunks(8192).map(oracle::squares).collect::<Vec<_>>())
                        .collect()
                };
                let naive = of(&period).into_iter().zip(of(&others)).map(|(one, other)| [one, other]);
                let expected = oracle::quotient(naive.collect::<Vec<_>>().into_iter());
                assert_eq!(norms.quotient(key.index(), [period, others]), expected, "{key:?}");
            }
        }
    }
}
