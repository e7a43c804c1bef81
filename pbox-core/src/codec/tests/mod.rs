//! Every codec on every instruction set: decoded values, counts, and refusals.

mod contraction;
mod feedback;
mod hostile;
mod means;
mod model;

use half::{bf16, f16};
use proptest::prelude::*;

use super::*;
use crate::kernels::Element;
use crate::layout::{ChunkId, Round};

const DRAW: Draw = Draw { seed: 7, rank: 3, round: Round(5), chunk: ChunkId(11) };

/// Returns one codec of each kind, and codecs whose settings take other paths through the code.
fn all() -> Vec<Codec> {
    let mut all: Vec<Codec> = (1..=8).map(|bits| Codec::Qsgd { bits, bucket: 512 }).collect();
    all.extend([1, 7, 48, 100_000].map(|bucket| Codec::Qsgd { bits: 3, bucket }));
    all.extend([0.01, 0.2, 0.5, 1.0].map(|ratio| Codec::TopK { ratio }));
    all.extend([0.01, 0.5, 1.0].map(|ratio| Codec::RandomK { ratio }));
    all.extend([None, Some(0.1)].map(|clip| Codec::Dgc {
        ratio: 0.01,
        momentum: 0.9,
        clip,
        warmup_rounds: 9,
    }));
    all.extend([Codec::F16, Codec::Bf16, Codec::OneBit, Codec::TernGrad]);
    all
}

fn codecs() -> impl Strategy<Value = Codec> {
    proptest::sample::select(all())
}

/// Draws ordinary numbers, zeros, and any bits: infinities, NaNs and subnormal numbers.
fn any_values(most: usize) -> impl Strategy<Value = Vec<f32>> {
    let value = prop_oneof![
        8 => -1e3f32..1e3,
        2 => Just(0.0f32),
        1 => any::<u32>().prop_map(f32::from_bits),
    ];
    proptest::collection::vec(value, 0..most)
}

/// Returns the first state of a codec: zeros.
fn state(codec: Codec, values: &[f32]) -> Vec<f32> {
    vec![0.0; codec.state_per_element() * values.len()]
}

/// Returns the payload, and the number of values that were not finite.
fn encode(codec: Codec, kernels: &Kernels, values: &[f32], state: &mut [f32], draw: Draw) -> (Vec<u8>, u32) {
    let mut payload = vec![0xa5; codec.payload_bytes(values.len()) + 3];
    let encoded = codec.encode(kernels, values, state, draw, &mut payload);
    assert_eq!(payload[payload.len() - 3..], [0xa5; 3], "{codec:?} wrote beyond its payload");
    payload.truncate(encoded.bytes);
    (payload, encoded.not_finite)
}

fn decode(codec: Codec, kernels: &Kernels, payload: &[u8], elements: usize) -> Vec<f32> {
    let mut sum = vec![0.0; elements];
    codec.add(kernels, payload, &mut sum);
    sum
}

/// Returns the bits of the values. All NaNs get the same bits, because the compiler chooses which operand's NaN becomes the
/// result.
fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| if value.is_nan() { f32::NAN.to_bits() } else { value.to_bits() }).collect()
}

fn halves_are_rounded<E: Element>(codec: Codec, values: &[f32]) -> Result<(), TestCaseError> {
    let expected: Vec<f32> = values.iter().map(|&value| 1.5 + E::from_f32(value).to_f32()).collect();
    for kernels in Kernels::available() {
        let (payload, _) = encode(codec, kernels, values, &mut [], DRAW);
        let mut sum = vec![1.5; values.len()];
        codec.add(kernels, &payload, &mut sum);
        prop_assert_eq!(bits(&sum), bits(&expected), "{:?}", kernels);
    }
    Ok(())
}

proptest! {
    #[test]
    fn halves_are_the_nearest(values in any_values(200)) {
        halves_are_rounded::<f16>(Codec::F16, &values)?;
        halves_are_rounded::<bf16>(Codec::Bf16, &values)?;
    }

    /// Compares payload, state and sum in two rounds. In the second round, the state is not zero.
    #[test]
    fn every_instruction_set_gives_the_same_bits(codec in codecs(), first in any_values(1500), seed: u64) {
        let draw = Draw { seed, ..DRAW };
        let second: Vec<f32> = first.iter().rev().copied().collect();
        let run = |kernels: &Kernels| {
            let mut state = state(codec, &first);
            let mut sum = second.clone();
            let rounds = [&first, &second].map(|values| {
                let encoded = encode(codec, kernels, values, &mut state, draw);
                codec.add(kernels, &encoded.0, &mut sum);
                encoded
            });
            (rounds, bits(&state), bits(&sum))
        };
        let expected = run(Kernels::available().last().unwrap());
        for kernels in Kernels::available() {
            prop_assert_eq!(run(kernels), expected.clone(), "{:?} {:?}", codec, kernels);
        }
    }

    #[test]
    fn values_that_are_not_finite_are_counted_and_change_no_others(
        codec in codecs(),
        values in any_values(1500),
        remember: bool,
    ) {
        let kernels = Kernels::detect();
        let bad = |value: &&f32| !value.is_finite();
        let zeroed: Vec<f32> = values.iter().map(|v| if v.is_finite() { *v } else { 0.0 }).collect();
        let [mut kept, mut expected_kept] =
            [(); 2].map(|()| if remember { state(codec, &values) } else { Vec::new() });
        let (payload, count) = encode(codec, kernels, &values, &mut kept, DRAW);
        prop_assert_eq!(count as usize, values.iter().filter(bad).count());
        if matches!(codec, Codec::F16 | Codec::Bf16) {
            let decoded = decode(codec, kernels, &payload, values.len());
            for (seen, value) in decoded.iter().zip(&values) {
                prop_assert!(value.is_finite() || seen.is_nan() == value.is_nan() && !seen.is_finite());
            }
        } else {
            let (expected, none) = encode(codec, kernels, &zeroed, &mut expected_kept, DRAW);
            prop_assert_eq!(none, 0);
            prop_assert_eq!(payload, expected);
            prop_assert_eq!(bits(&kept), bits(&expected_kept));
            prop_assert!(kept.iter().all(|value| value.is_finite()));
        }
    }
}

/// The errors are within the limits in the table of codecs.
#[test]
fn halves_have_the_stated_errors() {
    let values: Vec<f32> =
        (0..100_000).map(|i| 1.0007f32.powi(i % 30_000 - 15_000).clamp(6.2e-5, 65504.0)).collect();
    for (codec, bound) in [(Codec::F16, 1.0 / 2048.0), (Codec::Bf16, 1.0 / 256.0)] {
        let (payload, _) = encode(codec, Kernels::detect(), &values, &mut [], DRAW);
        let decoded = decode(codec, Kernels::detect(), &payload, values.len());
        let error = |(value, seen): (&f32, &f32)| (value - seen).abs() / value;
        let most = values.iter().zip(&decoded).map(error).fold(0.0, f32::max);
        assert!(most <= bound && most > bound * 0.9, "{codec:?}: {most}");
    }
}

#[test]
fn codecs_are_written_with_their_names() {
    for codec in all() {
        assert!(Codec::NAMES.contains(&codec.name()));
        codec.check().unwrap();
        let text = serde_json::to_string(&codec).unwrap();
        assert!(text.starts_with(&format!(r#"{{"codec":"{}""#, codec.name())), "{text}");
        assert_eq!(serde_json::from_str::<Codec>(&text).unwrap(), codec);
    }
    assert!(serde_json::from_str::<Codec>(r#"{"codec":"zip"}"#).is_err());
    let short = serde_json::from_str::<Codec>(r#"{"codec":"qsgd","bits":8}"#).unwrap();
    assert_eq!(short, Codec::Qsgd { bits: 8, bucket: 512 });
    assert!(serde_json::from_str::<Codec>(r#"{"codec":"qsgd","bits":8,"level":3}"#).is_err());
}

#[test]
fn settings_out_of_range_are_refused_in_words() {
    let dgc = |momentum, clip| Codec::Dgc { ratio: 0.1, momentum, clip, warmup_rounds: 0 };
    for (codec, expected) in [
        (Codec::Qsgd { bits: 0, bucket: 512 }, "qsgd: bits is 0; expected 1 to 8"),
        (Codec::Qsgd { bits: 9, bucket: 512 }, "qsgd: bits is 9; expected 1 to 8"),
        (Codec::Qsgd { bits: 8, bucket: 0 }, "qsgd: bucket is 0; expected at least 1 value"),
        (Codec::TopK { ratio: 0.0 }, "topk: ratio is 0; expected a number above 0 and at most 1"),
        (Codec::RandomK { ratio: 1.5 }, "randomk: ratio is 1.5; expected a number above 0 and at most 1"),
        (Codec::TopK { ratio: f32::NAN }, "topk: ratio is NaN; expected a number above 0 and at most 1"),
        (dgc(1.0, None), "dgc: momentum is 1; expected a number from 0 to below 1"),
        (dgc(0.5, Some(0.0)), "dgc: clip is 0; expected a finite number above 0"),
    ] {
        assert_eq!(codec.check().unwrap_err().to_string(), expected);
    }
}

#[test]
fn payloads_have_the_stated_bytes() {
    for (codec, elements, expected) in [
        (Codec::F16, 8192, 16384),
        (Codec::Bf16, 3, 6),
        (Codec::Qsgd { bits: 8, bucket: 512 }, 8192, 64 + 8192),
        (Codec::Qsgd { bits: 3, bucket: 7 }, 15, 12 + 6),
        (Codec::OneBit, 8192, 128 + 1024),
        (Codec::OneBit, 513, 16 + 65),
        (Codec::TernGrad, 8192, 4 + 1639),
        (Codec::TopK { ratio: 0.01 }, 8192, 4 + 82 * 6),
        (Codec::TopK { ratio: 0.1 }, 8192, 4 + 1024 + 820 * 4),
        (Codec::TopK { ratio: 0.01 }, 100_000, 4 + 1000 * 8),
        (Codec::TopK { ratio: 1.0 }, 8192, 4 + 8192 * 4),
        (Codec::TopK { ratio: 0.1 }, 10, 4 + 2 + 4),
        (Codec::RandomK { ratio: 0.01 }, 8192, 8 + 82 * 4),
        (Codec::Dgc { ratio: 0.01, momentum: 0.9, clip: None, warmup_rounds: 9 }, 8192, 4 + 1024 + 2048 * 4),
    ] {
        assert_eq!(codec.payload_bytes(elements), expected, "{codec:?}, {elements} elements");
    }
}
