//! A set of elements of one chunk, with a bit for each element. The bytes that are sent for a set are the values of
//! its elements, in the order of their places (indices in the chunk).
//!
//! Functions that are called for each element are marked `inline`. Without link-time optimization (decision 23 in
//! `docs/decisions`), an unmarked generic function is called once per element. Examples are `copied` of the standard library
//! and `read_from_bytes` of zerocopy.

use zerocopy::{FromBytes, IntoBytes, Unalign};

use crate::kernels::Element;

/// Returns the number of words of a set for a chunk of this many elements.
pub fn words(elements: usize) -> usize {
    elements.div_ceil(u64::BITS as usize)
}

/// Returns a mask of the bits of word `index` that stand for elements, in a set for a chunk of this many elements.
pub fn there(elements: usize, index: usize) -> u64 {
    u64::MAX >> (64 - (elements - index * 64).min(64))
}

/// Returns the number of elements in the set.
pub fn count(set: &[u64]) -> usize {
    set.iter().map(|word| word.count_ones() as usize).sum()
}

/// Whether the element at `place` is in the set.
#[inline]
pub fn has(set: &[u64], place: usize) -> bool {
    set[place / 64] >> (place % 64) & 1 == 1
}

/// Adds an element.
#[inline]
pub fn insert(set: &mut [u64], place: usize) {
    set[place / 64] |= 1 << (place % 64);
}

/// Returns the places of the set's elements, ascending.
#[inline]
pub fn places(set: &[u64]) -> impl Iterator<Item = usize> {
    set.iter().enumerate().flat_map(|(index, &word)| places_in(word, index))
}

/// Returns the places of the set's elements that are not in `others`, ascending.
#[inline]
pub fn places_outside(set: &[u64], others: &[u64]) -> impl Iterator<Item = usize> {
    let words = set.iter().zip(others).enumerate();
    words.flat_map(|(index, (word, others))| places_in(word & !others, index))
}

#[inline]
fn places_in(word: u64, index: usize) -> impl Iterator<Item = usize> {
    Ones(word).map(move |bit| index * 64 + bit)
}

struct Ones(u64);

impl Iterator for Ones {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        let bit = self.0.trailing_zeros();
        self.0 &= self.0.wrapping_sub(1);
        (bit < 64).then_some(bit as usize)
    }
}

/// Returns a digest (XXH3) of the set's words. The two ends of a link compare digests to check that they have the same set.
pub fn signature(set: &[u64]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(set.as_bytes())
}

/// Writes the values of the set's elements, one after the other. Returns the number of bytes written.
pub fn gather<E: Element>(set: &[u64], values: &[E], out: &mut [u8]) -> usize {
    let (out, _) = <[Unalign<E>]>::mut_from_prefix(out).expect("elements without alignment");
    let mut written = 0;
    for (place, out) in places(set).zip(out) {
        out.set(values[place]);
        written += 1;
    }
    written * size_of::<E>()
}

/// Calls `with` for each element of the set and its value, as the reverse of [`gather`]. Skips elements whose value is
/// missing in `bytes`, and places beyond the end of `to`.
pub fn scatter<E: Element, T>(set: &[u64], bytes: &[u8], to: &mut [T], mut with: impl FnMut(&mut T, E)) {
    let (values, _) = <[Unalign<E>]>::ref_from_prefix(bytes).expect("elements without alignment");
    for (place, value) in places(set).zip(values) {
        if let Some(to) = to.get_mut(place) {
            with(to, value.get());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn values_go_where_they_came_from(members in proptest::collection::vec(any::<bool>(), 1..300)) {
            let mut set = vec![0; words(members.len())];
            members.iter().enumerate().filter(|(_, is)| **is).for_each(|(place, _)| insert(&mut set, place));
            let values: Vec<f32> = (0..members.len()).map(|place| place as f32).collect();
            let mut bytes = vec![0; members.len() * 4];
            let length = gather(&set, &values, &mut bytes);
            prop_assert_eq!(length, count(&set) * 4);
            let mut back = vec![-1.0; members.len()];
            scatter::<f32, f32>(&set, &bytes[..length], &mut back, |to, value| *to = value);
            for (place, &is) in members.iter().enumerate() {
                prop_assert_eq!(has(&set, place), is);
                prop_assert_eq!(back[place], if is { place as f32 } else { -1.0 });
            }
        }

        #[test]
        fn nothing_is_reached_that_is_not_there(set: Vec<u64>, bytes: Vec<u8>, elements in 0usize..200) {
            let mut to = vec![0u8; elements];
            scatter::<f32, u8>(&set, &bytes, &mut to, |to, _| *to += 1);
            let reached = places(&set).take(bytes.len() / 4).filter(|&place| place < elements).count();
            prop_assert_eq!(to.iter().map(|&count| count as usize).sum::<usize>(), reached);
        }
    }
}
