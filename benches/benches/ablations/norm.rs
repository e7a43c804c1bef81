//! The cost of computing a norm between sum and step. The step needs the mean after the norm: either the mean is kept,
//! or the slots (the workers' gradients) are summed twice.

use std::hint::black_box;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use benches::private_memory::PrivateMemory;
use fabric::Slab;
use half::bf16;
use pbox_core::Element;
use pbox_core::kernels::Kernels;

use crate::memory::{NESTEROV, pin};

const CHUNK_BYTES: usize = 32 << 10;
/// The place of the data (cache or memory), with the number of chunks. One chunk fits into the cache; 512 chunks are 16
/// MiB per buffer.
const PLACES: [(&str, usize); 2] = [("cache", 1), ("memory", 512)];
const WORKERS: [usize; 5] = [1, 2, 4, 8, 32];
/// The least number of chunks of a timed pass.
const TIMED: usize = 512;
const REPEATS: usize = 15;

#[derive(Clone, Copy, Debug)]
enum Variant {
    /// No norm: the slots are summed and stepped at once.
    AtOnce,
    /// The mean is kept for the step.
    Kept,
    /// The slots are summed for the norm, and again for the step.
    Twice,
}

const VARIANTS: [(Variant, &str); 3] =
    [(Variant::AtOnce, "without a norm"), (Variant::Kept, "mean kept"), (Variant::Twice, "summed twice")];

/// Prints the time of each variant, divided by the time without a norm. The printed value is the median over
/// passes that alternate between the variants.
pub fn print(cpus: &[usize]) {
    of::<f32>(cpus);
    of::<bf16>(cpus);
}

fn of<E: Element>(cpus: &[usize]) {
    for (place, chunks) in PLACES {
        for workers in WORKERS {
            let times = times::<E>(cpus, chunks, workers);
            for ((_, name), variant) in VARIANTS.iter().zip(0..) {
                let ratio = |times: &[Duration; 3]| times[variant].as_secs_f64() / times[0].as_secs_f64();
                let mut ratios: Vec<f64> = times.iter().map(ratio).collect();
                ratios.sort_by(f64::total_cmp);
                println!("norm,{} in {place},{name},{workers},{:.3}", E::DTYPE.name(), ratios[REPEATS / 2]);
            }
        }
    }
}

/// Returns the times of all variants, for each repeat. Each core has its own memory.
fn times<E: Element>(cpus: &[usize], chunks: usize, workers: usize) -> Vec<[Duration; 3]> {
    let barrier = Barrier::new(cpus.len());
    let core = |cpu: usize| {
        pin(cpu);
        let elements = CHUNK_BYTES / size_of::<E>();
        let mut memory = PrivateMemory::<E>::new(&vec![elements; chunks], workers, NESTEROV).expect("memory");
        let mut means = Slab::zeroed("means", chunks * elements).expect("memory");
        let mut repeat = |_| {
            VARIANTS.map(|(variant, _)| {
                barrier.wait();
                let begun = Instant::now();
                for _ in 0..TIMED.div_ceil(chunks) {
                    pass(&mut memory, variant, means.as_mut_slice(), elements);
                }
                barrier.wait();
                begun.elapsed()
            })
        };
        repeat(0);
        (0..REPEATS).map(repeat).collect()
    };
    std::thread::scope(|scope| {
        let core = &core;
        let threads: Vec<_> = cpus.iter().map(|&cpu| scope.spawn(move || core(cpu))).collect();
        let times: Vec<Vec<_>> = threads.into_iter().map(|thread| thread.join().expect("a core")).collect();
        times.into_iter().next().expect("a machine has a core")
    })
}

/// Makes one pass. All chunks are summed before any chunk is stepped, because the norm is that of the whole gradient.
fn pass<E: Element>(memory: &mut PrivateMemory<E>, variant: Variant, means: &mut [f32], of_chunk: usize) {
    let (kernels, mut step) = (Kernels::detect(), memory.step());
    let rescale = std::mem::replace(&mut step.rescale, 1.0);
    match variant {
        Variant::AtOnce => return memory.pass(kernels),
        Variant::Kept => memory.each_chunk(|chunk, slots, _, _| {
            let means = &mut means[chunk * of_chunk..][..of_chunk];
            black_box(kernels.mean(slots, rescale, 0, means));
        }),
        Variant::Twice => memory.each_chunk(|_, slots, _, _| {
            black_box(kernels.magnitude(slots, slots.workers() as u32));
        }),
    }
    match variant {
        Variant::Twice => memory.pass(kernels),
        _ => memory.each_chunk(|chunk, _, weights, kept| {
            let mean = &means[chunk * of_chunk..][..of_chunk];
            kernels.step(&NESTEROV, &step, mean, weights, kept);
        }),
    }
}
