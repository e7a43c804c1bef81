//! Codecs, which write the values of a chunk in fewer bytes.
//!
//! A codec is a pure function of a chunk's values, the encoder's state and a [`Draw`]. Gradients are encoded on the worker's
//! thread, and the hub's answers on the thread of a hub's core. Every instruction set gives the same bytes and the same sums.
//! Codecs must not depend on transports, schedules, frames, or the number of hubs.
//!
//! | codec | bytes of `n` values | f32 of state per value | error of a value | paper |
//! | --- | --- | --- | --- | --- |
//! | `f16` | `2n` | 0 | 2^-11 of a value from 2^-14 to 65504; 2^-25 for a smaller value; infinite for a larger value | |
//! | `bf16` | `2n` | 0 | 2^-8 of the value; infinite for a value from 3.39e38 on | |
//! | `qsgd` | `4n/bucket + n*bits/8` | 0 | below the largest magnitude of the bucket, divided by the levels; mean zero | Alistarh et al. 2017 |
//! | `onebit` | `8n/512 + n/8` | 1 | the distance from a mean; added to the next values | Seide et al. 2014 |
//! | `terngrad` | `4 + n/5` | 0 | below the largest magnitude of the chunk; mean zero | Wen et al. 2017 |
//! | `topk` | `4 + 6k` or less; `k = ratio * n` | 1 | none for a sent value; a value that is not sent now is sent later | Aji, Heafield 2017 |
//! | `randomk` | `8 + 4k` | 1 | as `topk` | Stich et al. 2018 |
//! | `dgc` | as `topk` | 2 | as `topk` | Lin et al. 2018 |
//!
//! Quotients are rounded up. "Mean zero": over all draws, the mean of the errors is zero. `docs/formats.md` has the
//! layouts, byte by byte.
//!
//! **Values that are not finite.** `f16` and `bf16` carry infinities and NaNs. In the other codecs, such a value counts as zero
//! and is not added to the state. [`Encoded::not_finite`] counts these values.
//!
//! **State.** An encoder keeps the error of the values that it sent, and adds it to the next values (error feedback). With
//! an empty state, nothing is added and nothing is kept. The hub encodes differences (the new weights minus the workers'
//! weights) with an empty state, because the next difference already contains the error.
//!
//! **Bytes from outside.** [`Codec::check_payload`] names the fault of a payload. Shared memory can change after the check.
//! So [`Codec::add`] accepts any bytes, and stays within bounds.

mod bits;
mod draw;
mod encoded;
mod error;
mod halves;
mod number;
mod onebit;
mod qsgd;
mod sparse;
mod terngrad;

use half::{bf16, f16};
use serde::{Deserialize, Serialize};

use crate::kernels::Kernels;
use crate::strict_json;
pub use draw::Draw;
pub use encoded::Encoded;
pub use error::{InvalidCodec, PayloadError};
pub use halves::round;
use qsgd::Qsgd;
use sparse::dgc::Dgc;
use sparse::{randomk, topk};

/// A codec and its settings.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "codec", rename_all = "lowercase", deny_unknown_fields)]
pub enum Codec {
    /// The nearest 16-bit number in the format of IEEE 754.
    #[serde(deserialize_with = "strict_json::none")]
    F16,
    /// The nearest 16-bit number in the bfloat16 format, which has the exponents of f32.
    #[serde(deserialize_with = "strict_json::none")]
    Bf16,
    /// Random rounding of each value to a level between zero and the largest magnitude of its bucket. The mean of the
    /// results is the value.
    Qsgd {
        /// The number of bits of a value, for sign and level: 1 to 8.
        bits: u8,
        /// The number of values that share a scale, at least 1.
        #[serde(default = "bucket")]
        bucket: u32,
    },
    /// The signs, and two means for each bucket. With error feedback.
    #[serde(deserialize_with = "strict_json::none")]
    OneBit,
    /// Random rounding of each value to -1, 0 or 1 times the largest magnitude of the chunk. The mean of the results
    /// is the value.
    #[serde(deserialize_with = "strict_json::none")]
    TernGrad,
    /// The values with the largest magnitudes. With error feedback.
    TopK {
        /// The share of the values that is sent: above 0, at most 1.
        ratio: f32,
    },
    /// The values of random elements. With error feedback.
    RandomK {
        /// The share of the values that is sent: above 0, at most 1.
        ratio: f32,
    },
    /// The values with the largest accumulated momentum. With error feedback.
    Dgc {
        /// The share of the values that is sent after the warm-up: above 0, at most 1.
        ratio: f32,
        /// The part of the momentum that remains after a round: from 0 to below 1.
        #[serde(default = "momentum")]
        momentum: f32,
        /// The limit on the root mean square of a chunk's gradients: larger gradients are scaled down to this limit.
        /// `None` for no limit.
        #[serde(default)]
        clip: Option<f32>,
        /// The number of warm-up rounds, in which the share falls from a quarter to `ratio`.
        #[serde(default)]
        warmup_rounds: u32,
    },
}

// The settings of the papers' experiments.
fn bucket() -> u32 {
    512
}
fn momentum() -> f32 {
    0.9
}

impl Codec {
    /// The names of all codecs, as in the settings.
    pub const NAMES: [&str; 8] = ["f16", "bf16", "qsgd", "onebit", "terngrad", "topk", "randomk", "dgc"];

    /// Returns the codec's name in the settings.
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

    /// Whether the codec's frames carry infinities and NaNs. In the frames of the other codecs, such a value counts as zero.
    pub fn carries_all(&self) -> bool {
        matches!(self, Codec::F16 | Codec::Bf16)
    }

    /// Checks that every setting is in its range.
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

    /// Returns the length of the longest payload for `elements` elements, in bytes.
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

    /// Returns the number of f32 of state that the encoder keeps for each element. The state is zero at first.
    pub fn state_per_element(&self) -> usize {
        match self {
            Codec::F16 | Codec::Bf16 | Codec::Qsgd { .. } | Codec::TernGrad => 0,
            Codec::OneBit | Codec::TopK { .. } | Codec::RandomK { .. } => 1,
            Codec::Dgc { .. } => 2,
        }
    }

    /// Returns the codec for the hub's answers. The decoded values are always nearer to the encoded values than zero is
    /// (the codec contracts). The error of an answer is sent again in the next difference, so it vanishes.
    ///
    /// A sparse codec answers with as many values as all workers send together, or with a few less, because each worker
    /// rounds its number of values up. If the optimizer's step changes no more weights than the answer has, the answer
    /// is exact.
    ///
    /// # Panics
    /// Panics if `workers` is 0.
    pub fn answer_codec(&self, workers: u32) -> Codec {
        assert!(workers > 0, "a job has workers");
        let of_all_workers = |ratio: f32| Codec::TopK { ratio: (workers as f32 * ratio).min(1.0) };
        match *self {
            // Answers use bf16, because the range of f16 is too small: f16 has no numbers above 65504, and rounds numbers
            // below 2^-25 to zero.
            Codec::F16 | Codec::Bf16 => Codec::Bf16,
            Codec::Qsgd { bits, bucket } => qsgd(bits, bucket).contracting().codec(),
            // With 4 bits there are 7 levels on each side of zero: enough for the sum of seven values of -1, 0 or 1.
            Codec::TernGrad => qsgd(4, bucket()).contracting().codec(),
            Codec::OneBit => Codec::OneBit,
            Codec::TopK { ratio } | Codec::RandomK { ratio } | Codec::Dgc { ratio, .. } => {
                of_all_workers(ratio)
            }
        }
    }

    /// Encodes `values` into the first bytes of `payload`. `state` has [`Self::state_per_element`] f32 for each element. If
    /// `state` is empty, nothing is kept.
    ///
    /// # Panics
    /// Panics if `payload` is shorter than [`Self::payload_bytes`], or `state` has another length.
    pub fn encode(
        &self,
        kernels: &Kernels,
        values: &[f32],
        state: &mut [f32],
        draw: Draw,
        payload: &mut [u8],
    ) -> Encoded {
        let whole = self.state_per_element() * values.len();
        assert!(state.is_empty() || state.len() == whole, "the state matches the values");
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

    /// Checks that `payload` is a payload of a chunk of `elements` elements.
    pub fn check_payload(&self, elements: usize, payload: &[u8]) -> Result<(), PayloadError> {
        match *self {
            // The length of this codec's payload follows from the payload's first bytes, so the codec checks the length itself.
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

    /// Adds the decoded values to `sum`. If [`Self::check_payload`] would refuse the payload, adds arbitrary values or
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

    /// Returns the settings of `dgc`. Panics for other codecs.
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
