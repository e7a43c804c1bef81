//! The hyperparameters of an optimizer over time: learning rate, weight decay, momentum, betas, epsilon, and the
//! multipliers of each key.
//!
//! Plain data. The kind of optimizer never changes, because the state that a hub keeps of each parameter depends on the
//! kind.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Optimizer;
use crate::layout::{KeyId, Round};

/// The two multipliers of a key: first for the learning rate, then for the weight decay.
pub type Multipliers = [f32; 2];

/// The optimizers of some keys. They have other hyperparameters than the job's optimizer, but are of the same kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Groups {
    /// The optimizers, at most 255.
    pub optimizers: Vec<Optimizer>,
    /// The number of each key's optimizer, from 1. With 0, the key has the job's optimizer.
    pub of_keys: Vec<u8>,
}

/// The hyperparameters of an optimizer, and each key's multipliers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Numbers {
    /// The job's optimizer, with the current hyperparameters.
    pub optimizer: Optimizer,
    /// The multipliers of each key. `None` if they are those of the job's terms.
    pub multipliers: Option<Arc<[Multipliers]>>,
    /// The keys whose hyperparameters differ from `optimizer`. `None` if there is no such key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub groups: Option<Arc<Groups>>,
}

impl Numbers {
    /// Creates the hyperparameters of a job that begins.
    pub fn new(optimizer: Optimizer) -> Self {
        Numbers { optimizer, multipliers: None, groups: None }
    }

    /// Returns these hyperparameters with another learning rate for all keys.
    pub fn with_learning_rate(&self, rate: f32) -> Self {
        let mut next = self.clone();
        next.optimizer = next.optimizer.with_learning_rate(rate);
        for each in next.groups.iter_mut().flat_map(|groups| &mut Arc::make_mut(groups).optimizers) {
            *each = each.with_learning_rate(rate);
        }
        next
    }

    /// Returns the hyperparameters after a change to `next`. If `next` has no multipliers, the multipliers do not
    /// change.
    pub fn then(&self, next: Numbers) -> Self {
        Numbers { multipliers: next.multipliers.or_else(|| self.multipliers.clone()), ..next }
    }

    /// Returns the optimizer of a key.
    #[inline]
    pub fn of(&self, key: KeyId) -> &Optimizer {
        let Some(groups) = &self.groups else { return &self.optimizer };
        match groups.of_keys[key.index()] {
            0 => &self.optimizer,
            group => &groups.optimizers[usize::from(group) - 1],
        }
    }

    /// Returns a size of these hyperparameters, with which the hub limits its memory. An optimizer counts as 64, a
    /// key with multipliers as two, and a key in the table of groups as one.
    pub fn size(&self) -> usize {
        let of_groups = |groups: &Arc<Groups>| 64 * groups.optimizers.len() + groups.of_keys.len();
        64 + 2 * self.multipliers.as_ref().map_or(0, |table| table.len())
            + self.groups.as_ref().map_or(0, of_groups)
    }
}

/// Hyperparameters by round. A change of hyperparameters begins with a round. So all cores change at the same step,
/// whatever the rounds of their chunks are when the change arrives.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NumbersByRound {
    /// The changes: (first round, hyperparameters), in ascending order of rounds. There is at least one change.
    changes: Vec<(Round, Numbers)>,
}

impl NumbersByRound {
    /// Creates a list with hyperparameters that apply from round 0 on.
    pub fn new(numbers: Numbers) -> Self {
        NumbersByRound { changes: vec![(Round(0), numbers)] }
    }

    /// Creates a list from changes that [`changes_from`](Self::changes_from) has returned; `None` without changes. The
    /// first change also applies to all rounds before it.
    pub fn of_changes(changes: impl IntoIterator<Item = (Round, Numbers)>) -> Option<Self> {
        let mut changes = changes.into_iter();
        let mut numbers = NumbersByRound::new(changes.next()?.1);
        changes.for_each(|(from, changed)| numbers.change(from, changed));
        Some(numbers)
    }

    /// Sets hyperparameters from round `from` on, until the next change. Workers in different rounds make the same
    /// changes at different times. So hyperparameters that a faster worker has set for later rounds stay.
    pub fn change(&mut self, from: Round, numbers: Numbers) {
        let place = self.changes.partition_point(|&(round, _)| round < from);
        match self.changes.get_mut(place) {
            Some((round, former)) if *round == from => *former = numbers,
            _ => self.changes.insert(place, (from, numbers)),
        }
    }

    /// Returns the hyperparameters of a round.
    #[inline]
    pub fn at(&self, round: Round) -> &Numbers {
        &self.changes[self.current(round)].1
    }

    /// Returns the sum of the [sizes](Numbers::size) of all hyperparameters in the list.
    pub fn size(&self) -> usize {
        self.changes.iter().map(|(_, numbers)| numbers.size()).sum()
    }

    /// Returns the changes that matter from `round` on: (first round, hyperparameters), in ascending order of rounds.
    /// The first change is at `round` or at an earlier round.
    pub fn changes_from(&self, round: Round) -> Vec<(Round, Numbers)> {
        self.changes[self.current(round)..].to_vec()
    }

    /// Forgets the changes that do not matter from round `oldest` on.
    pub fn forget_before(&mut self, oldest: Round) {
        self.changes.drain(..self.current(oldest));
    }

    /// Returns the index of the change that applies to a round.
    fn current(&self, round: Round) -> usize {
        self.changes.partition_point(|&(from, _)| from <= round).saturating_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sgd(learning_rate: f32, weight_decay: f32) -> Numbers {
        Numbers::new(Optimizer::Sgd { learning_rate, weight_decay })
    }

    #[test]
    fn a_change_holds_from_its_round_on() {
        let mut numbers = NumbersByRound::new(sgd(0.1, 0.0));
        let rates = |numbers: &NumbersByRound, rounds: &[u32]| {
            rounds.iter().map(|&r| numbers.at(Round(r)).optimizer.learning_rate()).collect::<Vec<_>>()
        };
        numbers.change(Round(5), sgd(0.01, 0.0));
        numbers.change(Round(9), sgd(0.001, 0.5));
        assert_eq!(rates(&numbers, &[0, 4, 5, 8, 9, 100]), [0.1, 0.1, 0.01, 0.01, 0.001, 0.001]);
        assert_eq!([8, 9].map(|r| numbers.at(Round(r)).optimizer.weight_decay()), [0.0, 0.5]);
        numbers.change(Round(9), sgd(0.5, 0.0));
        assert_eq!(rates(&numbers, &[9]), [0.5]);
        numbers.change(Round(7), sgd(0.02, 0.0));
        assert_eq!(rates(&numbers, &[6, 7, 8, 9]), [0.01, 0.02, 0.02, 0.5], "later changes stay");
        let from_six = numbers.changes_from(Round(6));
        assert_eq!(from_six.iter().map(|(from, _)| from.0).collect::<Vec<_>>(), [5, 7, 9]);
        numbers.forget_before(Round(6));
        assert_eq!(numbers.changes_from(Round(0)), from_six);
        assert_eq!(rates(&numbers, &[6, 9]), [0.01, 0.5]);
        let again = NumbersByRound::of_changes(from_six).unwrap();
        assert_eq!(rates(&again, &[4, 6, 7, 9]), [0.01, 0.01, 0.02, 0.5], "nothing is known of before");
        assert_eq!(NumbersByRound::of_changes([]), None);
        assert_eq!(numbers.size(), 3 * 64);
    }

    #[test]
    fn multipliers_stay_until_others_are_set() {
        let table: Arc<[Multipliers]> = vec![[2.0, 0.0], [1.0, 1.0]].into();
        let first = sgd(0.1, 0.0);
        let second = first.then(Numbers { multipliers: Some(Arc::clone(&table)), ..first.clone() });
        let third = second.then(sgd(0.2, 0.5));
        assert_eq!(third, Numbers { multipliers: Some(table), ..sgd(0.2, 0.5) });
        assert_eq!(third.with_learning_rate(0.1).optimizer, sgd(0.1, 0.5).optimizer);
        assert_eq!(first.with_learning_rate(0.2).multipliers, None);
        assert_eq!(NumbersByRound::new(second).size(), 64 + 4);
    }

    #[test]
    fn a_group_has_its_own_numbers_and_the_learning_rate_of_all() {
        let groups = Groups { optimizers: vec![sgd(0.5, 0.25).optimizer], of_keys: vec![0, 1] };
        let first = Numbers { groups: Some(groups.into()), ..sgd(0.1, 0.0) };
        let of = |numbers: &Numbers| [0, 1].map(|key| *numbers.of(KeyId(key)));
        let expected =
            |first: f32, second: f32| [sgd(first, 0.0), sgd(second, 0.25)].map(|each| each.optimizer);
        assert_eq!(of(&first), expected(0.1, 0.5));
        assert_eq!(of(&first.with_learning_rate(2.0)), expected(2.0, 2.0));
        assert_eq!(
            of(&first.then(sgd(0.3, 0.0))),
            [sgd(0.3, 0.0).optimizer; 2],
            "they are those of the change"
        );
        assert_eq!(NumbersByRound::new(first).size(), 2 * 64 + 2);
    }

    #[test]
    fn every_optimizer_takes_a_learning_rate_but_mean_and_sum() {
        for name in Optimizer::NAMES {
            let momentum = match name {
                "momentum" | "nesterov" | "lars" => r#","momentum":0.5"#,
                "dampened" => r#","momentum":0.5,"dampening":0.5"#,
                _ => "",
            };
            let rate = if matches!(name, "average" | "sum") { "" } else { r#","learning_rate":0.5"# };
            let of: Optimizer =
                serde_json::from_str(&format!(r#"{{"name":"{name}"{rate}{momentum}}}"#)).unwrap();
            let changed = of.with_learning_rate(0.25);
            assert_eq!(
                changed.learning_rate(),
                if matches!(name, "average" | "sum") { 0.0 } else { 0.25 },
                "{name}"
            );
            assert_eq!(changed.with_learning_rate(of.learning_rate()), of, "{name}: nothing else changes");
        }
    }
}
