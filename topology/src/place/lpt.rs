//! Longest processing time first: the rule that balances items over cores.
//!
//! This module must not depend on cores: it uses only weights, bins and shares.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Returns the bin of each item. Items are assigned one by one, the heaviest item first, each to the least-loaded bin.
///
/// The result is the same on every machine: of two items with equal weights, the item with the lower index is first,
/// and of equally loaded bins the lowest is taken. No load is more than 4/3 - 1/(3 * bins) times the best possible
/// maximum load (Graham 1969). [`place`](crate::place::place) uses this rule. So both ends of a link can compute the
/// owner table from the weights and the number of bins.
///
/// The cost is O(n log n): a million items take about a tenth of a second.
///
/// # Panics
///
/// Panics if `bins` is 0, or above `u32::MAX`.
pub fn lpt(weights: &[u64], bins: usize) -> Vec<u32> {
    lpt_by_share(weights, &vec![1; bins])
}

/// Works like [`lpt`], with bins of unequal speed. Each item goes to the bin that would finish it first: the
/// bin with the least (load + weight) / share. With equal shares, the result is that of [`lpt`].
///
/// # Panics
///
/// Panics if `shares` is empty, has more than `u32::MAX` entries, or contains a 0.
pub fn lpt_by_share(weights: &[u64], shares: &[u64]) -> Vec<u32> {
    assert!(!shares.is_empty(), "lpt: no bins; expected at least 1");
    assert!(u32::try_from(shares.len()).is_ok(), "lpt: {} bins; expected at most u32::MAX", shares.len());
    assert!(shares.iter().all(|&share| share > 0), "lpt: a share of 0; expected every share to be positive");
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_unstable_by_key(|&item| (Reverse(weights[item]), item));
    let mut classes = classes(shares);
    let mut bin_of = vec![0; weights.len()];
    for item in order {
        let weight = u128::from(weights[item]);
        let best = if classes.len() == 1 { 0 } else { soonest_class(&classes, weight) };
        // The weight added must be that of this item. PHub's published code added the weight of another item, and its
        // fullest bin held 1.874 times the mean.
        if let Some(mut top) = classes[best].bins.peek_mut() {
            bin_of[item] = top.0.bin;
            top.0.load += weight;
        }
    }
    bin_of
}

/// All bins that have the same share. Of these bins, the least-loaded bin is always the best.
struct Class {
    share: u128,
    bins: BinaryHeap<Reverse<Bin>>,
}

/// A bin and its load. Bins are ordered by load, and then by index.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Bin {
    load: u128,
    bin: u32,
}

fn classes(shares: &[u64]) -> Vec<Class> {
    let mut distinct = shares.to_vec();
    distinct.sort_unstable();
    distinct.dedup();
    let bins_of = |share: u64| {
        let bins = shares.iter().enumerate().filter(|&(_, &own)| own == share);
        bins.map(|(bin, _)| Reverse(Bin { load: 0, bin: bin as u32 })).collect()
    };
    distinct.into_iter().map(|share| Class { share: u128::from(share), bins: bins_of(share) }).collect()
}

/// Returns the class with the bin that would finish an item of this weight first. If several bins would finish it at
/// the same time, the lowest bin counts.
fn soonest_class(classes: &[Class], weight: u128) -> usize {
    let mut best: Option<(usize, u128, u128, u32)> = None;
    for (at, class) in classes.iter().enumerate() {
        let Some(Reverse(top)) = class.bins.peek() else { continue };
        let finish = top.load + weight;
        let sooner = best.is_none_or(|(_, other, share, bin)| {
            // The comparison is finish / class.share < other / share, without division. Real loads are far
            // below 2^64. Saturation keeps larger loads from wrapping.
            let (mine, theirs) = (finish.saturating_mul(share), other.saturating_mul(class.share));
            mine < theirs || (mine == theirs && top.bin < bin)
        });
        if sooner {
            best = Some((at, finish, class.share, top.bin));
        }
    }
    best.map_or(0, |(at, ..)| at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn loads(weights: &[u64], bin_of: &[u32], bins: usize) -> Vec<u64> {
        let mut loads = vec![0; bins];
        for (weight, &bin) in weights.iter().zip(bin_of) {
            loads[bin as usize] += weight;
        }
        loads
    }

    /// Computes the owners in ten lines, straight from the rule. It is the oracle of the tests.
    fn naive(weights: &[u64], shares: &[u64]) -> Vec<u32> {
        let mut order: Vec<usize> = (0..weights.len()).collect();
        order.sort_by_key(|&item| Reverse(weights[item]));
        let mut loads = vec![0u128; shares.len()];
        let mut bin_of = vec![0; weights.len()];
        for item in order {
            let mut best = 0;
            for bin in 1..shares.len() {
                let finish = |bin: usize| loads[bin] + u128::from(weights[item]);
                if finish(bin) * u128::from(shares[best]) < finish(best) * u128::from(shares[bin]) {
                    best = bin;
                }
            }
            loads[best] += u128::from(weights[item]);
            bin_of[item] = best as u32;
        }
        bin_of
    }

    #[test]
    fn ties_go_to_the_lowest_item_and_bin() {
        assert_eq!(lpt(&[5, 5, 5, 5, 5], 3), [0, 1, 2, 0, 1]);
        assert_eq!(lpt(&[1, 9, 1, 9], 2), [0, 0, 1, 1]);
        assert_eq!(lpt(&[], 4), [0u32; 0]);
        assert_eq!(lpt(&[7, 7], 1), [0, 0]);
    }

    #[test]
    fn the_table_is_fixed_for_all_time() {
        // Other processes compute this table too: a change here changes the protocol.
        let weights: Vec<u64> = (0..24u64).map(|item| (item * 7919) % 1000 + 1).collect();
        assert_eq!(lpt(&weights, 5), naive(&weights, &[1; 5]));
        assert_eq!(lpt(&[8, 7, 6, 5, 4, 3, 2, 1], 3), [0, 1, 2, 2, 1, 0, 0, 1]);
    }

    #[test]
    fn loads_are_in_proportion_to_shares() {
        let weights = vec![10; 900];
        let bin_of = lpt_by_share(&weights, &[1, 2, 6]);
        assert_eq!(loads(&weights, &bin_of, 3), [1000, 2000, 6000]);
    }

    #[test]
    fn absurd_weights_do_not_wrap() {
        let bin_of = lpt_by_share(&[u64::MAX; 6], &[u64::MAX, 1, u64::MAX]);
        assert_eq!(bin_of.len(), 6);
        assert_eq!(lpt(&[u64::MAX; 4], 2), [0, 1, 0, 1]);
    }

    #[test]
    fn a_million_items_are_placed() {
        let weights: Vec<u64> = (0..1_000_000u64).map(|item| item * 2_654_435_761 % 32_768 + 1).collect();
        let loads = loads(&weights, &lpt(&weights, 96), 96);
        assert!(loads.iter().max().unwrap() - loads.iter().min().unwrap() <= 32_768);
    }

    proptest! {
        #[test]
        fn agrees_with_the_rule_in_ten_lines(
            weights in proptest::collection::vec(0u64..1000, 0..200),
            shares in proptest::collection::vec(1u64..6, 1..12),
        ) {
            prop_assert_eq!(lpt_by_share(&weights, &shares), naive(&weights, &shares));
        }

        #[test]
        fn keeps_grahams_bound(
            weights in proptest::collection::vec(1u64..1_000_000, 1..300),
            bins in 1usize..20,
        ) {
            let bin_of = lpt(&weights, bins);
            prop_assert!(bin_of.iter().all(|&bin| (bin as usize) < bins));
            let max = *loads(&weights, &bin_of, bins).iter().max().unwrap();
            let total: u64 = weights.iter().sum();
            // When the fullest bin got its last item, of weight w, its load was at most the mean of the other
            // bins. So max <= total / m + w * (1 - 1/m). This can be checked without knowing the optimum.
            let fullest = loads(&weights, &bin_of, bins).iter().position(|&load| load == max).unwrap();
            let lightest = weights.iter().zip(&bin_of).filter(|&(_, &bin)| bin as usize == fullest)
                .map(|(&weight, _)| weight).min().unwrap();
            let m = bins as u128;
            prop_assert!(u128::from(max) * m <= u128::from(total) + u128::from(lightest) * (m - 1));
        }

        #[test]
        fn is_within_four_thirds_of_the_optimum_on_small_cases(
            weights in proptest::collection::vec(1u64..50, 1..9),
            bins in 1usize..4,
        ) {
            let mut best = u64::MAX;
            for code in 0..bins.pow(weights.len() as u32) {
                let mut rest = code;
                let mut sums = vec![0; bins];
                for weight in &weights {
                    sums[rest % bins] += weight;
                    rest /= bins;
                }
                best = best.min(*sums.iter().max().unwrap());
            }
            let max = *loads(&weights, &lpt(&weights, bins), bins).iter().max().unwrap();
            prop_assert!(max * 3 * bins as u64 <= best * (4 * bins as u64 - 1));
        }

        #[test]
        fn a_permutation_of_items_keeps_the_loads(
            weights in proptest::collection::vec(0u64..100, 0..100),
            bins in 1usize..10,
            turn in 0usize..100,
        ) {
            let mut turned = weights.clone();
            turned.rotate_left(turn % weights.len().max(1));
            let before = loads(&weights, &lpt(&weights, bins), bins);
            prop_assert_eq!(before, loads(&turned, &lpt(&turned, bins), bins));
        }

        #[test]
        fn distinct_items_keep_their_bins_when_permuted(
            set in proptest::collection::btree_set(1u64..10_000, 1..100),
            bins in 1usize..10,
        ) {
            let up: Vec<u64> = set.iter().copied().collect();
            let down: Vec<u64> = set.iter().rev().copied().collect();
            let mut bins_of_down = lpt(&down, bins);
            bins_of_down.reverse();
            prop_assert_eq!(lpt(&up, bins), bins_of_down);
        }
    }
}
