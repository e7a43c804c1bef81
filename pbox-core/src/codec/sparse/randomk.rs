//! `randomk`: sends the values of random elements, unchanged. The other values are kept and added to the next values (Stich et
//! al., "Sparsified SGD with Memory", 2018). Values are not scaled up to make them unbiased, because the kept values are
//! sent later.
//!
//! ```text
//!   key of the random numbers: u64 | values: f32 each
//! ```
//!
//! Both ends draw the elements from the key, so the payload has no indices. If `k` values are sent, the chunk is cut into `k`
//! runs of neighbouring elements. The first run starts at a random element; the chunk's first element follows its last one.
//! One element of each run is drawn. The paper draws one of all sets of `k` elements. With runs, too, each element is sent
//! with the same probability, and the paper's proof needs no more. The indices are distinct and nearly ascending without a
//! table.

use super::topk::{add_to_state, count};
use crate::codec::draw::Key;
use crate::codec::encoded::Encoded;
use crate::codec::error::PayloadError;
use crate::codec::number::finite;
use crate::kernels::Kernels;
use crate::kernels::{Converter, Work};

/// The length of the key, in bytes.
const KEY: usize = 8;

pub fn payload_bytes(elements: usize, ratio: f32) -> usize {
    KEY + 4 * count(elements, ratio)
}

pub fn encode(kernels: &Kernels, values: &[f32], state: &mut [f32], key: Key, payload: &mut [u8]) -> Encoded {
    let not_finite = kernels.work(AddToState { values, state });
    let (place, sent) = payload.split_at_mut(KEY);
    place.copy_from_slice(&key.0.to_le_bytes());
    let sent = sent.as_chunks_mut::<4>().0;
    let places = places(key, values.len(), sent.len());
    for (i, sent) in places.zip(sent) {
        let value = match state.get_mut(i) {
            Some(kept) => std::mem::take(kept),
            None => finite(values[i]),
        };
        *sent = value.to_le_bytes();
    }
    Encoded { bytes: payload.len(), not_finite }
}

/// Checks that the values are finite. `payload` must have the right length.
pub fn check_payload(payload: &[u8]) -> Result<(), PayloadError> {
    let values = payload[KEY..].as_chunks::<4>().0.iter().map(|&bytes| f32::from_le_bytes(bytes));
    match values.enumerate().find(|(_, value)| !value.is_finite()) {
        None => Ok(()),
        Some((at, seen)) => Err(PayloadError::Value { codec: "randomk", at, seen }),
    }
}

pub fn add(ratio: f32, payload: &[u8], sum: &mut [f32]) {
    if payload.len() != payload_bytes(sum.len(), ratio) {
        return;
    }
    let Some((key, values)) = payload.split_first_chunk::<KEY>() else { return };
    let values = values.as_chunks::<4>().0;
    for (i, value) in places(Key(u64::from_le_bytes(*key)), sum.len(), values.len()).zip(values) {
        sum[i] += f32::from_le_bytes(*value);
    }
}

/// Draws `count` distinct indices below `elements`.
fn places(key: Key, elements: usize, count: usize) -> impl Iterator<Item = usize> {
    let below = |random: u32, bound: usize| ((u64::from(random) * bound as u64) >> 32) as usize;
    let start = below(key.at(u32::MAX), elements);
    let run = move |i: usize| (i as u64 * elements as u64 / count as u64) as usize;
    (0..count).map(move |i| {
        let place = start + run(i) + below(key.at(i as u32), run(i + 1) - run(i));
        if place < elements { place } else { place - elements }
    })
}

/// Work that adds the values to the kept values.
struct AddToState<'a> {
    values: &'a [f32],
    state: &'a mut [f32],
}

impl Work for AddToState<'_> {
    type Output = u32;

    #[inline(always)]
    fn run<I: Converter>(self, _: I) -> u32 {
        add_to_state(self.values, self.state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn places_are_distinct(key: u64, elements in 1usize..500, share in 0.0f64..1.0) {
            let count = 1 + (share * elements as f64) as usize;
            let mut seen: Vec<usize> = places(Key(key), elements, count).collect();
            seen.sort_unstable();
            seen.dedup();
            prop_assert_eq!(seen.len(), count);
            prop_assert!(seen.iter().all(|&place| place < elements));
        }
    }

    /// 7 of 100 elements are sent, so runs have 14 or 15 elements. In 20,000 draws, each element is sent 1400 times on
    /// average, with a standard deviation of 37.
    #[test]
    fn every_place_is_equally_likely() {
        let mut counts = [0i32; 100];
        for draw in 0..20_000u64 {
            let key = Key(draw.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            places(key, 100, 7).for_each(|place| counts[place] += 1);
        }
        assert!(counts.iter().all(|count| (count - 1400).abs() < 5 * 37), "{counts:?}");
    }
}
