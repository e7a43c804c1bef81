//! Distribution of whole cores ("seats") among claimants of unequal weight, by Webster's method with a first
//! seat for each.
//!
//! Every claimant gets its first seat before any claimant gets a second, so that no NIC is idle. Each further
//! seat goes to the claimant with the greatest weight / (2 * seats + 1). This favours neither large claimants
//! nor small ones. This module must not depend on what the claimants are.

use std::cmp::Ordering;

/// Returns the claimant that gets the next seat. If the claims of several are equal, returns the claimant with the
/// lowest index. Returns `None` if no claimant is open.
pub fn next_seat(weights: &[u64], seats: &[u64], open: impl Fn(usize) -> bool) -> Option<usize> {
    let mut best: Option<usize> = None;
    for at in (0..weights.len()).filter(|&at| open(at)) {
        if best.is_none_or(|other| compare_claims(weights, seats, at, other) == Ordering::Greater) {
            best = Some(at);
        }
    }
    best
}

/// Deals `total` more seats to claimants that already have `seats`. Returns how many of the new seats each claimant
/// gets.
pub fn deal_seats(weights: &[u64], seats: &[u64], total: usize) -> Vec<u64> {
    let mut held = seats.to_vec();
    for _ in 0..total {
        if let Some(at) = next_seat(weights, &held, |_| true) {
            held[at] += 1;
        }
    }
    held.iter().zip(seats).map(|(after, before)| after - before).collect()
}

fn compare_claims(weights: &[u64], seats: &[u64], a: usize, b: usize) -> Ordering {
    let first_seat = (seats[a] == 0).cmp(&(seats[b] == 0));
    let quotient = |x: usize, y: usize| u128::from(weights[x]) * (2 * u128::from(seats[y]) + 1);
    first_seat.then_with(|| quotient(a, b).cmp(&quotient(b, a)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn seats_follow_weights() {
        assert_eq!(deal_seats(&[1, 1], &[0, 0], 8), [4, 4]);
        assert_eq!(deal_seats(&[100, 25], &[0, 0], 10), [8, 2]);
        assert_eq!(deal_seats(&[100, 1], &[0, 0], 4), [3, 1]);
        assert_eq!(deal_seats(&[1, 1, 1], &[0, 0, 0], 4), [2, 1, 1]);
        assert_eq!(deal_seats(&[], &[], 4), [0u64; 0]);
    }

    proptest! {
        #[test]
        fn all_seats_are_dealt_and_every_claimant_gets_one(
            weights in proptest::collection::vec(1u64..1000, 1..20),
            extra in 0usize..50,
        ) {
            let total = weights.len() + extra;
            let seats = deal_seats(&weights, &vec![0; weights.len()], total);
            prop_assert_eq!(seats.iter().sum::<u64>(), total as u64);
            prop_assert!(seats.iter().all(|&n| n >= 1));
        }
    }
}
