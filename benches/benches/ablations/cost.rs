//! The cost of stepping one chunk of 32 KiB in cache: in place, in halves that rayon divides among threads, or in one
//! of rayon's threads.

use std::time::Instant;

use fabric::Slab;
use pbox_core::kernels::Kernels;

use crate::memory::{Part, WORKERS, halves, pool, run, step};

const CHUNK_BYTES: usize = 32 << 10;
const ELEMENTS: usize = CHUNK_BYTES / size_of::<f32>();
const TIMES: u32 = 1000;
const BATCHES: u32 = 20;

/// Prints the nanoseconds per chunk for each variant.
pub fn print(cores: usize) {
    let slab = || Slab::zeroed("an ablation", ELEMENTS).expect("memory");
    let gradients: [Slab; WORKERS] = std::array::from_fn(|_| slab());
    let gradients = gradients.each_ref().map(Slab::as_slice);
    let (mut weights, mut kept) = (slab(), slab());
    let (weights, kept) = (weights.as_mut_slice(), kept.as_mut_slice());
    let (kernels, step, pool) = (Kernels::detect(), step(), pool(cores));
    let mut part = Part { chunk: 0, start: 0, weights, kept };
    say("in place", || run(kernels, &step, gradients, &mut part));
    say("handed over", || pool.install(|| run(kernels, &step, gradients, &mut part)));
    let len = ELEMENTS.div_ceil(cores);
    let cut = part.weights.chunks_mut(len).zip(part.kept.chunks_mut(len)).enumerate();
    let mut parts: Vec<Part> =
        cut.map(|(n, (weights, kept))| Part { chunk: 0, start: n * len, weights, kept }).collect();
    say("handed over in parts", || pool.install(|| halves(kernels, &step, gradients, &mut parts)));
    pool.install(|| say("in parts", || halves(kernels, &step, gradients, &mut parts)));
}

/// Times some batches of calls of `once`. Prints the time per call in the fastest batch.
fn say(variant: &str, mut once: impl FnMut() + Send) {
    let batch = |_| {
        let begun = Instant::now();
        (0..TIMES).for_each(|_| once());
        begun.elapsed().as_secs_f64() * 1e9 / f64::from(TIMES)
    };
    let fastest = (0..BATCHES).map(batch).fold(f64::INFINITY, f64::min);
    println!("cost,,{variant},{CHUNK_BYTES},{fastest:.0}");
}
