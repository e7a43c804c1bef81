//! The first difference between the keys of a worker and of its job. The error of a refused join shows this difference.
//!
//! This module must not depend on the source of a list.

use std::collections::HashSet;
use std::fmt;

use crate::layout::Key;

/// The first difference between a worker's keys (`ours`) and the job's keys (`theirs`).
#[derive(Clone, Debug, PartialEq)]
pub enum Difference {
    /// The lists have different lengths.
    Count {
        /// The number of the worker's keys.
        ours: usize,
        /// The number of the job's keys.
        theirs: usize,
        /// The index and the name of the first key of the longer list that is not in the shorter list. `None` only if
        /// the longer list has a name twice.
        missing: Option<(usize, String)>,
    },
    /// The lists have different keys at the same index.
    Key {
        /// The index.
        index: usize,
        /// The worker's key.
        ours: Key,
        /// The job's key.
        theirs: Key,
    },
}

/// Returns the first difference between `ours`, a worker's keys, and `theirs`, the job's keys; `None` if they are equal.
/// Order, names, shapes, types and multipliers must all be equal.
pub fn first_difference(ours: &[Key], theirs: &[Key]) -> Option<Difference> {
    if ours.len() != theirs.len() {
        let (longer, shorter) = if ours.len() > theirs.len() { (ours, theirs) } else { (theirs, ours) };
        let known: HashSet<&str> = shorter.iter().map(|key| key.name.as_str()).collect();
        let missing = longer.iter().enumerate().find(|(_, key)| !known.contains(key.name.as_str()));
        let missing = missing.map(|(index, key)| (index, key.name.clone()));
        return Some(Difference::Count { ours: ours.len(), theirs: theirs.len(), missing });
    }
    let pairs = ours.iter().zip(theirs).enumerate();
    let (index, (ours, theirs)) = pairs.into_iter().find(|(_, (ours, theirs))| ours != theirs)?;
    Some(Difference::Key { index, ours: ours.clone(), theirs: theirs.clone() })
}

impl std::error::Error for Difference {}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Difference::Count { ours, theirs, missing } => {
                write!(f, "this worker has {ours} keys, the job has {theirs}")?;
                let Some((index, name)) = missing else { return Ok(()) };
                let (lacking, having) =
                    if ours > theirs { ("the job", "this worker") } else { ("this worker", "the job") };
                write!(f, ": {lacking} lacks key {index} of {having}, {name:?}")
            }
            Difference::Key { index, ours, theirs } => {
                // Most jobs set no multipliers. They are shown only if they differ.
                let multipliers = (ours.lr_mult, ours.wd_mult) != (theirs.lr_mult, theirs.wd_mult);
                let [ours, theirs] = [ours, theirs].map(|key| Shown { key, multipliers });
                write!(f, "key {index}: this worker has {ours}, the job has {theirs}")
            }
        }
    }
}

/// A key as `"layer3.weight" f32[256,64]`, with the multipliers if they differ.
struct Shown<'a> {
    key: &'a Key,
    multipliers: bool,
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Key { name, shape, dtype, lr_mult, wd_mult } = self.key;
        let dtype = dtype.name();
        write!(f, "{name:?} {dtype}[")?;
        for (i, extent) in shape.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            write!(f, "{comma}{extent}")?;
        }
        f.write_str("]")?;
        if self.multipliers {
            write!(f, " lr_mult {lr_mult} wd_mult {wd_mult}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys() -> Vec<Key> {
        vec![Key::f32("a", [2, 3]), Key::f32("layer3.weight", [256, 64]), Key::f32("c", [])]
    }

    fn message(ours: &[Key], theirs: &[Key]) -> String {
        first_difference(ours, theirs).unwrap().to_string()
    }

    #[test]
    fn equal_lists_do_not_differ() {
        assert_eq!(first_difference(&keys(), &keys()), None);
        assert_eq!(first_difference(&[], &[]), None);
    }

    #[test]
    fn the_first_different_key_is_shown_from_both_sides() {
        let mut theirs = keys();
        theirs[1].shape = vec![256, 128];
        theirs[2].name = "d".into();
        assert_eq!(
            message(&keys(), &theirs),
            "key 1: this worker has \"layer3.weight\" f32[256,64], the job has \"layer3.weight\" f32[256,128]"
        );
        let mut theirs = keys();
        theirs[2].wd_mult = 0.0;
        assert_eq!(
            message(&keys(), &theirs),
            "key 2: this worker has \"c\" f32[] lr_mult 1 wd_mult 1, the job has \"c\" f32[] lr_mult 1 wd_mult 0"
        );
    }

    #[test]
    fn a_missing_key_is_named_with_the_side_that_lacks_it() {
        let (all, mut fewer) = (keys(), keys());
        fewer.remove(1);
        let (here, there) = (message(&all, &fewer), message(&fewer, &all));
        assert_eq!(
            here,
            "this worker has 3 keys, the job has 2: the job lacks key 1 of this worker, \"layer3.weight\""
        );
        assert_eq!(
            there,
            "this worker has 2 keys, the job has 3: this worker lacks key 1 of the job, \"layer3.weight\""
        );
        let twice = vec![Key::f32("a", []), Key::f32("a", [])];
        assert_eq!(message(&twice, &twice[..1]), "this worker has 2 keys, the job has 1");
    }
}
