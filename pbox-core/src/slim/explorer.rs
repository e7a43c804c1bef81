//! The draw of the explorer: the elements of a chunk that a worker sends in addition to the significant set (Sun et al.,
//! section 3.3).
//!
//! The draw is a part of the protocol. With [`Explorer::Seeded`](super::Explorer::Seeded) both ends draw, and must draw the
//! same elements.

use crate::layout::{ChunkId, Round};

use super::SlimDp;
use super::set::{count, has, insert, there};

/// The worker that draws, and the push for which the worker draws. The random numbers depend on all fields.
#[derive(Clone, Copy, Debug)]
pub struct Drawer {
    /// The job's seed.
    pub seed: u64,
    /// The worker.
    pub rank: u32,
    /// The round of the push.
    pub round: Round,
    /// The chunk.
    pub chunk: ChunkId,
}

/// SplitMix64 (Steele, Lea and Flood, 2014): a counter and a mixing function. Any seed is good.
struct SplitMix64(u64);

impl SplitMix64 {
    fn new(drawer: Drawer) -> Self {
        let Drawer { seed, rank, round, chunk } = drawer;
        let mut mix = SplitMix64(seed);
        let mut mix = SplitMix64(mix.next() ^ (u64::from(chunk.0) << 32 | u64::from(round.0)));
        SplitMix64(mix.next() ^ u64::from(rank))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// Returns a random number below `end`: the upper half of a product. Because `end` has at most 17 bits, the
    /// probabilities of two numbers differ by at most one part in 2^15.
    fn below(&mut self, end: usize) -> usize {
        (((self.next() >> 32) * end as u64) >> 32) as usize
    }

    /// Returns a random number from 0 up to, but not including, 1.
    fn part(&mut self) -> f64 {
        (self.next() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }
}

impl SlimDp {
    /// Draws the explorer of a chunk with this many `elements`: `set` gets the elements of the significant set and of
    /// the explorer. Returns the number of explored elements.
    ///
    /// The explorer has the same part of each chunk's elements outside the significant set: `(alpha - beta) / (1 - beta)`.
    /// Over the whole model this is `alpha - beta` of the parameters. The number of elements is rounded up or down at
    /// random, so that keys of few elements are explored as often as other keys.
    pub fn explore(&self, elements: usize, significant: &[u64], set: &mut [u64], drawer: Drawer) -> usize {
        let mut random = SplitMix64::new(drawer);
        let others = elements - count(significant);
        let explored = ((self.explored(others) + random.part()) as usize).min(others);
        set.copy_from_slice(significant);
        if explored <= others / 2 {
            draw(&mut random, elements, set, explored);
            return explored;
        }
        // More elements are explored than left out. So draw the elements to leave out, and take all other elements.
        draw(&mut random, elements, set, others - explored);
        for (index, (word, significant)) in set.iter_mut().zip(significant).enumerate() {
            *word = (!*word & there(elements, index)) | significant;
        }
        explored
    }

    /// Returns how many of the elements outside the significant set are explored, before rounding. `others` is the number
    /// of these elements.
    pub(super) fn explored(&self, others: usize) -> f64 {
        let outside = 1.0 - f64::from(self.beta);
        let part = if outside > 0.0 { (f64::from(self.alpha) - f64::from(self.beta)) / outside } else { 0.0 };
        others as f64 * part
    }
}

/// Adds `more` random elements to the set. `more` must be at most half of the elements that are not in the set.
fn draw(random: &mut SplitMix64, elements: usize, set: &mut [u64], more: usize) {
    let mut drawn = 0;
    while drawn < more {
        let place = random.below(elements);
        if !has(set, place) {
            insert(set, place);
            drawn += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::set::words;
    use super::*;

    fn drawer(round: u32) -> Drawer {
        Drawer { seed: 5, rank: 1, round: Round(round), chunk: ChunkId(7) }
    }

    #[test]
    fn every_element_outside_the_significant_set_is_explored_alike() {
        let (slim, elements, rounds) = (SlimDp::new(0.3, 0.1), 200, 4000);
        let mut significant = vec![0; words(elements)];
        (0..20).for_each(|place| insert(&mut significant, place * 3));
        let mut explored = vec![0u32; elements];
        for round in 0..rounds {
            let mut set = significant.clone();
            let count = slim.explore(elements, &significant, &mut set, drawer(round));
            assert_eq!(count, 40, "(alpha - beta) * 200");
            (0..elements).for_each(|place| {
                explored[place] += u32::from(has(&set, place) && !has(&significant, place))
            });
        }
        // 4000 draws of probability 2/9: mean 889, standard deviation 26.
        for (place, &times) in explored.iter().enumerate() {
            let is_significant = has(&significant, place);
            assert!(
                if is_significant { times == 0 } else { (758..1020).contains(&times) },
                "{place}: {times} times"
            );
        }
    }

    #[test]
    fn few_elements_are_explored_now_and_then() {
        let slim = SlimDp::new(0.2, 0.1);
        let count: usize = (0..9000).map(|round| slim.explore(4, &[0], &mut [0], drawer(round))).sum();
        assert!((3600..4400).contains(&count), "{count} of 9000 draws of 4/9");
    }

    #[test]
    fn both_ends_draw_the_same_and_workers_draw_apart() {
        let slim = SlimDp::new(0.9, 0.1);
        let draw = |drawer| {
            let mut set = [0; 4];
            slim.explore(256, &[1; 4], &mut set, drawer);
            set
        };
        assert_eq!(draw(drawer(1)), draw(drawer(1)));
        assert_ne!(draw(drawer(1)), draw(drawer(2)));
        assert_ne!(draw(drawer(1)), draw(Drawer { rank: 2, ..drawer(1) }));
        assert_ne!(draw(drawer(1)), draw(Drawer { chunk: ChunkId(8), ..drawer(1) }));
        assert_ne!(draw(drawer(1)), draw(Drawer { seed: 6, ..drawer(1) }));
    }

    #[test]
    fn all_or_nothing_can_be_explored() {
        let mut set = [0];
        assert_eq!(SlimDp::new(1.0, 0.2).explore(64, &[1 << 63], &mut set, drawer(0)), 63);
        assert_eq!(set, [u64::MAX]);
        assert_eq!(SlimDp::new(1.0, 0.0).explore(5, &[2], &mut set, drawer(0)), 4);
        assert_eq!(set, [0b11111]);
        assert_eq!(SlimDp::new(0.2, 0.2).explore(64, &[3], &mut set, drawer(0)), 0);
        assert_eq!(set, [3]);
        assert_eq!(SlimDp::new(1.0, 1.0).explore(64, &[u64::MAX], &mut set, drawer(0)), 0);
    }
}
