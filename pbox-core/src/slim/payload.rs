//! The bytes of a push and of its answer. All numbers are little endian. `docs/formats.md` describes the same bytes.
//!
//! ```text
//!   0          8       12       16
//!   [signature][ what ][ count ][ ...
//!   push       0 set            [places: u16 x count, to a multiple of 8][values of significant set and explorer]
//!              1 whole          [values of all]
//!   answer     0 set            [significant set: u64 x count][values of the set that was pushed]
//!              1 whole          [significant set: u64 x count][values of all]
//! ```
//!
//! A push has the signature of the set that it was made with. An answer has the signature of the set for the next push.
//! The answer has the set itself if the set is new, or if the worker may not have the set. With a seeded explorer,
//! `count` of a push is the number of explored elements, and no places follow.

use zerocopy::IntoBytes;

use crate::kernels::Element;

use super::explorer::Drawer;
use super::set::{self, count, gather, has, insert, scatter, there};
use super::{Explorer, SlimDp};

const HEADER: usize = 16;
const SET: u32 = 0;
const WHOLE: u32 = 1;

/// A payload that does not keep to the protocol.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SlimPayloadError {
    /// The payload does not have the expected length.
    #[error("a Slim-DP payload of {seen} bytes; expected {expected}")]
    Length {
        /// The length that follows from the header and the chunk.
        expected: usize,
        /// The length of the payload.
        seen: usize,
    },
    /// The kind is neither a set nor a whole chunk, or it is not the kind that was asked for.
    #[error(
        "a Slim-DP payload of kind {seen}: expected 0 for a set or 1 for a whole chunk, and in an answer the kind of the push"
    )]
    Kind {
        /// The kind in the header.
        seen: u32,
    },
    /// The number of an explored element is out of order, is beyond the chunk, or is in the significant set.
    #[error(
        "a Slim-DP payload explores element {place}: expected numbers of elements below {elements}, ascending, outside the significant set"
    )]
    Place {
        /// The first wrong number.
        place: u16,
        /// The number of elements of the chunk.
        elements: usize,
    },
    /// The push explores more or fewer elements than the settings require.
    #[error(
        "a Slim-DP payload explores {seen} elements of the chunk; by alpha and beta, expected about {expected:.1}"
    )]
    Explored {
        /// The number in the header.
        seen: usize,
        /// The number that the settings require, before rounding.
        expected: f64,
    },
    /// The significant set does not have its signature, or has elements that the chunk does not have.
    #[error("a Slim-DP answer's significant set does not fit its signature or its chunk")]
    SignificantSet,
}

/// The content of a push that the hub has checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Push {
    /// The values of the significant set and the explorer.
    Set,
    /// All values of the chunk.
    Whole,
    /// Values of another significant set than the hub's. The hub cannot read this push, and the worker must push the whole
    /// chunk.
    OtherSet,
}

struct Header {
    signature: u64,
    what: u32,
    count: usize,
}

impl Header {
    fn read(payload: &[u8]) -> Result<(Header, &[u8]), SlimPayloadError> {
        let (header, rest) = payload
            .split_first_chunk::<HEADER>()
            .ok_or(SlimPayloadError::Length { expected: HEADER, seen: payload.len() })?;
        let word =
            |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let signature = u64::from(word(4)) << 32 | u64::from(word(0));
        Ok((Header { signature, what: word(8), count: word(12) as usize }, rest))
    }

    fn write(signature: u64, what: u32, count: usize, payload: &mut [u8]) {
        payload[..8].copy_from_slice(&signature.to_le_bytes());
        payload[8..12].copy_from_slice(&what.to_le_bytes());
        payload[12..HEADER].copy_from_slice(&(count as u32).to_le_bytes());
    }
}

fn expect(expected: usize, payload: &[u8]) -> Result<(), SlimPayloadError> {
    let seen = payload.len();
    if expected == seen { Ok(()) } else { Err(SlimPayloadError::Length { expected, seen }) }
}

fn what(set: Option<&[u64]>) -> u32 {
    if set.is_some() { SET } else { WHOLE }
}

/// Returns the length of the longest payload, for a chunk of this many elements of this many bytes.
pub fn payload_bytes(elements: usize, element_bytes: usize) -> usize {
    let places = (elements * 2).next_multiple_of(8);
    HEADER + places.max(set::words(elements) * 8) + elements * element_bytes
}

/// Writes all values of a chunk. Returns the length of the payload, in bytes.
pub fn push_whole<E: Element>(values: &[E], payload: &mut [u8]) -> usize {
    Header::write(0, WHOLE, 0, payload); // there is no significant set

    let bytes = HEADER + size_of_val(values);
    payload[HEADER..bytes].copy_from_slice(values.as_bytes());
    bytes
}

impl SlimDp {
    /// Returns the length of the places that follow the header of a push.
    fn places_bytes(&self, count: usize) -> usize {
        match self.explorer {
            Explorer::Keys => (count * 2).next_multiple_of(8),
            Explorer::Seeded => 0,
        }
    }

    /// Draws the explorer, fills `set` with the significant set and the explorer, and writes their values. Returns the
    /// length of the payload, in bytes.
    pub fn push_set<E: Element>(
        &self,
        significant: &[u64],
        set: &mut [u64],
        drawer: Drawer,
        values: &[E],
        payload: &mut [u8],
    ) -> usize {
        let explored = self.explore(values.len(), significant, set, drawer);
        Header::write(set::signature(significant), SET, explored, payload);
        let start = HEADER + self.places_bytes(explored);
        if self.explorer == Explorer::Keys {
            let places = &mut payload[HEADER..start];
            places.fill(0);
            set::places_outside(set, significant).zip(places.chunks_exact_mut(2)).for_each(|(place, out)| {
                out.copy_from_slice(&(place as u16).to_le_bytes());
            });
        }
        start + gather(set, values, &mut payload[start..])
    }

    /// Checks the payload of a push, and returns its kind. The chunk has this many elements of this many bytes.
    /// `significant` is the hub's significant set with its signature, if the hub has selected a set.
    pub fn check_push(
        &self,
        elements: usize,
        element_bytes: usize,
        significant: Option<(&[u64], u64)>,
        payload: &[u8],
    ) -> Result<Push, SlimPayloadError> {
        let (header, rest) = Header::read(payload)?;
        let significant = significant.filter(|(_, signature)| *signature == header.signature);
        match (header.what, significant) {
            (WHOLE, _) => expect(elements * element_bytes, rest).map(|()| Push::Whole),
            (SET, None) => Ok(Push::OtherSet),
            (SET, Some((significant, _))) => {
                let significant_count = count(significant);
                let (seen, expected) = (header.count, self.explored(elements - significant_count));
                if (seen as f64 - expected).abs() > 1.0 || seen > elements - significant_count {
                    return Err(SlimPayloadError::Explored { seen, expected });
                }
                let places = self.places_bytes(seen);
                expect(places + (significant_count + seen) * element_bytes, rest)?;
                if self.explorer == Explorer::Keys {
                    check_places(elements, significant, &rest[..seen * 2])?;
                }
                Ok(Push::Set)
            }
            (seen, _) => Err(SlimPayloadError::Kind { seen }),
        }
    }

    /// Adds the values of a push to `sum`. Accepts any bytes, and reads and writes only within bounds.
    ///
    /// Returns true for a whole chunk. Otherwise `set` becomes the set of pushed elements, which the answer needs.
    pub fn add_push<E: Element>(
        &self,
        significant: &[u64],
        set: &mut [u64],
        drawer: Drawer,
        payload: &[u8],
        sum: &mut [f32],
    ) -> bool {
        let elements = sum.len();
        let Ok((header, rest)) = Header::read(payload) else { return false };
        if header.what == WHOLE {
            let values = rest
                .chunks_exact(size_of::<E>())
                .map(|bytes| E::read_from_bytes(bytes).expect("a chunk of this length"));
            sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += value.to_f32());
            return true;
        }
        let start = match self.explorer {
            Explorer::Seeded => {
                self.explore(elements, significant, set, drawer);
                0
            }
            Explorer::Keys => {
                set.copy_from_slice(significant);
                let places = rest.chunks_exact(2).take(header.count);
                places.map(place_of).filter(|&place| usize::from(place) < elements).for_each(|place| {
                    insert(set, place.into());
                });
                self.places_bytes(header.count.min(elements)).min(rest.len())
            }
        };
        scatter::<E, f32>(set, &rest[start..], sum, |sum, value| *sum += value.to_f32());
        false
    }
}

fn place_of(bytes: &[u8]) -> u16 {
    u16::from_le_bytes([bytes[0], bytes[1]])
}

fn check_places(elements: usize, significant: &[u64], places: &[u8]) -> Result<(), SlimPayloadError> {
    let mut least = 0;
    for place in places.chunks_exact(2).map(place_of) {
        let at = usize::from(place);
        if at < least || at >= elements || has(significant, at) {
            return Err(SlimPayloadError::Place { place, elements });
        }
        least = at + 1;
    }
    Ok(())
}

/// Writes the answer to a push. The answer has the weights of `set`, or all weights if there is no set. It also has the
/// signature of the significant set for the next push. If the worker lacks that set, `brought` is that set, and the
/// answer contains it. Otherwise `brought` is empty. Returns the length of the payload.
pub fn answer<E: Element>(
    set: Option<&[u64]>,
    signature: u64,
    brought: &[u64],
    weights: &[E],
    payload: &mut [u8],
) -> usize {
    Header::write(signature, what(set), brought.len(), payload);
    let mut bytes = HEADER;
    for word in brought {
        payload[bytes..bytes + 8].copy_from_slice(&word.to_le_bytes());
        bytes += 8;
    }
    match set {
        Some(set) => bytes + gather(set, weights, &mut payload[bytes..]),
        None => {
            payload[bytes..bytes + size_of_val(weights)].copy_from_slice(weights.as_bytes());
            bytes + size_of_val(weights)
        }
    }
}

/// Merges an answer into a worker's weights: the weights of the pushed `set`, or all weights if there is no set. If the
/// answer brings a significant set, writes it to `significant`. Returns whether `significant` is now the hub's set. If it
/// is not, the next push must be whole, and its answer brings the set.
///
/// # Errors
/// Returns an error if the hub did not send what was requested. Then nothing is changed.
pub fn merge<E: Element>(
    payload: &[u8],
    set: Option<&[u64]>,
    significant: &mut [u64],
    weights: &mut [E],
) -> Result<bool, SlimPayloadError> {
    let (header, rest) = Header::read(payload)?;
    if header.what != what(set) {
        return Err(SlimPayloadError::Kind { seen: header.what });
    }
    let values = set.map_or(weights.len(), count);
    if header.count != 0 && header.count != significant.len() {
        return Err(SlimPayloadError::SignificantSet);
    }
    expect(header.count * 8 + values * size_of::<E>(), rest)?;
    let (words, rest) = rest.split_at(header.count * 8);
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    if let Some(last) = words.chunks_exact(8).next_back().map(word) {
        let beyond = last & !there(weights.len(), significant.len() - 1);
        if beyond != 0 || xxhash_rust::xxh3::xxh3_64(words) != header.signature {
            return Err(SlimPayloadError::SignificantSet);
        }
    }
    match set {
        Some(set) => scatter::<E, E>(set, rest, weights, |weight, value| *weight = value),
        None => weights.as_mut_bytes().copy_from_slice(rest),
    }
    significant
        .iter_mut()
        .zip(words.chunks_exact(8))
        .for_each(|(significant, bytes)| *significant = word(bytes));
    Ok(set::signature(significant) == header.signature)
}

#[cfg(test)]
mod tests;
