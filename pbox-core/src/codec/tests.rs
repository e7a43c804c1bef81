//! Every codec on every instruction set: what comes back, what is counted, what is refused.

use half::{bf16, f16};
use proptest::prelude::*;

use super::*;
use crate::chunk::{ChunkId, Round};
use crate::element::Element;

const DRAW: Draw = Draw { seed: 7, rank: 3, round: Round(5), chunk: ChunkId(11) };

/// Any bits, so that there are infinities, NaNs and subnormal numbers among them.
fn any_values() -> impl Strategy<Value = Vec<f32>> {
    let value = prop_oneof![4 => -1e3f32..1e3, 1 => any::<u32>().prop_map(f32::from_bits)];
    proptest::collection::vec(value, 0..200)
}

fn encode(codec: Codec, kernels: &Kernels, values: &[f32], state: &mut [f32]) -> (Vec<u8>, u32) {
    let mut payload = vec![0xa5; codec.payload_bytes(values.len())];
    let encoded = codec.encode(kernels, values, state, DRAW, &mut payload);
    payload.truncate(encoded.bytes);
    (payload, encoded.not_finite)
}

/// The bits, but for those of a NaN: which of an operation's operands it comes from is the compiler's choice.
fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| if value.is_nan() { f32::NAN.to_bits() } else { value.to_bits() }).collect()
}

fn halves_are_rounded<E: Element>(codec: Codec, values: &[f32]) -> Result<(), TestCaseError> {
    let not_finite = values.iter().filter(|value| !value.is_finite()).count() as u32;
    let expected: Vec<f32> = values.iter().map(|&value| 1.5 + E::from_f32(value).to_f32()).collect();
    for kernels in Kernels::available() {
        let (payload, seen) = encode(codec, kernels, values, &mut []);
        prop_assert_eq!(seen, not_finite, "{:?}", kernels);
        prop_assert!(codec.check_payload(values.len(), &payload).is_ok());
        let mut sum = vec![1.5; values.len()];
        codec.add(kernels, &payload, &mut sum);
        prop_assert_eq!(bits(&sum), bits(&expected), "{:?}", kernels);
    }
    Ok(())
}

proptest! {
    #[test]
    fn halves_are_the_nearest(values in any_values()) {
        halves_are_rounded::<f16>(Codec::F16, &values)?;
        halves_are_rounded::<bf16>(Codec::Bf16, &values)?;
    }

    #[test]
    fn any_bytes_can_be_added(bytes in proptest::collection::vec(any::<u8>(), 0..500), elements in 0usize..300) {
        for codec in [Codec::F16, Codec::Bf16] {
            for kernels in Kernels::available() {
                codec.add(kernels, &bytes, &mut vec![0.0; elements]);
            }
            let accepted = codec.check_payload(elements, &bytes).is_ok();
            prop_assert_eq!(accepted, bytes.len() == codec.payload_bytes(elements));
        }
    }
}

#[test]
fn a_payload_of_the_wrong_length_is_refused_in_words() {
    let error = Codec::Bf16.check_payload(100, &[0; 199]).unwrap_err().to_string();
    assert!(error.starts_with("a payload of 199 bytes, but 100 elements take 200 as bf16"), "{error}");
}

#[test]
fn codecs_are_written_with_their_names() {
    let text = serde_json::to_string(&Codec::Bf16).unwrap();
    assert_eq!(text, r#"{"codec":"bf16"}"#);
    assert_eq!(serde_json::from_str::<Codec>(&text).unwrap(), Codec::Bf16);
    assert!(serde_json::from_str::<Codec>(r#"{"codec":"zip"}"#).is_err());
}
