//! Checks that a job's optimizer can step all keys of the job with new hyperparameters.
//!
//! Plain data. The hyperparameters come from outside, and are checked when they arrive.

use super::terms::JobTerms;
use crate::kernels::{Groups, InvalidOptimizer, Multipliers, Numbers, Optimizer};
use crate::layout::{Key, KeyId};

/// An error: no step can have this learning rate.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum InvalidRate {
    /// The number is not a valid rate.
    #[error("learning rate {seen}: expected a finite number, at least 0 (with 0 the weights do not change)")]
    Range {
        /// The number that was asked for.
        seen: f32,
    },
    /// The product of the rate and a key's multiplier is not finite.
    #[error(
        "learning rate {seen}: the product with lr_mult {multiplier} of key {key:?} is beyond f32; expected a \
         smaller rate"
    )]
    Overflow {
        /// The number that was asked for.
        seen: f32,
        /// The key.
        key: String,
        /// The multiplier.
        multiplier: f32,
    },
}

/// An error: a job cannot continue with these hyperparameters.
#[derive(Debug, PartialEq, thiserror::Error)]
#[allow(missing_docs)] // each variant is its message; the message prints the fields
pub enum InvalidNumbers {
    /// The hyperparameters are those of another optimizer.
    #[error(
        "the job's optimizer is {ours}, and the new hyperparameters are of {theirs}: the kind cannot change, because the \
         hub's state of each parameter depends on it; give hyperparameters of {ours}, or begin another job"
    )]
    Kind {
        /// The job's optimizer.
        ours: &'static str,
        /// The optimizer of the hyperparameters.
        theirs: &'static str,
    },
    /// A number is out of its range.
    #[error(transparent)]
    Optimizer(#[from] InvalidOptimizer),
    /// No step can have this learning rate.
    #[error(transparent)]
    Rate(#[from] InvalidRate),
    #[error("{seen} group numbers; expected one for each of the job's {expected} keys")]
    GroupCount { expected: usize, seen: usize },
    #[error("{seen} groups: expected at most 255")]
    Groups { seen: usize },
    #[error("key {key:?} is in group {group}; expected a group from 1 to {groups}")]
    NoGroup { key: String, group: u8, groups: usize },
    /// The number of multipliers is not the number of the job's keys.
    #[error("{seen} pairs of multipliers; expected one for each of the job's {expected} keys, or none")]
    Count {
        /// The number of the job's keys.
        expected: usize,
        /// The number of pairs.
        seen: usize,
    },
    /// A multiplier is not a finite number.
    #[error("{multiplier} of key {key:?} is {seen}; expected a finite number")]
    Multiplier {
        /// The key.
        key: String,
        /// The multiplier's name.
        multiplier: &'static str,
        /// The number that was asked for.
        seen: f32,
    },
    /// The product of the weight decay and a key's multiplier is beyond f32.
    #[error(
        "weight decay {seen}: the product with wd_mult {multiplier} of key {key:?} is beyond f32; expected a \
         smaller decay"
    )]
    Decay {
        /// The number that was asked for.
        seen: f32,
        /// The key.
        key: String,
        /// The multiplier.
        multiplier: f32,
    },
}

impl JobTerms {
    /// Checks that all keys can be stepped with this learning rate.
    ///
    /// # Errors
    /// Returns an error if the rate is negative or not finite, or if its product with a key's multiplier is not finite.
    pub fn check_learning_rate(&self, rate: f32) -> Result<(), InvalidRate> {
        if !rate.is_finite() || rate < 0.0 {
            return Err(InvalidRate::Range { seen: rate });
        }
        match self.keys.iter().find(|key| !(rate * key.lr_mult).is_finite()) {
            None => Ok(()),
            Some(Key { name, lr_mult, .. }) => {
                Err(InvalidRate::Overflow { seen: rate, key: name.clone(), multiplier: *lr_mult })
            }
        }
    }

    /// Checks that all keys can be stepped with these hyperparameters, as [`Numbers::check`] does.
    ///
    /// # Errors
    /// Returns an error if a key cannot be stepped.
    pub fn check_numbers(&self, numbers: &Numbers) -> Result<(), InvalidNumbers> {
        numbers.check(&self.optimizer, &self.keys)
    }
}

impl Numbers {
    /// Checks that a job with this optimizer can step all these keys with the hyperparameters.
    ///
    /// # Errors
    /// Returns an error if the hyperparameters are those of another kind of optimizer. Also returns an error if a
    /// number is out of its range, by itself or after multiplication by a key's multiplier.
    pub fn check(&self, of_job: &Optimizer, keys: &[Key]) -> Result<(), InvalidNumbers> {
        let Numbers { optimizer, multipliers, groups } = self;
        let of_groups = groups.as_ref().map_or(&[][..], |groups| &groups.optimizers);
        for optimizer in [optimizer].into_iter().chain(of_groups) {
            let (ours, theirs) = (of_job.name(), optimizer.name());
            if ours != theirs {
                return Err(InvalidNumbers::Kind { ours, theirs });
            }
            let rate = optimizer.learning_rate();
            if !rate.is_finite() || rate < 0.0 {
                return Err(InvalidRate::Range { seen: rate }.into());
            }
            optimizer.check()?;
        }
        if let Some(groups) = groups {
            check_groups(groups, keys)?;
        }
        let numbered = || (0..).map(KeyId).zip(keys);
        let Some(multipliers) = multipliers else {
            return numbered()
                .try_for_each(|(id, key)| check_key(key, [key.lr_mult, key.wd_mult], self.of(id)));
        };
        let (expected, seen) = (keys.len(), multipliers.len());
        if expected != seen {
            return Err(InvalidNumbers::Count { expected, seen });
        }
        let mut pairs = numbered().zip(&**multipliers);
        pairs.try_for_each(|((id, key), &of_key)| check_key(key, of_key, self.of(id)))
    }
}

/// Checks that each key is in an existing group, or in no group.
fn check_groups(Groups { optimizers, of_keys }: &Groups, keys: &[Key]) -> Result<(), InvalidNumbers> {
    let (groups, expected, seen) = (optimizers.len(), keys.len(), of_keys.len());
    if groups > usize::from(u8::MAX) {
        return Err(InvalidNumbers::Groups { seen: groups });
    }
    if expected != seen {
        return Err(InvalidNumbers::GroupCount { expected, seen });
    }
    match keys.iter().zip(of_keys).find(|&(_, &group)| usize::from(group) > groups) {
        Some((key, &group)) => Err(InvalidNumbers::NoGroup { key: key.name.clone(), group, groups }),
        None => Ok(()),
    }
}

/// Checks that a key can be stepped with these multipliers.
fn check_key(
    key: &Key,
    [lr_mult, wd_mult]: Multipliers,
    optimizer: &Optimizer,
) -> Result<(), InvalidNumbers> {
    let key = || key.name.clone();
    for (multiplier, seen) in [("lr_mult", lr_mult), ("wd_mult", wd_mult)] {
        if !seen.is_finite() {
            return Err(InvalidNumbers::Multiplier { key: key(), multiplier, seen });
        }
    }
    let (rate, decay) = (optimizer.learning_rate(), optimizer.weight_decay());
    if !(rate * lr_mult).is_finite() {
        return Err(InvalidRate::Overflow { seen: rate, key: key(), multiplier: lr_mult }.into());
    }
    if !(decay * wd_mult).is_finite() {
        return Err(InvalidNumbers::Decay { seen: decay, key: key(), multiplier: wd_mult });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::Optimizer;

    const MOMENTUM: Optimizer = Optimizer::Momentum { learning_rate: 0.1, weight_decay: 0.5, momentum: 0.9 };

    fn check(optimizer: Optimizer, multipliers: Option<&[Multipliers]>) -> Result<(), String> {
        let terms = JobTerms::new(1, vec![Key::f32("a", [1]), Key::f32("b", [1])], MOMENTUM);
        let numbers = Numbers { multipliers: multipliers.map(Into::into), ..Numbers::new(optimizer) };
        terms.check_numbers(&numbers).map_err(|error| error.to_string())
    }

    #[test]
    fn groups_are_of_the_kind_and_in_range() {
        let check = |optimizers: Vec<Optimizer>, of_keys: Vec<u8>| {
            let groups = Some(Groups { optimizers, of_keys }.into());
            let terms = JobTerms::new(1, vec![Key::f32("a", [1]), Key::f32("b", [1])], MOMENTUM);
            let checked = terms.check_numbers(&Numbers { groups, ..Numbers::new(MOMENTUM) });
            checked.map_err(|error| error.to_string())
        };
        assert_eq!(check(vec![MOMENTUM; 255], vec![0, 255]), Ok(()));
        let other = Optimizer::Nesterov { learning_rate: 0.1, weight_decay: 0.0, momentum: 0.9 };
        let wild = Optimizer::Momentum { learning_rate: 0.1, weight_decay: 0.0, momentum: 1.5 };
        for (refused, words) in [
            (check(vec![MOMENTUM; 256], vec![0, 1]), "256 groups: expected at most 255"),
            (check(vec![MOMENTUM], vec![0]), "1 group numbers; expected one for each of the job's 2 keys"),
            (check(vec![MOMENTUM], vec![0, 2]), "key \"b\" is in group 2; expected a group from 1 to 1"),
            (check(vec![other], vec![0, 1]), "the new hyperparameters are of nesterov"),
            (check(vec![wild], vec![0, 1]), "momentum is 1.5"),
        ] {
            let seen = refused.unwrap_err();
            assert!(seen.contains(words), "{seen}");
        }
    }

    #[test]
    fn numbers_of_the_same_kind_in_their_ranges_are_taken() {
        let other = Optimizer::Momentum { learning_rate: 0.0, weight_decay: 0.0, momentum: 0.0 };
        assert_eq!(check(other, None), Ok(()));
        assert_eq!(check(other, Some(&[[0.0, -1.0], [1e30, 0.0]])), Ok(()));
    }

    #[test]
    fn other_numbers_are_refused_with_what_was_expected() {
        let of = |learning_rate, weight_decay, momentum| Optimizer::Momentum {
            learning_rate,
            weight_decay,
            momentum,
        };
        let sgd = Optimizer::Sgd { learning_rate: 0.1, weight_decay: 0.0 };
        for (refused, words) in [
            (check(sgd, None), "the job's optimizer is momentum, and the new hyperparameters are of sgd"),
            (check(of(f32::NAN, 0.0, 0.9), None), "learning rate NaN: expected a finite number"),
            (check(of(-0.1, 0.0, 0.9), None), "learning rate -0.1: expected a finite number, at least 0"),
            (
                check(of(0.1, -0.5, 0.9), None),
                "momentum: weight_decay is -0.5; expected a finite number, at least 0",
            ),
            (check(of(0.1, 0.0, 1.0), None), "momentum is 1; expected a finite number from 0 to below 1"),
            (
                check(MOMENTUM, Some(&[[1.0, 1.0]])),
                "1 pairs of multipliers; expected one for each of the job's 2 keys",
            ),
            (check(MOMENTUM, Some(&[[1.0; 2]; 3])), "3 pairs of multipliers"),
            (check(MOMENTUM, Some(&[[1.0; 2], [1.0, f32::INFINITY]])), "wd_mult of key \"b\" is inf"),
            (
                check(of(1e30, 0.0, 0.9), Some(&[[1.0; 2], [1e30, 1.0]])),
                "product with lr_mult 1000000000000000000000000000000 of key \"b\"",
            ),
            (
                check(of(0.1, 1e30, 0.9), Some(&[[1.0; 2], [1.0, -1e30]])),
                "weight decay 1000000000000000000000000000000: the product with wd_mult",
            ),
        ] {
            let error = refused.unwrap_err();
            assert!(error.contains(words), "{error}: expected {words}");
        }
    }
}
