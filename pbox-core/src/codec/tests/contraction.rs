//! Tests that a decoded answer is always nearer to the encoded difference than zero is. Otherwise errors, which are sent
//! again, would not vanish.

use super::*;

/// Draws random, constant, sparse and heavy-tailed vectors, of ordinary, very small and very large scales.
fn vectors() -> impl Strategy<Value = Vec<f32>> {
    let vector = |value: BoxedStrategy<f32>| proptest::collection::vec(value, 1..1500);
    let constant = (1usize..1500, -1e3f32..1e3).prop_map(|(length, value)| vec![value; length]);
    let sparse = (1usize..1500, proptest::collection::vec((any::<u16>(), -1e3f32..1e3), 1..5));
    let sparse = sparse.prop_map(|(length, values)| {
        let mut vector = vec![0.0; length];
        values.into_iter().for_each(|(at, value)| vector[usize::from(at) % length] = value);
        vector
    });
    // Most magnitudes are near 1; one in a thousand is near 1000 or above.
    let heavy = (0.001f32..1.0, any::<bool>()).prop_map(|(u, up)| if up { 1.0 / u } else { -1.0 / u });
    let shape = prop_oneof![vector((-1.0f32..1.0).boxed()), constant, sparse, vector(heavy.boxed())];
    (shape, prop_oneof![Just(1.0f32), Just(1e-25), Just(1e25)])
        .prop_map(|(vector, scale)| vector.into_iter().map(|value| value * scale).collect())
}

fn square(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|value| value * value).sum()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]
    #[test]
    fn answers_contract(codec in codecs(), workers in 1u32..20, values in vectors(), chunk: u32) {
        let answer = codec.answer_codec(workers);
        prop_assert!(answer.check().is_ok());
        prop_assert_eq!(answer.answer_codec(1), answer, "the codec of answers to an answer");
        let kernels = Kernels::detect();
        let draw = Draw { chunk: ChunkId(chunk), ..DRAW };
        let (payload, _) = encode(answer, kernels, &values, &mut [], draw);
        let decoded = decode(answer, kernels, &payload, values.len());
        let error = square(values.iter().zip(&decoded).map(|(value, seen)| f64::from(*value) - f64::from(*seen)));
        let whole = square(values.iter().map(|value| f64::from(*value)));
        prop_assert!(error < whole || whole == 0.0, "{:?}: {:e} of {:e}", answer, error, whole);
    }

    #[test]
    fn a_step_that_is_as_sparse_as_the_pushes_is_answered_completely(ratio in 0.001f32..0.3, workers in 1u32..5) {
        let kernels = Kernels::detect();
        let codec = Codec::TopK { ratio };
        let elements = 777;
        let mut sum = vec![0.0; elements];
        for rank in 0..workers {
            let values: Vec<f32> = (0..elements).map(|i| ((i as u32 * 31 + rank * 17) as f32).sin()).collect();
            codec.add(kernels, &encode(codec, kernels, &values, &mut [], DRAW).0, &mut sum);
        }
        let answer = codec.answer_codec(workers);
        let (payload, _) = encode(answer, kernels, &sum, &mut [], DRAW);
        let decoded = decode(answer, kernels, &payload, elements);
        let left = sum.iter().zip(decoded).filter(|(value, seen)| *value != seen).count();
        prop_assert!(left < workers as usize, "{} values are left, with {} workers", left, workers);
    }
}

/// The rest of a difference is sent again until nothing is left. In the same way, the workers' copies of the weights
/// come to equal the hub's weights.
#[test]
fn errors_die_away() {
    let kernels = Kernels::detect();
    for codec in all() {
        let answer = codec.answer_codec(4);
        let weights: Vec<f32> = (0..600).map(|i| (i as f32 * 0.7).sin()).collect();
        let mut shadow = vec![0.0f32; 600];
        for round in 0..1000 {
            let left: Vec<f32> =
                weights.iter().zip(&shadow).map(|(weight, shadow)| weight - shadow).collect();
            let (payload, _) = encode(answer, kernels, &left, &mut [], Draw { round: Round(round), ..DRAW });
            answer.add(kernels, &payload, &mut shadow);
        }
        let left =
            weights.iter().zip(&shadow).map(|(weight, shadow)| (weight - shadow).abs()).fold(0.0, f32::max);
        assert!(left < 1e-5, "{codec:?} answered by {answer:?}: {left} is left after 1000 rounds");
    }
}
