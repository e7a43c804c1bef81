//! The parts of a kernel's pass one by one, on one chunk in cache: adding a slot to a sum, as a hub would at each arrival
//! (`docs/decisions/0004-sum-at-last-arrival.md`), and rounding f32 to 16 bits, as for weights from a checkpoint. Plain loops,
//! compiled for any processor of this architecture. A kernel's mean of two is measured beside the addition.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput};
use half::{bf16, f16};
use pbox_core::kernels::Kernels;
use pbox_core::{Element, Optimizer};

use crate::{CHUNK_BYTES, Group, copy, run_with};

/// Elements of a chunk of f32.
const ELEMENTS: usize = CHUNK_BYTES / size_of::<f32>();

fn values(salt: usize) -> Vec<f32> {
    (0..ELEMENTS).map(|i| ((i * 29 + salt * 17) % 127) as f32 / 61.0).collect()
}

/// `sum += slot`: two reads and one write.
fn add(sum: &mut [f32], slot: &[f32]) {
    sum.iter_mut().zip(slot).for_each(|(sum, value)| *sum += value);
}

pub fn accumulate(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("accumulate/cache");
    copy(&mut group, 1);
    let (mut sum, slot) = (values(0), values(1));
    add(&mut sum, &slot);
    for ((seen, first), second) in sum.iter().zip(values(0)).zip(&slot) {
        assert_eq!(*seen, first + second);
    }
    // Zeros, so that the sum does not grow into infinity, whose addition may take another time.
    let zeros = vec![0.0; ELEMENTS];
    group.throughput(Throughput::BytesDecimal(3 * CHUNK_BYTES as u64));
    group.bench_function("loop/f32", |bencher| {
        bencher.iter(|| add(black_box(&mut sum), black_box(&zeros)));
    });
    run_with::<f32>(&mut group, Kernels::detect(), &Optimizer::Average, 2, 1);
    group.finish();
}

/// Rounds into a window of 16-bit elements.
fn round<E: Element>(window: &mut [E], values: &[f32]) {
    window.iter_mut().zip(values).for_each(|(place, &value)| *place = E::from_f32(value));
}

pub fn convert(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("convert/cache");
    copy(&mut group, 1);
    from_f32::<bf16>(&mut group);
    from_f32::<f16>(&mut group);
    group.finish();
}

fn from_f32<E: Element>(group: &mut Group) {
    let (values, mut window) = (values(0), vec![E::from_f32(0.0); ELEMENTS]);
    round(&mut window, &values);
    for (seen, value) in window.iter().zip(&values) {
        // Eight bits of fraction, the leading one included, are what bf16 has.
        assert!((seen.to_f32() - value).abs() <= value / 256.0, "{value} became {}", seen.to_f32());
    }
    group.throughput(Throughput::BytesDecimal((CHUNK_BYTES + size_of_val(&window[..])) as u64));
    group.bench_function(BenchmarkId::new("loop", format!("f32-{}", E::DTYPE.name())), |bencher| {
        bencher.iter(|| round(black_box(&mut window), black_box(&values)));
    });
}
