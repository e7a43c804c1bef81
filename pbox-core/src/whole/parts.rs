//! The hubs' parts of the gradient norm, as a hub or a worker knows them.
//!
//! A hub is at most one round ahead of another hub: it needs the other hub's part before it enters the next round. So only
//! the last two rounds of each hub are needed.

use super::{NormSum, Skips};
use crate::layout::Round;

/// The parts of the last two rounds.
#[derive(Clone, Debug, Default)]
pub struct Parts {
    /// The parts of two rounds of each hub: by hub, then by the lowest bit of the round.
    of_hubs: Vec<[Option<NormSum>; 2]>,
}

/// The result of comparing a part with the known parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// No part of the same hub and round was known.
    New,
    /// The part was known already, or its round is over.
    Known,
    /// The part differs from the known part of the same hub and round. One of the two must be wrong.
    Other,
}

impl Parts {
    /// Creates the parts of this number of hubs, without any known part.
    pub fn new(hubs: usize) -> Self {
        Parts { of_hubs: vec![[None; 2]; hubs] }
    }

    /// Returns how many hubs have parts.
    pub fn hubs(&self) -> usize {
        self.of_hubs.len()
    }

    /// Takes a hub's part.
    pub fn take(&mut self, hub: usize, part: NormSum) -> Part {
        let place = &mut self.of_hubs[hub][part.round.0 as usize % 2];
        match place {
            Some(known) if known.round > part.round => Part::Known,
            Some(known) if known.round == part.round => {
                let is_same = known.mean == part.mean && known.sum.to_words() == part.sum.to_words();
                if is_same { Part::Known } else { Part::Other }
            }
            _ => {
                *place = Some(part);
                Part::New
            }
        }
    }

    /// Returns the parts of a hub that somebody may still need, the older first: the last part, and the part of the round
    /// before. A round may have no part, because workers were lost in it. Then the other known part is older, and its
    /// place in the window may already have another part.
    pub fn of_hub(&self, hub: usize) -> impl Iterator<Item = NormSum> + use<> {
        let mut parts = self.of_hubs[hub];
        parts.sort_by_key(|part| part.map(|part| part.round));
        let last = parts[1].map(|last| last.round);
        parts
            .into_iter()
            .flatten()
            .filter(move |part| Some(part.round) == last || Some(part.round.next()) == last)
    }

    /// Returns the sum of a round over all hubs, if the parts of all hubs have arrived. Uses the mean of norms of the first
    /// hub's part, so that all ends agree.
    pub fn whole(&self, round: Round, skips: Skips) -> Option<NormSum> {
        let part =
            |parts: &[Option<NormSum>; 2]| parts[round.0 as usize % 2].filter(|part| part.round == round);
        let mut parts = self.of_hubs.iter().map(part);
        let first = parts.next()??;
        let sum = parts.try_fold(first.sum, |mut sum, part| {
            sum.join(&part?.sum);
            Some(sum)
        })?;
        Some(first.whole(sum, skips))
    }
}

#[cfg(test)]
mod tests {
    use super::super::ExactSum;
    use super::*;

    fn part(round: u32, square: f64) -> NormSum {
        let mut sum = ExactSum::default();
        sum.add(square);
        NormSum { round: Round(round), sum, ..NormSum::default() }
    }

    #[test]
    fn a_round_has_a_sum_when_all_hubs_have_told_theirs_in_any_order() {
        let mut parts = Parts::new(3);
        let sum =
            |parts: &Parts, round| parts.whole(Round(round), Skips::Never).map(|whole| whole.sum.value());
        assert_eq!(parts.take(0, part(7, 1.0)), Part::New);
        assert_eq!(parts.take(0, part(8, 32.0)), Part::New, "a hub may be a round ahead");
        assert_eq!(parts.take(2, part(7, 4.0)), Part::New);
        assert_eq!(sum(&parts, 7), None);
        assert_eq!(parts.take(1, part(7, 2.0)), Part::New);
        assert_eq!((sum(&parts, 7), sum(&parts, 8)), (Some(7.0), None));
        assert_eq!(parts.take(1, part(7, 2.0)), Part::Known);
        assert_eq!(parts.take(1, part(7, 3.0)), Part::Other);
        assert_eq!(parts.take(0, part(6, 9.0)), Part::Known, "its round is over");
        assert_eq!((sum(&parts, 7), sum(&parts, 6)), (Some(7.0), None));
        assert_eq!(parts.of_hub(0).map(|part| part.round.0).collect::<Vec<_>>(), [7, 8]);
        assert_eq!(parts.take(0, part(9, 1.0)), Part::New);
        assert_eq!(parts.of_hub(0).map(|part| part.round.0).collect::<Vec<_>>(), [8, 9]);
        assert_eq!(parts.take(0, part(11, 1.0)), Part::New, "round 10 has no part");
        assert_eq!(parts.of_hub(0).map(|part| part.round.0).collect::<Vec<_>>(), [11]);
    }

    #[test]
    fn what_is_no_number_is_the_same_twice() {
        let mut parts = Parts::new(1);
        assert_eq!(parts.take(0, part(1, f64::NAN)), Part::New);
        assert_eq!(parts.take(0, part(1, f64::NAN)), Part::Known);
    }
}
