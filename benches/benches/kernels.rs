//! Kernels on one core, in cache and from memory, for every instruction set and element type.
//!
//! Throughput is bytes read and written, including master weights and state. Each kernel's result is compared with the
//! oracle before the measurement. The reference is a copy in the same run: a copy of a 32 KiB chunk in cache, or of 16
//! MiB from memory. Only the ratio counts, because the machine's speed changes.

use std::hint::black_box;

use benches::private_memory::PrivateMemory;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use half::{bf16, f16};
use pbox_core::kernels::Kernels;
use pbox_core::{Element, Optimizer};

/// The number of bytes of a chunk, of the default size.
const CHUNK_BYTES: usize = 32 << 10;
const NESTEROV: Optimizer = Optimizer::Nesterov { learning_rate: 0.1, weight_decay: 1e-4, momentum: 0.9 };
const ADAM: Optimizer =
    Optimizer::Adam { learning_rate: 1e-3, weight_decay: 1e-4, beta1: 0.9, beta2: 0.999, epsilon: 1e-8 };

/// The place of the data (cache or memory), with the number of chunks. One chunk fits into the first and second level
/// of cache; 512 chunks are 16 MiB per buffer.
const PLACES: [(&str, usize); 2] = [("cache", 1), ("memory", 512)];

/// The numbers of workers for each optimizer. For `Average`, the mean of 1 gradient is a scaled copy, the mean of 2
/// gradients needs one addition, and the mean of 8 gradients a sum.
const WORKERS: [(Optimizer, [usize; 3]); 3] =
    [(Optimizer::Average, [1, 2, 8]), (NESTEROV, [1, 4, 8]), (ADAM, [1, 4, 8])];

fn all(criterion: &mut Criterion) {
    for (place, chunks) in PLACES {
        for (optimizer, workers) in WORKERS {
            for workers in workers {
                let mut group = criterion.benchmark_group(format!("{}-{workers}/{place}", optimizer.name()));
                copy(&mut group, chunks);
                run::<f32>(&mut group, optimizer, workers, chunks);
                run::<f16>(&mut group, optimizer, workers, chunks);
                run::<bf16>(&mut group, optimizer, workers, chunks);
                group.finish();
            }
        }
    }
}

/// Measures kernels with many workers, from memory. All runs read the same number of gradients in total, so their times
/// show the cost of one worker's gradient.
fn many(criterion: &mut Criterion) {
    for workers in [8, 16, 32, 64, 128] {
        let mut group = criterion.benchmark_group(format!("many-{workers}/memory"));
        let chunks = 4096 / workers;
        copy(&mut group, chunks * workers / 2);
        run::<f32>(&mut group, NESTEROV, workers, chunks);
        run::<bf16>(&mut group, NESTEROV, workers, chunks);
        group.finish();
    }
}

type Group<'a> = criterion::BenchmarkGroup<'a, criterion::measurement::WallTime>;

fn copy(group: &mut Group, chunks: usize) {
    let bytes = chunks * CHUNK_BYTES;
    let (source, mut target) = (vec![1u8; bytes], vec![0u8; bytes]);
    group.throughput(Throughput::BytesDecimal(2 * bytes as u64));
    group.bench_function("memcpy", |bencher| {
        bencher.iter(|| black_box(&mut target).copy_from_slice(black_box(&source)));
    });
}

fn run<E: Element>(group: &mut Group, optimizer: Optimizer, workers: usize, chunks: usize) {
    let elements = CHUNK_BYTES / size_of::<E>();
    for kernels in Kernels::available() {
        PrivateMemory::<E>::check(kernels, optimizer, workers, elements);
        let mut memory =
            PrivateMemory::<E>::new(&vec![elements; chunks], workers, optimizer).expect("memory");
        group.throughput(Throughput::BytesDecimal(memory.bytes_moved()));
        group.bench_function(BenchmarkId::new(kernels.name(), E::DTYPE.name()), |bencher| {
            bencher.iter(|| black_box(&mut memory).pass(kernels));
        });
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20).measurement_time(std::time::Duration::from_millis(400))
        .warm_up_time(std::time::Duration::from_millis(100));
    targets = all, many
}
criterion_main!(benches);
