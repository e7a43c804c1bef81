//! Whole keys from the parts of several hubs.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;

use checkpoint_file::{Decoded, is_state};
use pbox_core::control::Only;

use crate::error::SourceError;

/// The prefix of the names of averages of weights in a hub's state.
const AVERAGE: &str = "optimizer/ema/";

/// A key's shape, and its values in pieces.
#[derive(Debug)]
pub(crate) struct Whole<'a> {
    pub shape: Vec<usize>,
    pieces: Vec<(Range<usize>, &'a [f32])>,
}

/// Returns all keys of the parts, each with the pieces from all hubs.
///
/// # Errors
/// Returns an error if a hub has a piece of a key and does not give the key's shape. Returns an error if two
/// hubs give different shapes for a key.
pub(crate) fn whole_keys(parts: &[Decoded], only: Only) -> Result<BTreeMap<&str, Whole<'_>>, SourceError> {
    let mut keys: BTreeMap<&str, Whole<'_>> = BTreeMap::new();
    for part in parts {
        for (tensor, values) in part.tensors() {
            let key = match (only, tensor.name.strip_prefix(AVERAGE)) {
                (Only::Averages, Some(key)) => key,
                (Only::Weights, None) if !is_state(&tensor.name) => &tensor.name,
                _ => continue,
            };
            let (elements, shape) = match part.piece_of(key) {
                None => (0..values.len(), Some(&tensor.shape[..])),
                Some((elements, shape)) => (elements, shape),
            };
            let shape = shape.ok_or_else(|| SourceError::NoShape { key: key.to_owned() })?;
            let shape: Vec<usize> = shape.iter().map(|&of| of as usize).collect();
            let whole = keys.entry(key).or_insert_with(|| Whole { shape: shape.clone(), pieces: Vec::new() });
            if whole.shape != shape {
                let first = whole.shape.clone();
                return Err(SourceError::Shape { key: key.to_owned(), first, second: shape });
            }
            whole.pieces.push((elements, values));
        }
    }
    Ok(keys)
}

impl<'a> Whole<'a> {
    /// Returns all values of this key of this job in order, without a copy if one hub has the key.
    ///
    /// # Errors
    /// Returns an error if an element is missing or comes twice.
    pub fn values(mut self, job: &str, key: &str) -> Result<Cow<'a, [f32]>, SourceError> {
        self.pieces.sort_unstable_by_key(|(elements, _)| elements.start);
        let mut end = 0;
        for (elements, values) in &self.pieces {
            if elements.start != end || elements.len() != values.len() {
                let (job, key, elements) = (job.to_owned(), key.to_owned(), elements.clone());
                return Err(SourceError::Elements { job, key, from: end, values: values.len(), elements });
            }
            end = elements.end;
        }
        let all = self.shape.iter().try_fold(1usize, |all, &of| all.checked_mul(of)).unwrap_or(usize::MAX);
        if end != all {
            let (job, key) = (job.to_owned(), key.to_owned());
            return Err(SourceError::Elements { job, key, from: end, values: 0, elements: end..all });
        }
        Ok(match &self.pieces[..] {
            [(_, values)] => Cow::Borrowed(values),
            pieces => Cow::Owned(pieces.iter().map(|&(_, values)| values).collect::<Vec<_>>().concat()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_all_elements_of_its_shape() {
        let whole = |shape: &[usize], pieces: &[(Range<usize>, &'static [f32])]| {
            Whole { shape: shape.to_vec(), pieces: pieces.to_vec() }.values("job", "a").map(Cow::into_owned)
        };
        assert_eq!(whole(&[2, 2], &[(2..4, &[3., 4.]), (0..2, &[1., 2.])]).unwrap(), [1., 2., 3., 4.]);
        assert_eq!(whole(&[], &[(0..1, &[1.])]).unwrap(), [1.]);
        for (shape, pieces) in [
            (&[2, 2][..], &[(0..2, &[1., 2.][..])][..]),
            (&[2], &[(0..2, &[1., 2.]), (2..3, &[3.])]),
            (&[2], &[(1..2, &[2.])]),
            (&[2], &[(0..2, &[1., 2.]), (1..2, &[2.])]),
            (&[usize::MAX, 2], &[(0..2, &[1., 2.])]),
        ] {
            let why = whole(shape, pieces).unwrap_err();
            assert!(matches!(why, SourceError::Elements { .. }), "{why}");
        }
    }
}
