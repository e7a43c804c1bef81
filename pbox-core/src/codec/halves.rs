//! `f16` and `bf16`: the kernels round each value to the nearest 16-bit number, ties to even.

use half::{bf16, f16};

use super::Encoded;
use super::number::not_finite;
use crate::kernels::Vector;
use crate::kernels::{Converter, Work};
use crate::kernels::{Element, Kernels};
use crate::layout::Dtype;

/// The number of elements that the widest instruction set converts at once.
const BLOCK: usize = 32;

/// A 16-bit type, little endian in the payload.
pub(super) trait Half: Element {
    fn from_wire(bytes: [u8; 2]) -> Self;
    fn to_wire(self) -> [u8; 2];
    /// Rounds `from` into `to`. Both slices have the length of a vector of `isa`.
    fn narrow<I: Converter>(isa: I, from: &[f32], to: &mut [Self]);
    /// Adds `from` to `sum`. Both slices have the length of a vector of `isa`.
    fn add<I: Converter>(isa: I, from: &[Self], sum: &mut [f32]);
}

macro_rules! half {
    ($Type:ident) => {
        impl Half for $Type {
            #[inline(always)]
            fn from_wire(bytes: [u8; 2]) -> Self {
                $Type::from_bits(u16::from_le_bytes(bytes))
            }

            #[inline(always)]
            fn to_wire(self) -> [u8; 2] {
                self.to_bits().to_le_bytes()
            }

            #[inline(always)]
            fn narrow<I: Converter>(isa: I, from: &[f32], to: &mut [Self]) {
                isa.narrow(isa.widen(from), to);
            }

            #[inline(always)]
            fn add<I: Converter>(isa: I, from: &[Self], sum: &mut [f32]) {
                isa.narrow(isa.widen(&*sum) + isa.widen(from), sum);
            }
        }
    };
}
half!(f16);
half!(bf16);

/// Encodes values. `payload` must have two bytes for each value.
pub(super) fn encode<E: Half>(kernels: &Kernels, values: &[f32], payload: &mut [u8]) -> Encoded {
    let not_finite = kernels.work(Encode::<E> { values, payload, half: E::default() });
    Encoded { bytes: 2 * values.len(), not_finite }
}

/// Rounds values to the nearest numbers of an element type, ties to even. `bytes` gets these numbers, little endian.
///
/// # Panics
/// Panics if `bytes` has not the length of the elements.
pub fn round(kernels: &Kernels, values: &[f32], to: Dtype, bytes: &mut [u8]) {
    assert_eq!(bytes.len(), to.bytes() * values.len(), "the bytes match the values");
    match to {
        Dtype::F32 => {
            for (place, value) in bytes.as_chunks_mut().0.iter_mut().zip(values) {
                *place = value.to_le_bytes();
            }
        }
        Dtype::F16 => _ = encode::<f16>(kernels, values, bytes),
        Dtype::BF16 => _ = encode::<bf16>(kernels, values, bytes),
    }
}

/// Adds the payload to `sum`. Elements of `sum` that the payload lacks do not change.
pub(super) fn add<E: Half>(kernels: &Kernels, payload: &[u8], sum: &mut [f32]) {
    kernels.work(Add::<E> { payload, sum, half: E::default() });
}

struct Encode<'a, E> {
    values: &'a [f32],
    payload: &'a mut [u8],
    half: E,
}

impl<E: Half> Work for Encode<'_, E> {
    type Output = u32;

    #[inline(always)]
    fn run<I: Converter>(self, isa: I) -> u32 {
        let (values, rest) = self.values.as_chunks::<BLOCK>();
        let (places, rest_places) = self.payload.as_chunks_mut::<2>().0.split_at_mut(values.len() * BLOCK);
        for (values, places) in values.iter().zip(places.as_chunks_mut::<BLOCK>().0) {
            let mut block = [self.half; BLOCK];
            let length = I::Vector::LENGTH;
            for at in (0..BLOCK).step_by(length) {
                E::narrow(isa, &values[at..at + length], &mut block[at..at + length]);
            }
            for (place, element) in places.iter_mut().zip(block) {
                *place = element.to_wire();
            }
        }
        for (&value, place) in rest.iter().zip(rest_places) {
            *place = E::from_f32(value).to_wire();
        }
        self.values.iter().map(|&value| not_finite(value)).sum()
    }
}

struct Add<'a, E> {
    payload: &'a [u8],
    sum: &'a mut [f32],
    half: E,
}

impl<E: Half> Work for Add<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<I: Converter>(self, isa: I) {
        let wire = self.payload.as_chunks::<2>().0;
        // If the payload has the wrong length, only elements that are in the payload and in `sum` are added.
        let shared = wire.len().min(self.sum.len());
        let (blocks, rest) = wire[..shared].as_chunks::<BLOCK>();
        let (sums, rest_sums) = self.sum[..shared].as_chunks_mut::<BLOCK>();
        for (block, sums) in blocks.iter().zip(sums) {
            let mut elements = [self.half; BLOCK];
            for (element, &bytes) in elements.iter_mut().zip(block) {
                *element = E::from_wire(bytes);
            }
            let length = I::Vector::LENGTH;
            for at in (0..BLOCK).step_by(length) {
                E::add(isa, &elements[at..at + length], &mut sums[at..at + length]);
            }
        }
        for (sum, &bytes) in rest_sums.iter_mut().zip(rest) {
            *sum += E::from_wire(bytes).to_f32();
        }
    }
}
