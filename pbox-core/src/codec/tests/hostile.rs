//! Tests of hostile payloads: the error names the fault, and no code reads or writes out of bounds.

use proptest::collection::vec;

use super::*;

/// Draws random bytes of about the right length, or a real payload with a few bytes changed.
fn payloads(codec: Codec, elements: usize) -> impl Strategy<Value = Vec<u8>> {
    let length = codec.payload_bytes(elements);
    let values: Vec<f32> = (0..elements).map(|i| (i as f32).sin()).collect();
    let (real, _) = encode(codec, Kernels::detect(), &values, &mut [], DRAW);
    let changes = vec((any::<usize>(), any::<u8>()), 0..5);
    let changed = changes.prop_map(move |changes| {
        let mut payload = real.clone();
        for (at, byte) in changes {
            if let Some(end) = payload.len().checked_sub(1) {
                payload[at % (end + 1)] = byte;
            }
        }
        payload
    });
    prop_oneof![vec(any::<u8>(), length..=length), vec(any::<u8>(), 0..length + 20), changed]
}

fn cases() -> impl Strategy<Value = (Codec, usize, Vec<u8>)> {
    (codecs(), 0usize..700)
        .prop_flat_map(|(codec, elements)| (Just(codec), Just(elements), payloads(codec, elements)))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn any_bytes_can_be_added((codec, elements, payload) in cases()) {
        let accepted = codec.check_payload(elements, &payload).is_ok();
        let sums = Kernels::available().map(|kernels| bits(&decode(codec, kernels, &payload, elements)));
        let sums: Vec<_> = sums.collect();
        prop_assert!(sums.iter().all(|sum| *sum == sums[0]), "{:?}", codec);
        if accepted && !matches!(codec, Codec::F16 | Codec::Bf16) {
            let sum = decode(codec, Kernels::detect(), &payload, elements);
            prop_assert!(sum.iter().all(|value| value.is_finite()), "{:?}", codec);
        }
    }

    #[test]
    fn what_is_encoded_is_accepted(codec in codecs(), values in any_values(1500), round in 0u32..20) {
        let draw = Draw { round: Round(round), ..DRAW };
        let (payload, _) = encode(codec, Kernels::detect(), &values, &mut state(codec, &values), draw);
        prop_assert_eq!(codec.check_payload(values.len(), &payload), Ok(()));
        if !payload.is_empty() {
            prop_assert!(codec.check_payload(values.len(), &payload[1..]).is_err());
        }
    }
}

/// Returns the error of a payload of 100 elements with some bytes changed.
fn error_after_change(codec: Codec, at: usize, bytes: &[u8]) -> String {
    let values: Vec<f32> = (0..100).map(|i| (i as f32).sin()).collect();
    let (mut payload, _) = encode(codec, Kernels::detect(), &values, &mut [], DRAW);
    payload[at..at + bytes.len()].copy_from_slice(bytes);
    codec.check_payload(100, &payload).expect_err("a wrong payload").to_string()
}

#[test]
fn errors_say_what_is_wrong() {
    let topk = Codec::TopK { ratio: 0.03 };
    let nan = f32::NAN.to_le_bytes();
    for (seen, expected) in [
        (
            error_after_change(topk, 0, &[4]),
            "a payload as topk claims 4 values; expected 3 to 3 for 100 elements",
        ),
        (error_after_change(topk, 4, &[100, 0]), "index 0 of a payload is 100, but"),
        (error_after_change(topk, 6, &[0, 0]), "index 1 of a payload is 0, but"),
        (error_after_change(topk, 10, &nan), "value 0 of a payload as topk is NaN,"),
        (error_after_change(Codec::TopK { ratio: 0.5 }, 4, &[0; 4]), "a payload marks 3"),
        (error_after_change(Codec::TopK { ratio: 0.5 }, 16, &[0xff]), "index 5"),
        (
            error_after_change(Codec::RandomK { ratio: 0.03 }, 8, &nan),
            "value 0 of a payload as randomk is NaN,",
        ),
        (
            error_after_change(Codec::Qsgd { bits: 4, bucket: 50 }, 4, &nan),
            "bucket 1 of a payload as qsgd has the scale NaN",
        ),
        (
            error_after_change(Codec::OneBit, 4, &1.0f32.to_le_bytes()),
            "bucket 0 of a payload as onebit has the scale 1",
        ),
        (error_after_change(Codec::TernGrad, 0, &nan), "bucket 0 of a payload as terngrad has the scale NaN"),
        (error_after_change(Codec::TernGrad, 5, &[243]), "byte 5 of a payload as terngrad is 243;"),
    ] {
        assert!(seen.starts_with(expected), "{seen}, expected {expected}");
    }
    for codec in all() {
        let error = codec.check_payload(100, &[0; 3]).unwrap_err().to_string();
        assert!(error.starts_with("a payload of 3 bytes, but 100 elements take "), "{error}");
        assert!(error.contains(codec.name()), "{error}");
    }
}
