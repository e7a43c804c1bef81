//! Kernels on one core: sum and step of one chunk from 1, 4 and 8 workers, in cache and from memory.
//!
//! Throughput is bytes read and written: `workers + 2` reads and 2 writes of a chunk with Nesterov,
//! `workers + 3` and 3 with Adam.
//! Each kernel's answer is compared with the oracle before it is measured. A copy of as many bytes is
//! the yardstick in the same run.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use pbox_core::kernels::{Kernels, Slots};
use pbox_core::oracle::{self, Step};
use pbox_core::{Optimizer, Round};

const CHUNK: usize = 8192;
const NESTEROV: Optimizer = Optimizer::Nesterov { learning_rate: 0.1, weight_decay: 1e-4, momentum: 0.9 };
const ADAM: Optimizer =
    Optimizer::Adam { learning_rate: 1e-3, weight_decay: 1e-4, beta1: 0.9, beta2: 0.999, epsilon: 1e-8 };

/// Gradients, weights and state of `chunks` chunks.
struct Memory {
    gradients: Vec<Vec<f32>>,
    weights: Vec<f32>,
    state: Vec<f32>,
}

impl Memory {
    fn new(optimizer: &Optimizer, workers: usize, chunks: usize) -> Self {
        let values =
            |salt: usize| (0..chunks * CHUNK).map(move |i| ((i * 29 + salt * 17) % 127) as f32 / 61.0);
        Memory {
            gradients: (0..workers).map(|w| values(w).collect()).collect(),
            weights: values(100).collect(),
            state: vec![0.0; chunks * CHUNK * optimizer.state_per_element()],
        }
    }

    /// One pass over every chunk.
    fn pass(&mut self, kernels: &Kernels, optimizer: &Optimizer) {
        let step = Step::new(optimizer, self.gradients.len() as u32, Round(1), 1e-6, 1.0, 1.0);
        let mut starts = vec![std::ptr::null(); self.gradients.len()];
        for at in (0..self.weights.len()).step_by(CHUNK) {
            for (start, gradients) in starts.iter_mut().zip(&self.gradients) {
                *start = gradients[at..at + CHUNK].as_ptr();
            }
            // SAFETY: the starts are slices of CHUNK elements that nobody writes meanwhile.
            let slots = unsafe { Slots::new(&starts, CHUNK) };
            let per_element = optimizer.state_per_element();
            let state = &mut self.state[at * per_element..(at + CHUNK) * per_element];
            kernels.run(optimizer, &step, &slots, &mut self.weights[at..at + CHUNK], state);
        }
    }

    fn check(kernels: &Kernels, optimizer: &Optimizer, workers: usize) {
        let [mut memory, before] = [(); 2].map(|()| Memory::new(optimizer, workers, 1));
        memory.pass(kernels, optimizer);
        let step = Step::new(optimizer, workers as u32, Round(1), 1e-6, 1.0, 1.0);
        for i in 0..CHUNK {
            let (mut weight, mut state) = (before.weights[i], [0.0; 2]);
            let sum = oracle::sum(before.gradients.iter().map(|gradients| gradients[i]));
            oracle::step(optimizer, &step, sum, &mut weight, &mut state);
            assert_eq!(memory.weights[i].to_bits(), weight.to_bits(), "{kernels:?} element {i}");
        }
    }
}

fn kernels(criterion: &mut Criterion) {
    // 1 chunk lives in the first and second level of cache; 512 are 16 MiB a buffer.
    for optimizer in [NESTEROV, ADAM] {
        for (place, chunks) in [("cache", 1), ("memory", 512)] {
            group(criterion, &optimizer, place, chunks);
        }
    }
}

fn group(criterion: &mut Criterion, optimizer: &Optimizer, place: &str, chunks: usize) {
    let mut group = criterion.benchmark_group(format!("{}/{place}", optimizer.name()));
    for workers in [1usize, 4, 8] {
        // Weights and state are read and written.
        let buffers = workers + 2 * (1 + optimizer.state_per_element());
        let bytes = buffers * chunks * CHUNK * 4;
        group.throughput(Throughput::BytesDecimal(bytes as u64));
        for kernels in Kernels::available() {
            Memory::check(kernels, optimizer, workers);
            let mut memory = Memory::new(optimizer, workers, chunks);
            group.bench_function(BenchmarkId::new(kernels.name(), workers), |bencher| {
                bencher.iter(|| black_box(&mut memory).pass(kernels, optimizer));
            });
        }
        let (source, mut target) = (vec![1u8; bytes / 2], vec![0u8; bytes / 2]);
        group.bench_function(BenchmarkId::new("memcpy", workers), |bencher| {
            bencher.iter(|| black_box(&mut target).copy_from_slice(black_box(&source)));
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20).measurement_time(std::time::Duration::from_secs(1))
        .warm_up_time(std::time::Duration::from_millis(300));
    targets = kernels
}
criterion_main!(benches);
