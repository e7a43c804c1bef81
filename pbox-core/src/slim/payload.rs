//! What the bytes of a push and of its answer mean. Little endian; the protocol page has the same.
//!
//! ```text
//!   0          8       12       16
//!   [signature][ what ][ count ][ ...
//!   push       0 set            [places: u16 x count, to a multiple of 8][values of core and explorer]
//!              1 whole          [values of all]
//!   answer     0 set            [core: u64 x count][values of the set that was pushed]
//!              1 whole          [core: u64 x count][values of all]
//! ```
//!
//! The signature is that of the core: in a push the one that it was made with, in an answer the one to push with
//! next. An answer has the core with it where that is a new one, or the worker cannot know it. With a seeded explorer
//! `count` of a push is how many are explored, and no places follow.

use zerocopy::IntoBytes;

use crate::kernels::Element;

use super::explorer::Drawer;
use super::set::{self, count, gather, has, insert, scatter, there};
use super::{Explorer, SlimDp};

const HEADER: usize = 16;
const SET: u32 = 0;
const WHOLE: u32 = 1;

/// A payload that is none.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PayloadError {
    /// Another length than it must have.
    #[error("a Slim-DP payload of {seen} bytes, where {expected} were expected")]
    Length {
        /// What its header and the chunk ask for.
        expected: usize,
        /// What it has.
        seen: usize,
    },
    /// Neither a set nor a whole chunk, or not the one that was asked for.
    #[error(
        "a Slim-DP payload of kind {seen}: expected 0 for a set, 1 for a whole chunk, and of an answer what was pushed"
    )]
    Kind {
        /// What it says.
        seen: u32,
    },
    /// Places that are none.
    #[error(
        "a Slim-DP payload explores place {place}: expected places below {elements}, ascending, outside the core"
    )]
    Place {
        /// The first such place.
        place: u16,
        /// Elements of the chunk.
        elements: usize,
    },
    /// More or fewer explored than the settings say.
    #[error(
        "a Slim-DP payload explores {seen} elements of the chunk, where alpha and beta say {expected:.1}"
    )]
    Explored {
        /// What it has.
        seen: usize,
        /// What was agreed on, before it is rounded.
        expected: f64,
    },
    /// A core that does not have its signature, or elements that the chunk does not have.
    #[error("a Slim-DP answer's core does not fit its signature or its chunk")]
    Core,
}

/// What a push is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Push {
    /// Values of core and explorer.
    Set,
    /// All values.
    Whole,
    /// Of a core that is not the hub's: it cannot be read, and is to be pushed again, whole.
    OtherCore,
}

struct Header {
    signature: u64,
    what: u32,
    count: usize,
}

impl Header {
    fn read(payload: &[u8]) -> Result<(Header, &[u8]), PayloadError> {
        let (header, rest) = payload
            .split_first_chunk::<HEADER>()
            .ok_or(PayloadError::Length { expected: HEADER, seen: payload.len() })?;
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

fn expect(expected: usize, payload: &[u8]) -> Result<(), PayloadError> {
    let seen = payload.len();
    if expected == seen { Ok(()) } else { Err(PayloadError::Length { expected, seen }) }
}

fn what(set: Option<&[u64]>) -> u32 {
    if set.is_some() { SET } else { WHOLE }
}

/// Most bytes of a payload of a chunk of so many elements of so many bytes.
pub fn payload_bytes(elements: usize, element_bytes: usize) -> usize {
    let places = (elements * 2).next_multiple_of(8);
    HEADER + places.max(set::words(elements) * 8) + elements * element_bytes
}

/// Writes all values of a chunk; the bytes that they take.
pub fn push_whole<E: Element>(values: &[E], payload: &mut [u8]) -> usize {
    Header::write(0, WHOLE, 0, payload); // of no core

    let bytes = HEADER + size_of_val(values);
    payload[HEADER..bytes].copy_from_slice(values.as_bytes());
    bytes
}

impl SlimDp {
    /// Bytes of places that follow the header of a push.
    fn places_bytes(&self, count: usize) -> usize {
        match self.explorer {
            Explorer::Keys => (count * 2).next_multiple_of(8),
            Explorer::Seeded => 0,
        }
    }

    /// Draws the explorer and writes the values of `set`, which becomes core and explorer; the bytes that they take.
    pub fn push_set<E: Element>(
        &self,
        core: &[u64],
        set: &mut [u64],
        drawer: Drawer,
        values: &[E],
        payload: &mut [u8],
    ) -> usize {
        let explored = self.explore(values.len(), core, set, drawer);
        Header::write(set::signature(core), SET, explored, payload);
        let start = HEADER + self.places_bytes(explored);
        if self.explorer == Explorer::Keys {
            let places = &mut payload[HEADER..start];
            places.fill(0);
            set::places_outside(set, core).zip(places.chunks_exact_mut(2)).for_each(|(place, out)| {
                out.copy_from_slice(&(place as u16).to_le_bytes());
            });
        }
        start + gather(set, values, &mut payload[start..])
    }

    /// What these bytes push, of a chunk of so many elements of so many bytes; `core` is the hub's, with its signature,
    /// where it has one.
    pub fn check_push(
        &self,
        elements: usize,
        element_bytes: usize,
        core: Option<(&[u64], u64)>,
        payload: &[u8],
    ) -> Result<Push, PayloadError> {
        let (header, rest) = Header::read(payload)?;
        let core = core.filter(|(_, signature)| *signature == header.signature);
        match (header.what, core) {
            (WHOLE, _) => expect(elements * element_bytes, rest).map(|()| Push::Whole),
            (SET, None) => Ok(Push::OtherCore),
            (SET, Some((core, _))) => {
                let core_count = count(core);
                let (seen, expected) = (header.count, self.explored(elements - core_count));
                if (seen as f64 - expected).abs() > 1.0 || seen > elements - core_count {
                    return Err(PayloadError::Explored { seen, expected });
                }
                let places = self.places_bytes(seen);
                expect(places + (core_count + seen) * element_bytes, rest)?;
                if self.explorer == Explorer::Keys {
                    check_places(elements, core, &rest[..seen * 2])?;
                }
                Ok(Push::Set)
            }
            (seen, _) => Err(PayloadError::Kind { seen }),
        }
    }

    /// Adds what a push has to `sum`; `set` becomes what it is of, for the answer. Total: whatever the bytes, nothing
    /// is read or written that is not there.
    ///
    /// True for a whole chunk.
    pub fn add_push<E: Element>(
        &self,
        core: &[u64],
        set: &mut [u64],
        drawer: Drawer,
        payload: &[u8],
        sum: &mut [f32],
    ) -> bool {
        let elements = sum.len();
        let Ok((header, rest)) = Header::read(payload) else { return false };
        if header.what == WHOLE {
            let values =
                rest.chunks_exact(size_of::<E>()).map(|bytes| E::read_from_bytes(bytes).expect("as long"));
            sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += value.to_f32());
            return true;
        }
        let start = match self.explorer {
            Explorer::Seeded => {
                self.explore(elements, core, set, drawer);
                0
            }
            Explorer::Keys => {
                set.copy_from_slice(core);
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

fn check_places(elements: usize, core: &[u64], places: &[u8]) -> Result<(), PayloadError> {
    let mut least = 0;
    for place in places.chunks_exact(2).map(place_of) {
        let at = usize::from(place);
        if at < least || at >= elements || has(core, at) {
            return Err(PayloadError::Place { place, elements });
        }
        least = at + 1;
    }
    Ok(())
}

/// Writes the answer to a push: the weights of `set`, or of all where there is none, and the core to push with next,
/// with its elements where `new`; the bytes that they take.
pub fn answer<E: Element>(
    set: Option<&[u64]>,
    core: &[u64],
    signature: u64,
    new: bool,
    weights: &[E],
    payload: &mut [u8],
) -> usize {
    let words = if new { core.len() } else { 0 };
    Header::write(signature, what(set), words, payload);
    let mut bytes = HEADER;
    for word in &core[..words] {
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

/// Merges an answer into a worker's weights: those of `set`, which was pushed, or where there is none, all. `core` becomes the one to push
/// with next, if it came; whether it is the hub's now. Where it is not, the next push has to be whole: then it comes.
///
/// # Errors
/// When the hub sent something else than was asked for; nothing is changed then.
pub fn merge<E: Element>(
    payload: &[u8],
    set: Option<&[u64]>,
    core: &mut [u64],
    weights: &mut [E],
) -> Result<bool, PayloadError> {
    let (header, rest) = Header::read(payload)?;
    if header.what != what(set) {
        return Err(PayloadError::Kind { seen: header.what });
    }
    let values = set.map_or(weights.len(), count);
    if header.count != 0 && header.count != core.len() {
        return Err(PayloadError::Core);
    }
    expect(header.count * 8 + values * size_of::<E>(), rest)?;
    let (words, rest) = rest.split_at(header.count * 8);
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    if let Some(last) = words.chunks_exact(8).next_back().map(word) {
        let beyond = last & !there(weights.len(), core.len() - 1);
        if beyond != 0 || xxhash_rust::xxh3::xxh3_64(words) != header.signature {
            return Err(PayloadError::Core);
        }
    }
    match set {
        Some(set) => scatter::<E, E>(set, rest, weights, |weight, value| *weight = value),
        None => weights.as_mut_bytes().copy_from_slice(rest),
    }
    core.iter_mut().zip(words.chunks_exact(8)).for_each(|(core, bytes)| *core = word(bytes));
    Ok(set::signature(core) == header.signature)
}

#[cfg(test)]
mod tests;
