//! The tensors of a job: its keys, renamed, cut and joined by a mapping of names.
//!
//! Values lie row by row. So the parts into which the first dimension is cut lie one after another, and their values are copied as
//! they are. The mapping is checked before the first value is read.

use std::collections::{BTreeMap, VecDeque};

use versions::{Elements, NewTensor, Precision, Weights};

use crate::error::{Misfit, SourceError, Unfit};
use crate::names::{Entry, Names, Shaped};
use crate::whole::Whole;

/// Keys, and the tensors with the same values in the same order: a key and its tensors, or a tensor and its keys.
#[derive(Debug)]
struct Group<'a> {
    keys: Vec<(&'a str, Whole)>,
    tensors: Vec<Shaped>,
}

/// Returns the tensors of a job's keys. A tensor without a type in `names` has the type `of_all`.
///
/// # Errors
/// Returns an error if the mapping does not fit the keys, or if a key is not whole.
pub(crate) fn tensors<'a>(
    job: &str,
    names: &'a Names,
    mut keys: BTreeMap<&'a str, Whole>,
    of_all: Precision,
) -> Result<Weights, SourceError> {
    let mut groups = take_entries(job, names, &mut keys)?;
    groups.extend(keys.into_iter().map(|(key, whole)| {
        let tensor = Shaped { name: key.to_owned(), shape: whole.shape.clone(), precision: None };
        Group { keys: vec![(key, whole)], tensors: vec![tensor] }
    }));
    check_names(job, &groups)?;
    let (mut new, mut key_of) = (Vec::new(), Vec::new());
    for Group { keys, tensors } in groups {
        let first = keys.first().map_or("", |(key, _)| key);
        let mut pieces = VecDeque::new();
        for (key, whole) in keys {
            pieces.extend(whole.elements(job, key)?);
        }
        for Shaped { name, shape, precision } in tensors {
            let pieces = take(&mut pieces, elements(&shape));
            new.push(NewTensor { name, shape, pieces, precision: precision.unwrap_or(of_all) });
            key_of.push(first);
        }
    }
    Weights::of(&new).map_err(|(at, error)| SourceError::Tensor {
        job: job.into(),
        key: key_of[at].into(),
        error,
    })
}

/// Takes the first `count` elements out of `pieces`.
fn take(pieces: &mut VecDeque<Elements>, mut count: usize) -> Vec<Elements> {
    let mut taken = Vec::new();
    while count > 0 {
        let first = pieces.front_mut().expect("the shapes fit");
        let now = first.count().min(count);
        count -= now;
        taken.push(first.split_to(now));
        pieces.pop_front_if(|first| first.count() == 0);
    }
    taken
}

/// Takes the keys of the mapping's entries out of `keys`, and returns a group for each entry.
fn take_entries<'a>(
    job: &str,
    names: &'a Names,
    keys: &mut BTreeMap<&'a str, Whole>,
) -> Result<Vec<Group<'a>>, SourceError> {
    let mut tensor_of: BTreeMap<&str, &str> = BTreeMap::new();
    let mut groups = Vec::new();
    for (of, entry) in &names.0 {
        let name = entry.first_tensor(of);
        let mut take = |key: &'a String| match (keys.remove(&key[..]), tensor_of.insert(key, name)) {
            (Some(whole), _) => Ok((&key[..], whole)),
            (None, None) => Err(SourceError::NoKey { job: job.into(), key: key.clone(), name: name.into() }),
            (None, Some(first)) => {
                let (job, first, second) = (job.into(), first.into(), name.into());
                Err(SourceError::TwoEntries { job, key: key.clone(), first, second })
            }
        };
        groups.push(match entry {
            Entry::Whole(tensor) => {
                let key = take(of)?;
                let (shape, precision) = (key.1.shape.clone(), tensor.precision);
                Group { keys: vec![key], tensors: vec![Shaped { name: name.into(), shape, precision }] }
            }
            Entry::Split(parts) => {
                let key = take(of)?;
                let pieces: Vec<_> = parts.iter().map(|part| &part.shape[..]).collect();
                fit(&key.1.shape, &pieces).map_err(|(at, why)| misfit(job, &key, &parts[at], why))?;
                Group { keys: vec![key], tensors: parts.clone() }
            }
            Entry::Join { keys, tensor } => {
                let keys = keys.iter().map(take).collect::<Result<Vec<_>, _>>()?;
                let pieces: Vec<_> = keys.iter().map(|(_, whole)| &whole.shape[..]).collect();
                fit(&tensor.shape, &pieces).map_err(|(at, why)| misfit(job, &keys[at], tensor, why))?;
                Group { keys, tensors: vec![tensor.clone()] }
            }
        });
    }
    Ok(groups)
}

/// Checks that no two tensors have one name.
fn check_names(job: &str, groups: &[Group<'_>]) -> Result<(), SourceError> {
    let mut key_of: BTreeMap<&str, &str> = BTreeMap::new();
    for Group { keys, tensors } in groups {
        let second = keys.first().map_or("", |(key, _)| key);
        for Shaped { name, .. } in tensors {
            if let Some(first) = key_of.insert(name, second) {
                let (job, first, second, name) = (job.into(), first.into(), second.into(), name.clone());
                return Err(SourceError::OneName { job, first, second, name });
            }
        }
    }
    Ok(())
}

/// Checks that pieces of these shapes, joined in order, give the whole tensor. A piece consists of rows of the whole tensor. If a
/// piece has fewer dimensions, it consists of rows of one part of the whole, such as one expert.
///
/// # Errors
/// Returns the number of the piece that does not fit, and the reason.
fn fit(whole: &[usize], pieces: &[&[usize]]) -> Result<(), (usize, Unfit)> {
    let dimensions = pieces.first().map_or(0, |piece| piece.len()).min(whole.len());
    let inner = &whole[whole.len() - dimensions..];
    let last = inner.get(1..).unwrap_or_default();
    // A hub may send any shape.
    let (row, room_each, all) = (elements(last).max(1), elements(inner).max(1), elements(whole));
    let mut end = 0;
    for (at, &piece) in pieces.iter().enumerate() {
        if piece.len() != inner.len() || piece.get(1..).unwrap_or_default() != last {
            let first = inner.first().map(|_| "N".to_owned());
            let expected: Vec<_> = first.into_iter().chain(last.iter().map(usize::to_string)).collect();
            return Err((at, Unfit::Dimensions { expected: expected.join(", ") }));
        }
        let room = (room_each - end % room_each).min(all - end);
        if elements(piece) > room {
            return Err((at, Unfit::Room { rows: elements(piece) / row, room: room / row }));
        }
        end += elements(piece);
    }
    match all - end {
        0 => Ok(()),
        missing => Err((pieces.len() - 1, Unfit::Missing { rows: missing / row })),
    }
}

fn misfit(job: &str, (key, whole): &(&str, Whole), tensor: &Shaped, why: Unfit) -> SourceError {
    let (job, key, of_key) = (job.into(), (*key).to_owned(), whole.shape.clone());
    let (name, shape) = (tensor.name.clone(), tensor.shape.clone());
    SourceError::Misfit(Box::new(Misfit { job, key, of_key, name, shape, why }))
}

/// Returns the number of elements of a shape.
fn elements(shape: &[usize]) -> usize {
    shape.iter().fold(1, |all, &of| all.saturating_mul(of))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The shapes of the whole and of its pieces.
    type Shapes<'a> = (&'a [usize], &'a [&'a [usize]]);

    #[test]
    fn pieces_are_rows_of_the_whole_or_of_each_expert() {
        let fits: [Shapes<'_>; 9] = [
            (&[12, 4], &[&[8, 4], &[2, 4], &[2, 4]]),
            (&[12], &[&[8], &[4]]),
            (&[3, 4, 5], &[&[4, 5], &[4, 5], &[4, 5]]),
            (&[3, 4, 5], &[&[1, 4, 5], &[2, 4, 5]]),
            (&[2, 4, 5], &[&[3, 5], &[1, 5], &[3, 5], &[1, 5]]),
            (&[1, 4], &[&[4]]),
            (&[2], &[&[], &[]]),
            (&[], &[&[]]),
            (&[usize::MAX, 2], &[&[usize::MAX, 2]]),
        ];
        for (whole, pieces) in fits {
            assert_eq!(fit(whole, pieces), Ok(()), "{whole:?} of {pieces:?}");
        }
    }

    #[test]
    fn pieces_that_do_not_fit_are_named_with_the_reason() {
        let shape = |expected: &str| Unfit::Dimensions { expected: expected.to_owned() };
        let misfits: [(Shapes<'_>, usize, Unfit); 13] = [
            ((&[12, 4], &[&[8, 4], &[2, 3], &[2, 4]]), 1, shape("N, 4")),
            // The second dimension is cut.
            ((&[4, 12], &[&[4, 8], &[4, 4]]), 0, shape("N, 12")),
            ((&[3, 8, 5], &[&[3, 4, 5], &[3, 4, 5]]), 0, shape("N, 8, 5")),
            ((&[3, 4, 5], &[&[1, 4, 5], &[4, 5], &[4, 5]]), 1, shape("N, 4, 5")),
            ((&[4], &[&[1, 4]]), 0, shape("N")),
            ((&[], &[&[1]]), 0, shape("")),
            ((&[2], &[&[], &[1]]), 1, shape("")),
            ((&[12, 4], &[&[8, 4], &[2, 4], &[3, 4]]), 2, Unfit::Room { rows: 3, room: 2 }),
            ((&[12, 4], &[&[12, 4], &[1, 4]]), 1, Unfit::Room { rows: 1, room: 0 }),
            // The second piece would have rows of two experts.
            ((&[2, 4, 5], &[&[3, 5], &[3, 5], &[2, 5]]), 1, Unfit::Room { rows: 3, room: 1 }),
            ((&[12, 4], &[&[8, 4], &[2, 4]]), 1, Unfit::Missing { rows: 2 }),
            ((&[3, 4, 5], &[&[4, 5], &[4, 5]]), 1, Unfit::Missing { rows: 4 }),
            ((&[0, 4], &[&[1, 4]]), 0, Unfit::Room { rows: 1, room: 0 }),
        ];
        for ((whole, pieces), at, why) in misfits {
            assert_eq!(fit(whole, pieces), Err((at, why)), "{whole:?} of {pieces:?}");
        }
    }
}
