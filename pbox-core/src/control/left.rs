//! The round before which a worker leaves. It may differ by key, because a worker may use some keys less often than
//! other keys.

use serde::{Deserialize, Serialize};

use crate::layout::{KeyId, Round};

/// The limit on the runs of neighbouring keys in a [`LeftAt`]. It bounds the size of a request, and of a reply to a heartbeat.
pub const MAX_BEHIND: usize = 1024;

/// A worker that left normally.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Left {
    /// The rank.
    pub rank: u32,
    /// The first round without the worker, by key.
    #[serde(flatten)]
    pub at: LeftAt,
}

/// The first round without a worker, for each key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftAt {
    /// The first round in which the worker pushes no key.
    pub round: Round,
    /// Runs of keys with a lower round, ascending. Empty if the worker has used all keys equally often.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub behind: Vec<Behind>,
}

/// Neighbouring keys that a worker has pushed less often than its other keys. In JSON: `[first, keys, round]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(KeyId, u32, Round)", into = "(KeyId, u32, Round)")]
pub struct Behind {
    /// The first key.
    pub first: KeyId,
    /// The number of keys.
    pub keys: u32,
    /// The first round without the worker in these keys.
    pub round: Round,
}

impl LeftAt {
    /// Returns the value for a worker that leaves all keys before the same round.
    pub fn all(round: Round) -> Self {
        LeftAt { round, behind: Vec::new() }
    }

    /// Returns the value for a worker that leaves each key before a separate round; `rounds` has these rounds by key.
    /// Only the first [`MAX_BEHIND`] runs of keys with a lower round count; later runs count as if they had the highest
    /// round.
    pub fn of(rounds: impl Iterator<Item = Round> + Clone) -> Self {
        let mut left = LeftAt::all(rounds.clone().max().unwrap_or_default());
        for (key, round) in (0..).map(KeyId).zip(rounds).filter(|&(_, round)| round < left.round) {
            let runs = left.behind.len();
            match left.behind.last_mut() {
                Some(last) if last.round == round && last.end() == u64::from(key.0) => last.keys += 1,
                _ if runs == MAX_BEHIND => break,
                _ => left.behind.push(Behind { first: key, keys: 1, round }),
            }
        }
        left
    }

    /// Returns the first round without the worker in a key.
    pub fn round_of(&self, key: KeyId) -> Round {
        let after = self.behind.partition_point(|behind| behind.first <= key);
        let last = after.checked_sub(1).map(|at| self.behind[at]);
        last.filter(|behind| u64::from(key.0) < behind.end()).map_or(self.round, |behind| behind.round)
    }

    /// Checks that the values are possible for a worker of a job with this number of keys.
    ///
    /// # Errors
    /// Returns an error that names the expected and the seen value.
    pub fn check(&self, keys: usize) -> Result<(), String> {
        self.check_form()?;
        match self.behind.last() {
            Some(last) if last.end() > keys as u64 => Err(format!(
                "`behind` has keys up to number {}: the job has {keys} keys, numbered from 0",
                last.end() - 1
            )),
            _ => Ok(()),
        }
    }

    /// Checks what needs no knowledge of the job: the number of runs, their order, and that their rounds are below `round`.
    pub(super) fn check_form(&self) -> Result<(), String> {
        if self.behind.len() > MAX_BEHIND {
            return Err(format!(
                "`behind` has {} runs of keys: expected {MAX_BEHIND} at most",
                self.behind.len()
            ));
        }
        let mut end = 0;
        for behind in &self.behind {
            let Behind { first, keys, round } = *behind;
            if u64::from(first.0) < end || keys == 0 || round >= self.round {
                return Err(format!(
                    "`behind` has a run of {keys} keys from number {} on, with round {}: expected at least one key, runs in ascending order, and a round below {}",
                    first.0, round.0, self.round.0
                ));
            }
            end = behind.end();
        }
        Ok(())
    }
}

impl Behind {
    fn end(&self) -> u64 {
        u64::from(self.first.0) + u64::from(self.keys)
    }
}

impl From<(KeyId, u32, Round)> for Behind {
    fn from((first, keys, round): (KeyId, u32, Round)) -> Self {
        Behind { first, keys, round }
    }
}

impl From<Behind> for (KeyId, u32, Round) {
    fn from(Behind { first, keys, round }: Behind) -> Self {
        (first, keys, round)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(rounds: &[u32]) -> LeftAt {
        LeftAt::of(rounds.iter().copied().map(Round))
    }

    #[test]
    fn keys_that_are_used_equally_often_take_no_room() {
        assert_eq!(of(&[7; 1000]), LeftAt::all(Round(7)));
        assert_eq!(of(&[]), LeftAt::all(Round(0)));
        assert_eq!(serde_json::to_string(&of(&[7, 7])).unwrap(), r#"{"round":7}"#);
    }

    #[test]
    fn neighbours_behind_are_one_run() {
        let left = of(&[8, 8, 7, 7, 0, 8, 7]);
        let said = r#"{"rank":1,"round":8,"behind":[[2,2,7],[4,1,0],[6,1,7]]}"#;
        assert_eq!(serde_json::to_string(&Left { rank: 1, at: left.clone() }).unwrap(), said);
        assert_eq!(serde_json::from_str::<Left>(said).unwrap(), Left { rank: 1, at: left });
    }

    #[test]
    fn runs_that_cannot_be_are_refused() {
        let behind = |runs: &[(u32, u32, u32)]| LeftAt {
            round: Round(8),
            behind: runs
                .iter()
                .map(|&(first, keys, round)| (KeyId(first), keys, Round(round)).into())
                .collect(),
        };
        assert_eq!(behind(&[(0, 2, 7), (2, u32::MAX, 7)]).check_form(), Ok(()));
        assert_eq!(behind(&[(0, 2, 7)]).check(2), Ok(()));
        assert_eq!(
            behind(&[(0, 2, 7)]).check(1).unwrap_err(),
            "`behind` has keys up to number 1: the job has 1 keys, numbered from 0"
        );
        for runs in [&[(0, 0, 7)][..], &[(0, 1, 8)], &[(0, 2, 7), (1, 1, 6)], &[(5, 1, 7), (0, 1, 7)]] {
            behind(runs).check(10).expect_err("overlapping, empty or not behind");
        }
        let runs = Vec::from_iter((0..1025).map(|run| (2 * run, 1, 7)));
        assert!(
            behind(&runs)
                .check(5000)
                .unwrap_err()
                .starts_with("`behind` has 1025 runs of keys: expected 1024")
        );
    }

    #[test]
    fn the_room_has_a_bound() {
        let rounds = Vec::from_iter((0..5000).map(|key| key % 2));
        let left = of(&rounds);
        left.check(5000).unwrap();
        assert_eq!(left.behind.len(), MAX_BEHIND);
        assert_eq!([2046, 2048].map(|key| left.round_of(KeyId(key))), [Round(0), Round(1)]);
    }

    proptest! {
        #[test]
        fn each_key_has_the_round_that_was_said(rounds in prop::collection::vec(0u32..3, 0..40)) {
            let left = of(&rounds);
            prop_assert_eq!(left.check(rounds.len()), Ok(()));
            let read = Vec::from_iter((0..rounds.len() as u32).map(|key| left.round_of(KeyId(key)).0));
            prop_assert_eq!(read, rounds);
        }
    }
}
