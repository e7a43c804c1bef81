//! Codecs with error feedback: values that are not sent are kept, exactly to the last bit, and sent later.

use super::*;

/// Returns the kept error in a simple model of error feedback, after `kept` and the values were encoded.
fn left(codec: Codec, kept: &[f32], values: &[f32], payload: &[u8]) -> Vec<f32> {
    let decoded = decode(codec, Kernels::detect(), payload, values.len());
    kept.iter().zip(values).zip(decoded).map(|((kept, value), decoded)| (kept + value) - decoded).collect()
}

fn remembering() -> impl Strategy<Value = Codec> {
    let ratio = prop_oneof![0.001f32..1.0, Just(1.0f32)];
    let largest = ratio.clone().prop_map(|ratio| Codec::TopK { ratio });
    let random = ratio.prop_map(|ratio| Codec::RandomK { ratio });
    prop_oneof![Just(Codec::OneBit), largest, random]
}

proptest! {
    #[test]
    fn what_is_not_sent_is_kept(
        codec in remembering(),
        rounds in proptest::collection::vec(proptest::collection::vec(-1e3f32..1e3, 700), 1..4),
        elements in 1usize..700,
    ) {
        let mut state = vec![0.0; elements];
        for values in &rounds {
            let values = &values[..elements];
            let before = state.clone();
            let (payload, _) = encode(codec, Kernels::detect(), values, &mut state, DRAW);
            prop_assert_eq!(bits(&state), bits(&left(codec, &before, values, &payload)));
        }
    }

    /// An empty state gives the same bytes as a state of zeros. Answers are encoded with an empty state.
    #[test]
    fn an_empty_state_encodes_like_zeros(codec in codecs(), values in any_values(700)) {
        prop_assume!(!matches!(codec, Codec::Dgc { .. }));
        let kernels = Kernels::detect();
        let remembered = encode(codec, kernels, &values, &mut state(codec, &values), DRAW);
        prop_assert_eq!(encode(codec, kernels, &values, &mut [], DRAW), remembered);
    }

    /// Sums of values near the largest number stay finite.
    #[test]
    fn what_is_kept_stays_finite(codec in codecs(), values in proptest::collection::vec(
        prop_oneof![Just(f32::MAX), Just(f32::MIN), 3.0e38..f32::MAX, Just(0.0f32), -1.0f32..1.0], 1..700,
    )) {
        let mut state = state(codec, &values);
        for round in 1..5 {
            let draw = Draw { round: Round(round), ..DRAW };
            let (payload, _) = encode(codec, Kernels::detect(), &values, &mut state, draw);
            prop_assert!(codec.check_payload(values.len(), &payload).is_ok());
            prop_assert!(state.iter().all(|value| value.is_finite()));
        }
    }
}

#[test]
fn topk_sends_the_largest_and_the_first_of_equals() {
    let mut state = vec![0.0; 5];
    let codec = Codec::TopK { ratio: 0.4 };
    let mut send = |values: [f32; 5]| {
        let (payload, _) = encode(codec, Kernels::detect(), &values, &mut state, DRAW);
        decode(codec, Kernels::detect(), &payload, 5)
    };
    assert_eq!(send([1.0, -3.0, 2.0, -2.0, 2.0]), [0.0, -3.0, 2.0, 0.0, 0.0]);
    assert_eq!(send([0.0, 0.0, 0.0, 0.0, 0.5]), [0.0, 0.0, 0.0, -2.0, 2.5]);
    assert_eq!(send([0.5, 0.0, 0.0, 0.0, 0.0]), [1.5, 0.0, 0.0, 0.0, 0.0]);
}

/// The paper's formulas on one chunk, computed by hand.
#[test]
fn dgc_follows_the_paper() {
    let codec = Codec::Dgc { ratio: 0.25, momentum: 0.5, clip: Some(1.0), warmup_rounds: 0 };
    let mut state = vec![0.0; 8];
    let mut send = |values: [f32; 4]| {
        let (payload, _) = encode(codec, Kernels::detect(), &values, &mut state, DRAW);
        (decode(codec, Kernels::detect(), &payload, 4), state.clone())
    };
    // A norm of 2 equals the limit, and is not clipped.
    let (sent, kept) = send([1.0, 1.0, -1.0, 1.0]);
    assert_eq!(sent, [1.0, 0.0, 0.0, 0.0]);
    assert_eq!(kept, [0.0, 1.0, -1.0, 1.0, 0.0, 1.0, -1.0, 1.0]);
    // A norm of 8 is scaled down to 2. u = u / 2 + g is [1, 1.5, -1.5, 1.5], and v = v + u is [1, 2.5, -2.5, 2.5]. The first
    // of the largest values is sent, and masked (set to zero).
    let (sent, kept) = send([4.0, 4.0, -4.0, 4.0]);
    assert_eq!(sent, [0.0, 2.5, 0.0, 0.0]);
    assert_eq!(kept, [1.0, 0.0, -1.5, 1.5, 1.0, 0.0, -2.5, 2.5]);
}

#[test]
fn dgc_sends_a_quarter_at_first() {
    let codec = Codec::Dgc { ratio: 0.01, momentum: 0.9, clip: None, warmup_rounds: 10 };
    let values: Vec<f32> = (0..1000).map(|i| (i as f32).cos()).collect();
    let mut state = state(codec, &values);
    let mut sent = |round| {
        let draw = Draw { round: Round(round), ..DRAW };
        let (payload, _) = encode(codec, Kernels::detect(), &values, &mut state, draw);
        codec.check_payload(1000, &payload).unwrap();
        decode(codec, Kernels::detect(), &payload, 1000).iter().filter(|value| **value != 0.0).count()
    };
    let counts: Vec<usize> = (1..13).map(&mut sent).collect();
    assert_eq!((counts[0], counts[5], counts[10], counts[11]), (250, 50, 10, 10), "{counts:?}");
}
