//! The hyperparameters of a job's optimizer. The job's members change them while it runs.

use pbox_core::{Consistency, JobTerms, KeyId, Numbers, NumbersByRound, Round};
use serde::{Deserialize, Serialize};

/// The number of rounds, behind the slowest chunk, for which hyperparameters are kept. A checkpoint that is being
/// written needs the hyperparameters of its own round. The checkpoint fails if these hyperparameters have been
/// forgotten.
const KEPT_ROUNDS: u32 = 1024;

/// The limit on [`NumbersByRound::size`] of a job with few keys. Without a limit, members could make the list of
/// hyperparameters grow by naming many rounds.
const MOST: usize = 1 << 22;

/// A change that a member asks for.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum Change {
    /// The learning rate. All other hyperparameters stay.
    Rate(f32),
    /// All hyperparameters. Multipliers that are left out do not change.
    All(Numbers),
}

impl Change {
    /// Returns the hyperparameters after this change. `former` are the hyperparameters before the change.
    fn after(&self, former: &Numbers) -> Numbers {
        match self {
            Change::Rate(rate) => former.with_learning_rate(*rate),
            Change::All(numbers) => former.then(numbers.clone()),
        }
    }

    /// Returns a job's list of hyperparameters by round, with this change from round `from` on. The change also sets the
    /// optimizer's state of some keys to zero.
    ///
    /// # Errors
    /// Returns the reason, in words, if the job cannot make the change.
    pub(crate) fn checked(
        &self,
        (list, terms): (&NumbersByRound, &JobTerms),
        from: Round,
        reset: &[KeyId],
    ) -> Result<Numbers, String> {
        let numbers = self.after(list.at(from));
        terms.check_numbers(&numbers).map_err(|error| error.to_string())?;
        check_room(list, &numbers, terms.keys.len())?;
        check_reset(terms, reset)?;
        Ok(numbers)
    }
}

/// Forgets hyperparameters of rounds before `oldest`, the oldest round in flight.
pub(crate) fn forget_numbers(list: &mut NumbersByRound, oldest: Round) {
    let kept = if list.size() > MOST / 2 { 0 } else { KEPT_ROUNDS };
    list.forget_before(Round(oldest.0.saturating_sub(kept)));
}

/// Checks that the optimizer state of these keys can be set to zero.
fn check_reset(terms: &JobTerms, reset: &[KeyId]) -> Result<(), String> {
    let (keys, consistency) = (terms.keys.len(), terms.level.consistency);
    if let Some(key) = reset.iter().find(|key| key.index() >= keys) {
        return Err(format!(
            "reset: there is no key {} of {keys}: keys are numbered from 0 in the order of the join",
            key.0
        ));
    }
    if !reset.is_empty() && consistency != Consistency::Bsp {
        return Err(format!(
            "reset: with consistency {consistency} workers are in different rounds, so there is no \
             moment between two rounds of all workers; use bsp"
        ));
    }
    Ok(())
}

/// Checks that a job's list has room for a change.
fn check_room(list: &NumbersByRound, change: &Numbers, keys: usize) -> Result<(), String> {
    let (size, most) = (list.size() + change.size(), MOST.max(16 * keys));
    if size > most {
        return Err(format!(
            "the job's changes of hyperparameters for rounds that are not over would have size {size} (an optimizer has 64, \
             the multipliers of a key 2, the group of a key 1); expected at most {most}: let each change begin at the next round"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pbox_core::{Multipliers, Optimizer};

    use super::*;

    #[test]
    fn a_list_takes_no_more_changes_than_its_bound() {
        let numbers = Numbers::new(Optimizer::Sgd { learning_rate: 0.1, weight_decay: 0.0 });
        let mut list = NumbersByRound::new(numbers.clone());
        let mut rounds = (1..).map(Round);
        let table: Arc<[Multipliers]> = vec![[1.0, 1.0]; 1 << 20].into();
        let change = Numbers { multipliers: Some(table), ..numbers };
        while check_room(&list, &change, 1 << 20).is_ok() {
            list.change(rounds.next().unwrap(), change.clone());
        }
        assert_eq!(rounds.next(), Some(Round(8)), "seven tables of a million keys");
        let error = check_room(&list, &change, 1 << 20).unwrap_err();
        assert!(error.contains("expected at most 16777216"), "{error}");
    }
}
