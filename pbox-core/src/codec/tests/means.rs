//! Codecs that round at random. Every error is within its limit, and the mean of the decoded values over many draws is the
//! value.

use super::*;

/// Returns the decoded values of many draws. Each draw is for another chunk, as in a job.
fn draws(codec: Codec, values: &[f32], times: u32) -> Vec<Vec<f32>> {
    let kernels = Kernels::detect();
    (0..times)
        .map(|chunk| {
            let draw = Draw { chunk: ChunkId(chunk), ..DRAW };
            let (payload, _) = encode(codec, kernels, values, &mut [], draw);
            decode(codec, kernels, &payload, values.len())
        })
        .collect()
}

/// Returns the distance between neighbouring levels, in units of the scale.
fn step(codec: Codec) -> f32 {
    match codec {
        Codec::Qsgd { bits: 1, .. } => 2.0,
        Codec::Qsgd { bits, .. } => 1.0 / ((1 << (bits - 1)) - 1) as f32,
        Codec::TernGrad => 1.0,
        other => unreachable!("{other:?} does not round at random"),
    }
}

fn rounds_at_random() -> Vec<Codec> {
    let mut all: Vec<Codec> = (1..=8).map(|bits| Codec::Qsgd { bits, bucket: 512 }).collect();
    all.push(Codec::TernGrad);
    all
}

#[test]
fn the_mean_is_the_value() {
    // The scale is 2, with 33 values from -2 to 2.
    let values: Vec<f32> = (0..33).map(|i| (i as f32 - 16.0) / 8.0).collect();
    let times = 4000;
    for codec in rounds_at_random() {
        let draws = draws(codec, &values, times);
        for (i, value) in values.iter().enumerate() {
            let mean = draws.iter().map(|draw| f64::from(draw[i])).sum::<f64>() / f64::from(times);
            // The scale is 2. The standard deviation of a draw is at most half a step. The standard deviation of the
            // mean of 4000 draws is sqrt(4000) times smaller. The limit is five standard deviations of the mean.
            let bound = 5.0 * 0.5 * 2.0 * f64::from(step(codec)) / f64::from(times).sqrt();
            assert!(
                (mean - f64::from(*value)).abs() < bound + 1e-6,
                "{codec:?}: {value} is {mean} on average"
            );
        }
    }
}

#[test]
fn every_error_is_below_a_step() {
    for magnitude in [1e-44, 1e-39, 1e-30, 1.0, 1e30, f32::MAX] {
        let values: Vec<f32> =
            (0..700).map(|i| ((i * 37 % 201) as f32 - 100.0) / 100.0 * magnitude).collect();
        for codec in rounds_at_random() {
            let largest = |values: &[f32]| values.iter().fold(0.0f32, |most, value| most.max(value.abs()));
            for draw in draws(codec, &values, 20) {
                for (i, (seen, value)) in draw.iter().zip(&values).enumerate() {
                    let bucket = if codec == Codec::TernGrad {
                        &values[..]
                    } else {
                        values.chunks(512).nth(i / 512).unwrap()
                    };
                    // Subnormal numbers are 1e-45 apart.
                    let bound = f64::from(step(codec)) * f64::from(largest(bucket)) * 1.00001 + 2e-45;
                    let error = (f64::from(*seen) - f64::from(*value)).abs();
                    assert!(error <= bound, "{codec:?}: {value:e} came back as {seen:e}");
                }
            }
        }
    }
}

#[test]
fn the_largest_and_zero_are_exact() {
    let values: Vec<f32> = (0..512).map(|i| [0.0, -3.3, 3.3][i % 3]).collect();
    for codec in rounds_at_random().into_iter().filter(|codec| !matches!(codec, Codec::Qsgd { bits: 1, .. }))
    {
        for draw in draws(codec, &values, 20) {
            assert_eq!(draw, values, "{codec:?}");
        }
    }
}

#[test]
fn draws_differ_and_equal_draws_do_not() {
    let values: Vec<f32> = (0..512).map(|i| (i as f32).sin()).collect();
    let kernels = Kernels::detect();
    for codec in rounds_at_random().into_iter().chain([Codec::RandomK { ratio: 0.1 }]) {
        let payload = |draw| encode(codec, kernels, &values, &mut [], draw).0;
        assert_eq!(payload(DRAW), payload(DRAW));
        for other in [Draw { rank: 4, ..DRAW }, Draw { round: Round(6), ..DRAW }, Draw { seed: 8, ..DRAW }] {
            assert_ne!(payload(DRAW), payload(other), "{codec:?}");
        }
    }
}
