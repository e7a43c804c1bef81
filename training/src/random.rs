//! The random numbers of a run: SplitMix64 (Steele, Lea and Flood). A seed gives the same split, the same order of
//! batches and the same first weights in every process. The numbers are not random enough for secrets.

/// A sequence of random numbers.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// Creates the sequence for a purpose. The numbers in `of` name the purpose.
    pub fn new(seed: u64, of: &[u64]) -> Self {
        let mut random = Random(seed);
        for &number in of {
            random = Random(random.draw() ^ number);
        }
        random
    }

    fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Draws a number from -1 to below 1, in steps of 2^-23. Every such number is exact in `f32`.
    pub fn symmetric(&mut self) -> f32 {
        (self.draw() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    /// Returns the numbers below `len`, shuffled (Fisher and Yates). The bias of the remainder is below `len` in 2^64.
    pub fn order(&mut self, len: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..len).collect();
        for last in (1..len).rev() {
            order.swap(last, (self.draw() % (last as u64 + 1)) as usize);
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_holds_every_number_once_and_its_names_name_it() {
        let order = |seed, of: &[u64]| Random::new(seed, of).order(50);
        let mut sorted = order(1, &[2, 3]);
        assert_eq!(sorted, order(1, &[2, 3]));
        assert_ne!(sorted, order(1, &[3, 2]));
        assert_ne!(sorted, order(2, &[2, 3]));
        sorted.sort_unstable();
        assert_eq!(sorted, (0..50).collect::<Vec<_>>());
    }

    #[test]
    fn symmetric_numbers_lie_on_both_sides() {
        let mut random = Random::new(7, &[]);
        let drawn: Vec<f32> = (0..1000).map(|_| random.symmetric()).collect();
        assert!(drawn.iter().all(|x| (-1.0..1.0).contains(x)));
        assert!(drawn.iter().sum::<f32>().abs() < 100.0);
    }
}
