//! Codecs: how the values of a chunk are written for the wire, in fewer bytes than they have.
//!
//! Pure functions of a chunk's values, the encoder's state and a [`Draw`]: on the worker's thread for its
//! gradients, on the core's thread for answers. Must not know transports, schedules, frames, or how many hubs
//! there are. Every instruction set gives the same bytes and the same sums.
//!
//! | codec | bytes of `n` values | f32 kept | error of a value | paper |
//! | --- | --- | --- | --- | --- |
//! | `f16` | `2n` | 0 | 2^-11 of it from 2^-14 to 65504, 2^-25 below; infinite beyond | |
//! | `bf16` | `2n` | 0 | 2^-8 of it; infinite from 3.39e38 on | |
//! | `qsgd` | `4n/bucket + n*bits/8` | 0 | below its bucket's largest / levels; of mean zero | Alistarh et al. 2017 |
//! | `onebit` | `8n/512 + n/8` | 1 | its distance from a mean; sent later | Seide et al. 2014 |
//! | `terngrad` | `4 + n/5` | 0 | below the chunk's largest; of mean zero | Wen et al. 2017 |
//! | `topk` | `4 + 6k`, or below; `k = ratio * n` | 1 | none, or all of it; sent later | Aji, Heafield 2017 |
//! | `randomk` | `8 + 4k` | 1 | none, or all of it; sent later | Stich et al. 2018 |
//! | `dgc` | as `topk` | 2 | as `topk` | Lin et al. 2018 |
//!
//! Quotients are rounded up. "Of mean zero" is over draws. Layouts, byte by byte, are in `docs/formats.md`.
//!
//! **What is not finite.** `f16` and `bf16` carry infinities and NaNs. For all others such a value counts as
//! zero and does not enter the state. [`Encoded::not_finite`] counts them.
//!
//! **State.** What an encoder could not send it keeps, and adds to what it encodes next (error feedback). Whoever
//! encodes differences that hold the error already gives an empty state: then nothing is added and nothing kept.
//!
//! **Bytes from outside.** [`Codec::check_payload`] says in words what is wrong with a payload. Memory that is
//! shared can change after the check, so [`Codec::add`] is total: whatever the bytes, it stays within bounds.

mod bits;
mod draw;
mod error;
mod halves;
mod number;
mod onebit;
mod qsgd;
mod sparse;
mod terngrad;

use half::{bf16, f16};
use serde::{Deserialize, Serialize};

use crate::job::strict_json;
use crate::kernels::Kernels;
pub use draw::Draw;
pub use error::{InvalidCodec, PayloadError};
use qsgd::Qsgd;
use sparse::dgc::Dgc;
use sparse::{randomk, topk};

/// How the values of a chunk are written for the wire.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "codec", rename_all = "lowercase", deny_unknown_fields)]
pub enum Codec {
    /// The nearest number of IEEE 754's 16 bits.
    #[serde(deserialize_with = "strict_json::none")]
    F16,
    /// The nearest number of 16 bits with the exponents of f32.
    #[serde(deserialize_with = "strict_json::none")]
    Bf16,
    /// Levels between zero and the largest magnitude of a bucket, at random so that the mean is the value.
    Qsgd {
        /// Bits of a value, sign and level: 1 to 8.
        bits: u8,
        /// Values that share a scale, at least 1.
        #[serde(default = "bucket")]
        bucket: u32,
    },
    /// Signs, and two means for each bucket; with error feedback.
    #[serde(deserialize_with = "strict_json::none")]
    OneBit,
    /// -1, 0 or 1 times the largest magnitude of the chunk, at random so that the mean is the value.
    #[serde(deserialize_with = "strict_json::none")]
    TernGrad,
    /// The values of the largest magnitude; with error feedback.
    TopK {
        /// The share of the values that is sent, above 0, at most 1.
        ratio: f32,
    },
    /// Values at random places; with error feedback.
    RandomK {
        /// The share of the values that is sent, above 0, at most 1.
        ratio: f32,
    },
    /// The largest sums of momentum.
    Dgc {
        /// The share of the values that is sent after the warm-up, above 0, at most 1.
        ratio: f32,
        /// How much of the momentum is left after a round, from 0 to below 1.
        #[serde(default = "momentum")]
        momentum: f32,
        /// Root mean square of a chunk's gradients to which larger ones are scaled down; none: they are not.
        #[serde(default)]
        clip: Option<f32>,
        /// Rounds in which the share falls from a quarter to `ratio`.
        #[serde(default)]
        warmup_rounds: u32,
    },
}

// What the papers' experiments have.
fn bucket() -> u32 {
    512
}
fn momentum() -> f32 {
    0.9
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
    pub const NAMES: [&str; 8] = ["f16", "bf16", "qsgd", "onebit", "terngrad", "topk", "randomk", "dgc"];

    /// Its name.
    pub fn name(&self) -> &'static str {
        match self {
            Codec::F16 => "f16",
            Codec::Bf16 => "bf16",
            Codec::Qsgd { .. } => "qsgd",
            Codec::OneBit => "onebit",
            Codec::TernGrad => "terngrad",
            Codec::TopK { .. } => "topk",
            Codec::RandomK { .. } => "randomk",
            Codec::Dgc { .. } => "dgc",
        }
    }

    /// Checks that every setting is one that the codec can work with.
    pub fn check(&self) -> Result<(), InvalidCodec> {
        let check = |setting, seen: f64, ok: bool, expected| {
            let codec = self.name();
            if ok { Ok(()) } else { Err(InvalidCodec { codec, setting, seen, expected }) }
        };
        let share = |ratio: f32| {
            check("ratio", ratio.into(), ratio > 0.0 && ratio <= 1.0, "a number above 0 and at most 1")
        };
        match *self {
            Codec::F16 | Codec::Bf16 | Codec::OneBit | Codec::TernGrad => Ok(()),
            Codec::Qsgd { bits, bucket } => {
                check("bits", bits.into(), (1..=8).contains(&bits), "1 to 8")?;
                check("bucket", bucket.into(), bucket > 0, "at least 1 value")
            }
            Codec::TopK { ratio } | Codec::RandomK { ratio } => share(ratio),
            Codec::Dgc { ratio, momentum, clip, .. } => {
                share(ratio)?;
                let fraction = (0.0..1.0).contains(&momentum);
                check("momentum", momentum.into(), fraction, "a number from 0 to below 1")?;
                let clip = clip.unwrap_or(1.0);
                check("clip", clip.into(), clip.is_finite() && clip > 0.0, "a finite number above 0")
            }
        }
    }

    /// The most bytes that so many elements take.
    pub fn payload_bytes(&self, elements: usize) -> usize {
        match *self {
            Codec::F16 | Codec::Bf16 => 2 * elements,
            Codec::Qsgd { bits, bucket } => qsgd(bits, bucket).payload_bytes(elements),
            Codec::OneBit => onebit::payload_bytes(elements),
            Codec::TernGrad => terngrad::payload_bytes(elements),
            Codec::TopK { ratio } => topk::payload_bytes(elements, ratio),
            Codec::RandomK { ratio } => randomk::payload_bytes(elements, ratio),
            Codec::Dgc { .. } => self.dgc().payload_bytes(elements),
        }
    }

    /// f32 of state that the encoder keeps for each element; zero at first.
    pub fn state_per_element(&self) -> usize {
        match self {
            Codec::F16 | Codec::Bf16 | Codec::Qsgd { .. } | Codec::TernGrad => 0,
            Codec::OneBit | Codec::TopK { .. } | Codec::RandomK { .. } => 1,
            Codec::Dgc { .. } => 2,
        }
    }

    /// What the hub answers with: a codec that contracts, which is to say that what is decoded is always nearer
    /// to what was encoded than zero is. Then an error that is sent again in the next difference dies away.
    ///
    /// Sparse codecs answer with as many values as all workers send, which is exact where the step is as sparse: but
    /// for at most one value for each worker, because each rounds its own share up.
    ///
    /// # Panics
    /// When there are no workers.
    pub fn answer(&self, workers: u32) -> Codec {
        assert!(workers > 0, "a job has workers");
        let largest = |ratio: f32| Codec::TopK { ratio: (workers as f32 * ratio).min(1.0) };
        match *self {
            // f16 has no numbers beyond 65504, and none but zero below 2^-25.
            Codec::F16 | Codec::Bf16 => Codec::Bf16,
            Codec::Qsgd { bits, bucket } => qsgd(bits, bucket).contracting().codec(),
            // As many bits as there are levels in the sum of eight workers.
            Codec::TernGrad => qsgd(4, bucket()).contracting().codec(),
            Codec::OneBit => Codec::OneBit,
            Codec::TopK { ratio } | Codec::RandomK { ratio } | Codec::Dgc { ratio, .. } => largest(ratio),
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
        match *self {
            Codec::F16 => halves::encode::<f16>(kernels, values, payload),
            Codec::Bf16 => halves::encode::<bf16>(kernels, values, payload),
            Codec::Qsgd { bits, bucket } => qsgd(bits, bucket).encode(kernels, values, draw.key(), payload),
            Codec::OneBit => onebit::encode(kernels, values, state, payload),
            Codec::TernGrad => terngrad::encode(kernels, values, draw.key(), payload),
            Codec::TopK { ratio } => topk::encode(kernels, ratio, values, state, payload),
            Codec::RandomK { .. } => randomk::encode(kernels, values, state, draw.key(), payload),
            Codec::Dgc { .. } => self.dgc().encode(kernels, values, state, draw.round, payload),
        }
    }

    /// Whether the payload is one of a chunk of so many elements.
    pub fn check_payload(&self, elements: usize, payload: &[u8]) -> Result<(), PayloadError> {
        match *self {
            // These say their length themselves.
            Codec::TopK { ratio } => return topk::check_payload(ratio, elements, payload),
            Codec::Dgc { .. } => return self.dgc().check_payload(elements, payload),
            _ => {}
        }
        let (expected, seen) = (self.payload_bytes(elements), payload.len());
        if seen != expected {
            return Err(PayloadError::Length { codec: self.name(), elements, expected, seen });
        }
        match *self {
            Codec::Qsgd { bits, bucket } => qsgd(bits, bucket).check_payload(elements, payload),
            Codec::OneBit => onebit::check_payload(payload),
            Codec::TernGrad => terngrad::check_payload(payload),
            Codec::RandomK { .. } => randomk::check_payload(payload),
            Codec::F16 | Codec::Bf16 | Codec::TopK { .. } | Codec::Dgc { .. } => Ok(()),
        }
    }

    /// `sum += decoded`. A payload that [`Self::check_payload`] refuses adds what happens to be there, or
    /// nothing.
    pub fn add(&self, kernels: &Kernels, payload: &[u8], sum: &mut [f32]) {
        match *self {
            Codec::F16 => halves::add::<f16>(kernels, payload, sum),
            Codec::Bf16 => halves::add::<bf16>(kernels, payload, sum),
            Codec::Qsgd { bits, bucket } => qsgd(bits, bucket).add(kernels, payload, sum),
            Codec::OneBit => onebit::add(kernels, payload, sum),
            Codec::TernGrad => terngrad::add(kernels, payload, sum),
            Codec::TopK { .. } | Codec::Dgc { .. } => topk::add(payload, sum),
            Codec::RandomK { ratio } => randomk::add(ratio, payload, sum),
        }
    }

    /// Its settings, where it is `dgc`.
    fn dgc(&self) -> Dgc {
        let Codec::Dgc { ratio, momentum, clip, warmup_rounds } = *self else {
            unreachable!("{} is not dgc", self.name())
        };
        Dgc { ratio, momentum, clip, warmup_rounds }
    }
}

fn qsgd(bits: u8, bucket: u32) -> Qsgd {
    Qsgd { bits, bucket: bucket as usize }
}

#[cfg(test)]
mod tests;
