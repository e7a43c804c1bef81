//! Whole keys from the parts of several hubs.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;

use anyhow::{Context, ensure};
use pbox_core::control::Only;
use phub_server::checkpoint::{Decoded, is_state};

/// The names of averages of weights in a hub's state begin like this.
const AVERAGE: &str = "optimizer/ema/";

/// A key's shape, and its values in pieces.
#[derive(Debug)]
pub(super) struct Whole<'a> {
    pub shape: Vec<usize>,
    pieces: Vec<(Range<usize>, &'a [f32])>,
}

/// Returns all keys of the parts.
///
/// # Errors
/// Returns an error if a hub does not say how it shares a key, or says another shape than another hub.
pub(super) fn whole_keys(parts: &[Decoded], only: Only) -> anyhow::Result<BTreeMap<&str, Whole<'_>>> {
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
            let no_shape =
                || format!("a hub does not say the shape of key {key:?}; install the same version");
            let shape: Vec<usize> = shape.with_context(no_shape)?.iter().map(|&of| of as usize).collect();
            let whole = keys.entry(key).or_insert_with(|| Whole { shape: shape.clone(), pieces: Vec::new() });
            ensure!(
                whole.shape == shape,
                "the hubs differ in the shape of key {key:?}: {:?} and {shape:?}; give the hubs of one job",
                whole.shape
            );
            whole.pieces.push((elements, values));
        }
    }
    Ok(keys)
}

impl<'a> Whole<'a> {
    /// Returns all values in order, without a copy if one hub has the key.
    ///
    /// # Errors
    /// Returns an error if an element is missing or comes twice.
    pub fn values(mut self) -> anyhow::Result<Cow<'a, [f32]>> {
        self.pieces.sort_unstable_by_key(|(elements, _)| elements.start);
        let mut end = 0;
        for (elements, values) in &self.pieces {
            ensure!(
                elements.start == end && elements.len() == values.len(),
                "expected its elements from {end} on, and a hub gave {} values for {elements:?}; give all hubs of the job once",
                values.len()
            );
            end = elements.end;
        }
        Ok(match &self.pieces[..] {
            [(_, values)] => Cow::Borrowed(values),
            pieces => Cow::Owned(pieces.iter().map(|&(_, values)| values).collect::<Vec<_>>().concat()),
        })
    }
}
