//! Dealing whole cores to things of unequal weight, by the method of Webster with a first seat for each.
//!
//! Must not know what gets the seats. The first seat comes before any second one, so that no NIC is idle; the
//! rest go where weight / (2 * seats + 1) is greatest, which favours neither the large nor the small.

use std::cmp::Ordering;

/// Who gets the next seat: of those open, and of equals the lowest; `None` if none is open.
pub fn next(weights: &[u64], seats: &[u64], open: impl Fn(usize) -> bool) -> Option<usize> {
    let mut best: Option<usize> = None;
    for at in (0..weights.len()).filter(|&at| open(at)) {
        if best.is_none_or(|other| claim(weights, seats, at, other) == Ordering::Greater) {
            best = Some(at);
        }
    }
    best
}

/// How many of `total` seats each gets, on top of the `seats` they have.
pub fn deal(weights: &[u64], seats: &[u64], total: usize) -> Vec<u64> {
    let mut held = seats.to_vec();
    for _ in 0..total {
        if let Some(at) = next(weights, &held, |_| true) {
            held[at] += 1;
        }
    }
    held.iter().zip(seats).map(|(after, before)| after - before).collect()
}

fn claim(weights: &[u64], seats: &[u64], a: usize, b: usize) -> Ordering {
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
        assert_eq!(deal(&[1, 1], &[0, 0], 8), [4, 4]);
        assert_eq!(deal(&[100, 25], &[0, 0], 10), [8, 2]);
        assert_eq!(deal(&[100, 1], &[0, 0], 4), [3, 1]);
        assert_eq!(deal(&[1, 1, 1], &[0, 0, 0], 4), [2, 1, 1]);
        assert_eq!(deal(&[], &[], 4), [0u64; 0]);
    }

    proptest! {
        #[test]
        fn all_seats_are_dealt_and_nobody_goes_without(
            weights in proptest::collection::vec(1u64..1000, 1..20),
            extra in 0usize..50,
        ) {
            let total = weights.len() + extra;
            let seats = deal(&weights, &vec![0; weights.len()], total);
            prop_assert_eq!(seats.iter().sum::<u64>(), total as u64);
            prop_assert!(seats.iter().all(|&n| n >= 1));
        }
    }
}
