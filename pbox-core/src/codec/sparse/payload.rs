//! The payload of `topk` and `dgc`: some of a chunk's values, and the indices of their elements.
//!
//! ```text
//!   count: u32 | indices, ascending: u16 or u32 each | values: f32 each      for few values
//!   count: u32 | a bit for each element of the chunk | values: f32 each      for many values
//!   count: u32 | values of all elements: f32 each                            for nearly all values
//! ```
//!
//! Indices have 16 bits in chunks of at most 65,536 elements. The payload has the shortest of these forms; on a tie, the
//! first one. So the count and the number of elements determine the form. In the last form, the count is the number of all
//! elements.

use super::select::{Chosen, Ones};
use crate::codec::error::PayloadError;
use crate::codec::number::finite;

/// The length of the count, in bytes.
const COUNT: usize = 4;

/// The form in which a payload says which elements have a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Indices,
    Bits,
    All,
}

/// The form of a payload that has `count` of the `elements` values of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    elements: usize,
    pub(super) count: usize,
    form: Form,
}

impl Shape {
    /// Creates the shape for `wanted` values, at most `elements`.
    pub(super) fn new(elements: usize, wanted: usize) -> Self {
        let shape = |form| Shape { elements, count: wanted, form };
        let forms = [shape(Form::Indices), shape(Form::Bits), Shape { count: elements, ..shape(Form::All) }];
        forms.into_iter().min_by_key(Self::payload_bytes).expect("three forms")
    }

    pub(super) fn payload_bytes(&self) -> usize {
        COUNT + self.places_bytes() + 4 * self.count
    }

    fn places_bytes(&self) -> usize {
        match self.form {
            Form::Indices => self.count * index_bytes(self.elements),
            Form::Bits => self.elements.div_ceil(8),
            Form::All => 0,
        }
    }

    /// Writes the `count` values with the largest magnitudes. A value that is not finite is written as zero.
    #[inline(always)]
    pub(super) fn write_largest(self, values: &[f32], payload: &mut [u8]) {
        let (count, rest) = payload.split_at_mut(COUNT);
        count.copy_from_slice(&(self.count as u32).to_le_bytes());
        let (places, sent) = rest.split_at_mut(self.places_bytes());
        let mut sent = sent.as_chunks_mut::<4>().0.iter_mut();
        let mut send = |value: f32| {
            if let Some(place) = sent.next() {
                *place = finite(value).to_le_bytes();
            }
        };
        match self.form {
            Form::All => values.iter().for_each(|&value| send(value)),
            Form::Bits => {
                places.fill(0);
                Chosen::largest(values, self.count).for_each(values, |i, value| {
                    places[i / 8] |= 1 << (i % 8);
                    send(value);
                });
            }
            Form::Indices => {
                let width = index_bytes(self.elements);
                let mut places = places.chunks_exact_mut(width);
                Chosen::largest(values, self.count).for_each(values, |i, value| {
                    if let Some(place) = places.next() {
                        place.copy_from_slice(&(i as u32).to_le_bytes()[..width]);
                    }
                    send(value);
                });
            }
        }
    }
}

fn index_bytes(elements: usize) -> usize {
    if elements <= 1 << 16 { 2 } else { 4 }
}

/// The parts of a payload's bytes.
struct Parts<'a> {
    shape: Shape,
    places: &'a [u8],
    values: &'a [[u8; 4]],
}

impl<'a> Parts<'a> {
    /// Parses a payload; `None` if the length does not match the count.
    fn parse(elements: usize, payload: &'a [u8]) -> Option<Self> {
        let (count, rest) = payload.split_first_chunk::<COUNT>()?;
        let shape = Shape::new(elements, (u32::from_le_bytes(*count) as usize).min(elements));
        if payload.len() != shape.payload_bytes() {
            return None;
        }
        let (places, values) = rest.split_at(shape.places_bytes());
        Some(Parts { shape, places, values: values.as_chunks().0 })
    }

    /// Returns the indices of the elements with a value, in the order of the payload. An index may be beyond the last element.
    fn places(&self) -> impl Iterator<Item = usize> {
        let bits = if self.shape.form == Form::Bits { self.places } else { &[] };
        let indices = if self.shape.form == Form::Indices { self.places } else { &[] };
        let all = if self.shape.form == Form::All { self.shape.elements } else { 0 };
        let bits = bits.chunks(8).enumerate().flat_map(|(word, bytes)| {
            let mut padded = [0; 8];
            padded[..bytes.len()].copy_from_slice(bytes);
            Ones(u64::from_le_bytes(padded)).map(move |bit| word * 64 + bit)
        });
        let width = index_bytes(self.shape.elements);
        let indices = indices.chunks_exact(width).map(move |bytes| {
            let mut padded = [0; 4];
            padded[..width].copy_from_slice(bytes);
            u32::from_le_bytes(padded) as usize
        });
        bits.chain(indices).chain(0..all)
    }
}

/// Calls `act` with the index and the value of each element that has a value in a payload. The index is always below
/// `elements`. Does nothing if the payload's length is wrong.
pub(super) fn for_each(elements: usize, payload: &[u8], mut act: impl FnMut(usize, f32)) {
    let Some(parts) = Parts::parse(elements, payload) else { return };
    for (place, value) in parts.places().zip(parts.values) {
        if place < elements {
            act(place, f32::from_le_bytes(*value));
        }
    }
}

/// Checks that `payload` belongs to a chunk of `elements` elements, and that its number of values is in `wanted`.
pub(super) fn check_payload(
    codec: &'static str,
    elements: usize,
    wanted: std::ops::RangeInclusive<usize>,
    payload: &[u8],
) -> Result<(), PayloadError> {
    let seen = payload.len();
    let [least, most] = [wanted.start(), wanted.end()].map(|&count| Shape::new(elements, count));
    let Some((count, _)) = payload.split_first_chunk::<COUNT>() else {
        return Err(PayloadError::Length { codec, elements, expected: least.payload_bytes(), seen });
    };
    let count = u32::from_le_bytes(*count) as usize;
    if !(least.count..=most.count).contains(&count) {
        let (least, most) = (least.count, most.count);
        return Err(PayloadError::Count { codec, elements, least, most, seen: count });
    }
    let shape = Shape::new(elements, count);
    let Some(parts) = Parts::parse(elements, payload).filter(|_| shape.count == count) else {
        return Err(PayloadError::Length { codec, elements, expected: shape.payload_bytes(), seen });
    };
    check_places(&parts)?;
    match parts
        .values
        .iter()
        .map(|&bytes| f32::from_le_bytes(bytes))
        .enumerate()
        .find(|(_, v)| !v.is_finite())
    {
        None => Ok(()),
        Some((at, seen)) => Err(PayloadError::Value { codec, at, seen }),
    }
}

/// Checks that there are as many indices as values, and that the indices ascend and are in the chunk.
fn check_places(parts: &Parts) -> Result<(), PayloadError> {
    let Shape { elements, count, .. } = parts.shape;
    let (mut places, mut least) = (0, 0);
    for place in parts.places() {
        if place < least || place >= elements {
            return Err(PayloadError::Index { at: places, least, elements, seen: place });
        }
        (places, least) = (places + 1, place + 1);
    }
    if places != count {
        return Err(PayloadError::Bits { elements, count, seen: places });
    }
    Ok(())
}
