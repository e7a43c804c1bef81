//! `randomk`: values at random places, as they are; the others are kept and added to the next ones (Stich et al.,
//! "Sparsified SGD with Memory", 2018). Not scaled up to be unbiased: what is not sent is sent later.
//!
//! ```text
//!   key of the random numbers: u64 | values: f32 each
//! ```
//!
//! Both ends draw the places from the key, so that none is on the wire. The chunk is cut into as many runs as values
//! are sent, beginning at a random element and going round; one element of each run is drawn. The paper draws any
//! set of that size. Here too each element is sent with the same probability, which is all that its proof asks for,
//! and places are distinct and nearly ascending without a table of those that were drawn.

use super::topk::{count, feed};
use crate::codec::draw::Key;
use crate::codec::number::finite;
use crate::codec::{Encoded, PayloadError};
use crate::kernels::Kernels;
use crate::kernels::work::{Converter, Work};

/// Bytes of the key.
const KEY: usize = 8;

pub(in crate::codec) fn payload_bytes(elements: usize, ratio: f32) -> usize {
    KEY + 4 * count(elements, ratio)
}

pub(in crate::codec) fn encode(
    kernels: &Kernels,
    values: &[f32],
    state: &mut [f32],
    key: Key,
    payload: &mut [u8],
) -> Encoded {
    let not_finite = kernels.work(Feed { values, state });
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

/// `payload` has the right length.
pub(in crate::codec) fn check_payload(payload: &[u8]) -> Result<(), PayloadError> {
    let values = payload[KEY..].as_chunks::<4>().0.iter().map(|&bytes| f32::from_le_bytes(bytes));
    match values.enumerate().find(|(_, value)| !value.is_finite()) {
        None => Ok(()),
        Some((at, seen)) => Err(PayloadError::Value { codec: "randomk", at, seen }),
    }
}

pub(in crate::codec) fn add(ratio: f32, payload: &[u8], sum: &mut [f32]) {
    if payload.len() != payload_bytes(sum.len(), ratio) {
        return;
    }
    let Some((key, values)) = payload.split_first_chunk::<KEY>() else { return };
    let values = values.as_chunks::<4>().0;
    for (i, value) in places(Key(u64::from_le_bytes(*key)), sum.len(), values.len()).zip(values) {
        sum[i] += f32::from_le_bytes(*value);
    }
}

/// `count` of `elements` places, each below `elements`, no two equal.
fn places(key: Key, elements: usize, count: usize) -> impl Iterator<Item = usize> {
    let below = |random: u32, bound: usize| ((u64::from(random) * bound as u64) >> 32) as usize;
    let start = below(key.at(u32::MAX), elements);
    let run = move |i: usize| (i as u64 * elements as u64 / count as u64) as usize;
    (0..count).map(move |i| {
        let place = start + run(i) + below(key.at(i as u32), run(i + 1) - run(i));
        if place < elements { place } else { place - elements }
    })
}

struct Feed<'a> {
    values: &'a [f32],
    state: &'a mut [f32],
}

impl Work for Feed<'_> {
    type Output = u32;

    #[inline(always)]
    fn run<I: Converter>(self, _: I) -> u32 {
        feed(self.values, self.state)
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

    /// 7 of 100 do not divide: runs are of 14 and 15. In 20,000 draws each is sent 1400 times, give or take 37.
    #[test]
    fn every_place_is_as_likely() {
        let mut counts = [0i32; 100];
        for draw in 0..20_000u64 {
            let key = Key(draw.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            places(key, 100, 7).for_each(|place| counts[place] += 1);
        }
        assert!(counts.iter().all(|count| (count - 1400).abs() < 5 * 37), "{counts:?}");
    }
}
