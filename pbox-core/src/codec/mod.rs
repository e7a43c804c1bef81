//! Codecs: how the values of a chunk are written for the wire, in fewer bytes than they have.
//!
//! Pure functions of a chunk's values, the encoder's state and a [`Draw`]: on the worker's thread for its
//! gradients, on the core's thread for answers. Must not know transports, schedules, frames, or how many hubs
//! there are. Every instruction set gives the same bytes and the same sums.
//!
//! | codec | bytes of `n` values | what it keeps | error | paper |
//! | --- | --- | --- | --- | --- |
//! | `f16` | `2n` | nothing | 2^-11 of the value, from 2^-14 to 65504; 2^-25 below; infinite above | IEEE 754 |
//! | `bf16` | `2n` | nothing | 2^-9 of the value | |
//!
//! More are coming, and their names are settled: `qsgd`, `onebit`, `terngrad`, `topk`, `randomk`, `dgc`.
//!
//! **What is not finite.** `f16` and `bf16` carry infinities and NaNs. For all others such a value counts as
//! zero and does not enter the state. [`Encoded::not_finite`] counts them.
//!
//! **State.** What an encoder could not send it keeps, and adds to what it encodes next (error feedback). Whoever
//! encodes differences that hold the error already gives an empty state: then nothing is added and nothing kept.
//!
//! **Bytes from outside.** [`Codec::check_payload`] says in words what is wrong with a payload. Memory that is
//! shared can change after the check, so [`Codec::add`] is total: whatever the bytes, it stays within bounds.

mod draw;
mod error;
mod halves;

use half::{bf16, f16};
use serde::{Deserialize, Serialize};

use crate::kernels::Kernels;
pub use draw::Draw;
pub use error::{InvalidCodec, PayloadError};

/// How the values of a chunk are written for the wire.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "codec", rename_all = "lowercase", deny_unknown_fields)]
pub enum Codec {
    /// The nearest number of IEEE 754's 16 bits.
    F16,
    /// The nearest number of 16 bits with the exponents of f32.
    Bf16,
}

/// What came of encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encoded {
    /// Bytes of the payload that are to be sent, from its start.
    pub bytes: usize,
    /// Values that were NaN or infinite.
    pub not_finite: u32,
}

impl Codec {
    /// The names of all codecs, as the settings spell them.
    pub const NAMES: [&str; 2] = ["f16", "bf16"];

    /// Its name.
    pub fn name(&self) -> &'static str {
        match self {
            Codec::F16 => "f16",
            Codec::Bf16 => "bf16",
        }
    }

    /// Checks that every setting is one that the codec can work with.
    pub fn check(&self) -> Result<(), InvalidCodec> {
        match self {
            Codec::F16 | Codec::Bf16 => Ok(()),
        }
    }

    /// The most bytes that so many elements take.
    pub fn payload_bytes(&self, elements: usize) -> usize {
        match self {
            Codec::F16 | Codec::Bf16 => 2 * elements,
        }
    }

    /// f32 of state that the encoder keeps for each element; zero at first.
    pub fn state_per_element(&self) -> usize {
        match self {
            Codec::F16 | Codec::Bf16 => 0,
        }
    }

    /// What the hub answers with: a codec that contracts, which is to say that what is decoded is always nearer
    /// to what was encoded than zero is. Then an error that is sent again in the next difference dies away.
    pub fn answer(&self, workers: u32) -> Codec {
        assert!(workers > 0, "a job has workers");
        match self {
            // f16 has no numbers beyond 65504, and none but zero below 2^-25.
            Codec::F16 | Codec::Bf16 => Codec::Bf16,
        }
    }

    /// Encodes `values` into the first bytes of `payload`. `state` is [`Self::state_per_element`] f32 for each
    /// element, or empty, so that nothing is remembered.
    ///
    /// # Panics
    /// When `payload` is shorter than [`Self::payload_bytes`], or `state` of another length.
    pub fn encode(
        &self,
        kernels: &Kernels,
        values: &[f32],
        state: &mut [f32],
        draw: Draw,
        payload: &mut [u8],
    ) -> Encoded {
        let whole = self.state_per_element() * values.len();
        assert!(state.is_empty() || state.len() == whole, "state and values are of one chunk");
        let payload = &mut payload[..self.payload_bytes(values.len())];
        let _ = draw;
        match self {
            Codec::F16 => halves::encode::<f16>(kernels, values, payload),
            Codec::Bf16 => halves::encode::<bf16>(kernels, values, payload),
        }
    }

    /// Whether the payload is one of a chunk of so many elements.
    pub fn check_payload(&self, elements: usize, payload: &[u8]) -> Result<(), PayloadError> {
        match self {
            Codec::F16 | Codec::Bf16 => self.check_length(elements, payload),
        }
    }

    fn check_length(&self, elements: usize, payload: &[u8]) -> Result<(), PayloadError> {
        let (expected, seen) = (self.payload_bytes(elements), payload.len());
        if seen == expected {
            Ok(())
        } else {
            Err(PayloadError::Length { codec: self.name(), elements, expected, seen })
        }
    }

    /// `sum += decoded`. A payload that [`Self::check_payload`] refuses adds what happens to be there, or
    /// nothing.
    pub fn add(&self, kernels: &Kernels, payload: &[u8], sum: &mut [f32]) {
        match self {
            Codec::F16 => halves::add::<f16>(kernels, payload, sum),
            Codec::Bf16 => halves::add::<bf16>(kernels, payload, sum),
        }
    }
}

#[cfg(test)]
mod tests;
