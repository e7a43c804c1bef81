//! Whole keys from the parts of several hubs.

use std::collections::BTreeMap;
use std::ops::Range;

use checkpoint_file::{Decoded, is_state};
use pbox_core::Dtype;
use pbox_core::control::Only;
use versions::Values;
use zerocopy::FromBytes;

use crate::error::SourceError;

/// The prefix of the names of averages of weights in a hub's state.
const AVERAGE: &str = "optimizer/ema/";

/// A key's shape, and its values in pieces.
#[derive(Debug)]
pub(crate) struct Whole<'a> {
    pub shape: Vec<usize>,
    pieces: Vec<Piece<'a>>,
}

/// A hub's piece of a key.
#[derive(Debug)]
struct Piece<'a> {
    /// The key's elements that the piece should have.
    range: Range<usize>,
    /// The number of elements that the piece has.
    count: usize,
    values: Values<'a>,
}

/// Returns all keys of the parts, each with the pieces from all hubs.
///
/// # Errors
/// Returns an error if a hub has a piece of a key and does not give the key's shape. Returns an error if two
/// hubs give different shapes for a key.
pub(crate) fn whole_keys(parts: &[Decoded], only: Only) -> Result<BTreeMap<&str, Whole<'_>>, SourceError> {
    let mut keys: BTreeMap<&str, Whole<'_>> = BTreeMap::new();
    for part in parts {
        for (tensor, elements) in part.elements() {
            let key = match (only, tensor.name.strip_prefix(AVERAGE)) {
                (Only::Averages, Some(key)) => key,
                (Only::Weights, None) if !is_state(&tensor.name) => &tensor.name,
                _ => continue,
            };
            let count = elements.len() / tensor.dtype.bytes();
            let values = match tensor.dtype {
                Dtype::F32 => Values::F32(<[f32]>::ref_from_bytes(elements).expect("the tensor is aligned")),
                Dtype::BF16 | Dtype::F16 => Values::Rounded(elements),
            };
            let (range, shape) = match part.piece_of(key) {
                None => (0..count, Some(&tensor.shape[..])),
                Some((range, shape)) => (range, shape),
            };
            let shape = shape.ok_or_else(|| SourceError::NoShape { key: key.to_owned() })?;
            let shape: Vec<usize> = shape.iter().map(|&of| of as usize).collect();
            let whole = keys.entry(key).or_insert_with(|| Whole { shape: shape.clone(), pieces: Vec::new() });
            if whole.shape != shape {
                let first = whole.shape.clone();
                return Err(SourceError::Shape { key: key.to_owned(), first, second: shape });
            }
            whole.pieces.push(Piece { range, count, values });
        }
    }
    Ok(keys)
}

impl<'a> Whole<'a> {
    /// Returns all values of this key of this job in order, in pieces.
    ///
    /// # Errors
    /// Returns an error if an element is missing or comes twice.
    pub fn values(&self, job: &str, key: &str) -> Result<Vec<Values<'a>>, SourceError> {
        let mut pieces: Vec<&Piece<'a>> = self.pieces.iter().collect();
        pieces.sort_unstable_by_key(|piece| piece.range.start);
        let unlike = |from, values, elements: &Range<usize>| {
            let (job, key, elements) = (job.to_owned(), key.to_owned(), elements.clone());
            SourceError::Elements { job, key, from, values, elements }
        };
        let mut end = 0;
        for Piece { range, count, .. } in &pieces {
            if range.start != end || range.len() != *count {
                return Err(unlike(end, *count, range));
            }
            end = range.end;
        }
        let all = self.shape.iter().try_fold(1usize, |all, &of| all.checked_mul(of)).unwrap_or(usize::MAX);
        if end != all {
            return Err(unlike(end, 0, &(end..all)));
        }
        Ok(pieces.into_iter().map(|piece| piece.values).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_all_elements_of_its_shape() {
        let whole = |shape: &[usize], pieces: &[(Range<usize>, &'static [f32])]| {
            let piece = |(range, values): &(Range<usize>, &'static [f32])| Piece {
                range: range.clone(),
                count: values.len(),
                values: Values::F32(values),
            };
            Whole { shape: shape.to_vec(), pieces: pieces.iter().map(piece).collect() }.values("job", "a")
        };
        let pieces = whole(&[2, 2], &[(2..4, &[3., 4.]), (0..2, &[1., 2.])]).unwrap();
        assert_eq!(pieces, [Values::F32(&[1., 2.]), Values::F32(&[3., 4.])]);
        assert_eq!(whole(&[], &[(0..1, &[1.])]).unwrap(), [Values::F32(&[1.])]);
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
