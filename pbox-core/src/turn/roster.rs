//! The roster: which workers take part in a job, and from which round on.
//!
//! Owned by a core, one for each of its shards. Knows ranks and rounds, no links and no memory.

use crate::layout::Round;

/// The workers that take part, by rank.
#[derive(Debug)]
pub(crate) struct Roster {
    /// First round of each rank; `None` for ranks that do not take part.
    from: Vec<Option<Round>>,
    count: u32,
    /// All of `count` take part from this round on.
    settled: Round,
}

impl Roster {
    /// An empty roster for at most `ranks` workers.
    pub fn new(ranks: u32) -> Self {
        Roster { from: vec![None; ranks as usize], count: 0, settled: Round(0) }
    }

    /// Lets `rank` take part from round `from` on.
    pub fn admit(&mut self, rank: u32, from: Round) {
        if self.from[rank as usize].replace(from).is_none() {
            self.count += 1;
        }
        self.settled = self.settled.max(from);
    }

    /// Removes `rank` from every round that is not finished; false when it did not take part before.
    pub fn remove(&mut self, rank: u32) -> bool {
        // Not `count -= u32::from(took_part)`, followed by a test of `took_part`: rustc 1.96.0 and earlier lose the
        // subtraction in release builds when this is inlined (docs/decisions/0022-a-miscompiled-count.md).
        if self.from[rank as usize].take().is_none() {
            return false;
        }
        self.count -= 1;
        true
    }

    /// The number of workers that take part in a round.
    #[inline]
    pub fn size(&self, round: Round) -> u32 {
        if round >= self.settled { self.count } else { self.ranks(round).count() as u32 }
    }

    /// For a round in which no worker takes part: the first round after it with a worker.
    pub fn first_after(&self, round: Round) -> Option<Round> {
        let first = || self.from.iter().flatten().min().copied();
        if self.size(round) > 0 { None } else { first() }
    }

    /// Whether `rank` takes part in a round.
    #[inline]
    pub fn has(&self, rank: u32, round: Round) -> bool {
        self.from[rank as usize].is_some_and(|from| from <= round)
    }

    /// The round from which `rank` takes part, if it does.
    #[inline]
    pub fn first(&self, rank: u32) -> Round {
        self.from[rank as usize].unwrap_or_default()
    }

    /// Whether a worker takes part from this round on, and not before.
    #[inline]
    pub fn has_newcomers(&self, round: Round) -> bool {
        round <= self.settled && self.from.contains(&Some(round))
    }

    /// The ranks that take part in a round, ascending.
    pub fn ranks(&self, round: Round) -> impl Iterator<Item = u32> {
        (0u32..)
            .zip(&self.from)
            .filter(move |(_, from)| from.is_some_and(|from| from <= round))
            .map(|(r, _)| r)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_counts_from_its_round_on() {
        let mut roster = Roster::new(4);
        for rank in [0, 1, 3] {
            roster.admit(rank, Round(2));
        }
        roster.admit(2, Round(5));
        assert_eq!([1, 2, 4, 5, 6].map(|round| roster.size(Round(round))), [0, 3, 3, 4, 4]);
        assert_eq!(roster.ranks(Round(4)).collect::<Vec<_>>(), [0, 1, 3]);
        assert!(roster.has(2, Round(5)) && !roster.has(2, Round(4)));
        assert_eq!([2, 4, 5, 6].map(|round| roster.has_newcomers(Round(round))), [true, false, true, false]);
        assert_eq!([0, 2].map(|rank| roster.first(rank)), [Round(2), Round(5)]);
        assert!(roster.remove(1) && !roster.remove(1));
        assert_eq!([4, 5].map(|round| roster.size(Round(round))), [2, 3]);
        assert_eq!([1, 2, 9].map(|round| roster.first_after(Round(round))), [Some(Round(2)), None, None]);
        assert!(roster.remove(0) && roster.remove(3));
        assert_eq!([2, 4, 5].map(|r| roster.first_after(Round(r))), [Some(Round(5)), Some(Round(5)), None]);
        roster.remove(2);
        assert_eq!(roster.first_after(Round(2)), None, "nobody comes after");
    }
}
