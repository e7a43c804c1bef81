//! Whole keys from the parts of several hubs.

use std::collections::BTreeMap;
use std::ops::Range;

use checkpoint_file::{Decoded, is_state};
use pbox_core::Dtype;
use pbox_core::control::Only;
use versions::{Elements, Precision};

use crate::error::SourceError;

/// The prefix of a tensor's name in a hub's state, if the tensor is an average of weights.
const AVERAGE: &str = "optimizer/ema/";

/// A key's shape, and its values in pieces.
#[derive(Debug)]
pub(crate) struct Whole {
    pub shape: Vec<usize>,
    pieces: Vec<Piece>,
}

/// A hub's piece of a key.
#[derive(Debug)]
struct Piece {
    /// The key's elements that the piece should have.
    range: Range<usize>,
    elements: Elements,
}

/// Returns all keys of the parts, each with the pieces from all hubs.
///
/// # Errors
/// Returns an error if a hub has a piece of a key and does not give the key's shape. Returns an error if two
/// hubs give different shapes for a key.
pub(crate) fn whole_keys(parts: &[Decoded], only: Only) -> Result<BTreeMap<&str, Whole>, SourceError> {
    let mut keys: BTreeMap<&str, Whole> = BTreeMap::new();
    for part in parts {
        for (tensor, elements) in part.elements() {
            let key = match (only, tensor.name.strip_prefix(AVERAGE)) {
                (Only::Averages, Some(key)) => key,
                (Only::Weights, None) if !is_state(&tensor.name) => &tensor.name,
                _ => continue,
            };
            let elements = Elements { precision: precision(tensor.dtype), bytes: elements };
            let (range, shape) = match part.piece_of(key) {
                None => (0..elements.count(), Some(&tensor.shape[..])),
                Some((range, shape)) => (range, shape),
            };
            let shape = shape.ok_or_else(|| SourceError::NoShape { key: key.to_owned() })?;
            let shape: Vec<usize> = shape.iter().map(|&of| of as usize).collect();
            let whole = keys.entry(key).or_insert_with(|| Whole { shape: shape.clone(), pieces: Vec::new() });
            if whole.shape != shape {
                let first = whole.shape.clone();
                return Err(SourceError::Shape { key: key.to_owned(), first, second: shape });
            }
            whole.pieces.push(Piece { range, elements });
        }
    }
    Ok(keys)
}

fn precision(dtype: Dtype) -> Precision {
    match dtype {
        Dtype::F32 => Precision::F32,
        Dtype::F16 => Precision::F16,
        Dtype::BF16 => Precision::Bf16,
    }
}

impl Whole {
    /// Returns all elements of this key of this job in order, in pieces.
    ///
    /// # Errors
    /// Returns an error if an element is missing, or is in two pieces.
    pub fn elements(mut self, job: &str, key: &str) -> Result<Vec<Elements>, SourceError> {
        self.pieces.sort_unstable_by_key(|piece| piece.range.start);
        let unlike = |from, values, elements: &Range<usize>| {
            let (job, key, elements) = (job.to_owned(), key.to_owned(), elements.clone());
            SourceError::Elements { job, key, from, values, elements }
        };
        let mut end = 0;
        for Piece { range, elements } in &self.pieces {
            let count = elements.count();
            if range.start != end || range.len() != count {
                return Err(unlike(end, count, range));
            }
            end = range.end;
        }
        let all = self.shape.iter().try_fold(1usize, |all, &of| all.checked_mul(of)).unwrap_or(usize::MAX);
        if end != all {
            return Err(unlike(end, 0, &(end..all)));
        }
        Ok(self.pieces.into_iter().map(|piece| piece.elements).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_all_elements_of_its_shape() {
        let whole = |shape: &[usize], pieces: &[(Range<usize>, &[f32])]| {
            let piece = |(range, values): &(Range<usize>, &[f32])| Piece {
                range: range.clone(),
                elements: Elements::f32(values),
            };
            Whole { shape: shape.to_vec(), pieces: pieces.iter().map(piece).collect() }.elements("job", "a")
        };
        let pieces = whole(&[2, 2], &[(2..4, &[3., 4.]), (0..2, &[1., 2.])]).unwrap();
        assert_eq!(pieces, [Elements::f32(&[1., 2.]), Elements::f32(&[3., 4.])]);
        assert_eq!(whole(&[], &[(0..1, &[1.])]).unwrap(), [Elements::f32(&[1.])]);
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
