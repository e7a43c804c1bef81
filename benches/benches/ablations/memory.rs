//! A model in private memory. Several cores sum and step its chunks, and there are several ways to divide the work
//! between them.

use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use benches::private_memory::step_part;
use fabric::Slab;
use pbox_core::kernels::Kernels;
use pbox_core::oracle::Step;
use pbox_core::{Key, Layout, Optimizer, Placement, Round};

pub const WORKERS: usize = 4;
pub const NESTEROV: Optimizer = Optimizer::Nesterov { learning_rate: 0.1, weight_decay: 1e-4, momentum: 0.9 };
/// The number of timed passes. One pass that is not timed comes first.
const PASSES: usize = 7;

/// The way in which the cores divide the work. Tall: each core has whole chunks. Wide: each core has a part
/// of every chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// Tall, in runs of neighbouring chunks, as in the hub.
    Runs,
    /// Tall, each core has every n-th chunk.
    InTurn,
    /// Tall, with chunks assigned at random.
    Random,
    /// Wide. Each core counts its part as done. In a hub, the last core would send the answer.
    WideCounted,
    /// Wide. A core begins the next chunk when all cores have ended the current chunk.
    WideInStep,
    /// Wide, with rayon's `join`.
    WideRayon,
}

impl Variant {
    pub const ALL: [Variant; 6] = [
        Variant::Runs,
        Variant::InTurn,
        Variant::Random,
        Variant::WideCounted,
        Variant::WideInStep,
        Variant::WideRayon,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Variant::Runs => "tall in runs",
            Variant::InTurn => "tall in turn",
            Variant::Random => "tall at random",
            Variant::WideCounted => "wide counted",
            Variant::WideInStep => "wide in step",
            Variant::WideRayon => "wide by rayon",
        }
    }

    fn is_wide(self) -> bool {
        matches!(self, Variant::WideCounted | Variant::WideInStep | Variant::WideRayon)
    }
}

/// A part of a chunk, or a whole chunk, that one core steps.
pub struct Part<'a> {
    pub chunk: usize,
    pub start: usize,
    pub weights: &'a mut [f32],
    pub kept: &'a mut [f32],
}

/// The weights, the momentum, and the gradients of all workers.
pub struct Memory {
    gradients: [Slab; WORKERS],
    weights: Slab,
    kept: Slab,
}

impl Memory {
    pub fn new(bytes: usize) -> Self {
        let filled = |salt: usize| {
            let mut slab = Slab::zeroed("an ablation", bytes / size_of::<f32>()).expect("memory");
            let number = |i: usize| ((i * 29 + salt * 17) % 127) as f32 / 61.0;
            slab.as_mut_slice().iter_mut().enumerate().for_each(|(i, value)| *value = number(i));
            slab
        };
        Memory { gradients: std::array::from_fn(filled), weights: filled(100), kept: filled(101) }
    }

    /// Panics unless all variants give the same bits.
    pub fn check(&self, cpus: &[usize]) {
        let bytes = size_of_val(self.weights.as_slice());
        let after = |variant| {
            let mut memory = Memory::new(bytes);
            memory.passes(variant, 4096, cpus);
            memory.weights.as_slice().to_vec()
        };
        let expected = after(Variant::Runs);
        assert_ne!(expected, self.weights.as_slice(), "a pass changes the weights");
        for variant in Variant::ALL {
            assert!(after(variant) == expected, "{variant:?} gives other bits than {:?}", Variant::Runs);
        }
    }

    /// Returns the time of each pass over the model.
    pub fn passes(&mut self, variant: Variant, chunk_bytes: usize, cpus: &[usize]) -> Vec<Duration> {
        let chunks = size_of_val(self.weights.as_slice()).div_ceil(chunk_bytes);
        let gradients: [&[f32]; WORKERS] = self.gradients.each_ref().map(Slab::as_slice);
        let parts =
            deal(variant, chunk_bytes, cpus.len(), self.weights.as_mut_slice(), self.kept.as_mut_slice());
        match variant {
            Variant::WideRayon => by_rayon(gradients, parts, cpus),
            _ => by_threads(variant, gradients, parts, cpus, chunks),
        }
    }
}

/// Divides the model into the parts of each core.
fn deal<'a>(
    variant: Variant,
    chunk_bytes: usize,
    cores: usize,
    mut weights: &'a mut [f32],
    mut kept: &'a mut [f32],
) -> Vec<Vec<Part<'a>>> {
    let chunk = chunk_bytes / size_of::<f32>();
    let layout = Layout::new(vec![Key::f32("model", [weights.len() as u64])], chunk_bytes).expect("a layout");
    let placement = Placement::new(&layout, cores);
    let mut parts: Vec<Vec<Part>> = (0..cores).map(|_| Vec::new()).collect();
    let (mut start, mut dice) = (0, 1_u64);
    for number in 0..layout.chunks().len() {
        let of_core = if variant.is_wide() { chunk / cores } else { chunk };
        for part in 0..if variant.is_wide() { cores } else { 1 } {
            // The last part of a chunk gets the remainder.
            let len = if part + 1 == cores && variant.is_wide() { chunk - part * of_core } else { of_core };
            let (of_weights, rest) = weights.split_at_mut(len);
            let (of_kept, rest_of_kept) = kept.split_at_mut(len);
            (weights, kept) = (rest, rest_of_kept);
            // Knuth's MMIX generator. Only its high bits are used, because its low bits are less random.
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let core = match variant {
                Variant::Runs => placement.owner(pbox_core::ChunkId(number as u32)),
                Variant::InTurn => number % cores,
                Variant::Random => (dice >> 33) as usize % cores,
                Variant::WideCounted | Variant::WideInStep | Variant::WideRayon => part,
            };
            parts[core].push(Part { chunk: number, start, weights: of_weights, kept: of_kept });
            start += len;
        }
    }
    parts
}

pub fn run(kernels: &Kernels, step: &Step, gradients: [&[f32]; WORKERS], part: &mut Part) {
    let range = part.start..part.start + part.weights.len();
    let slots = gradients.map(|slot| &slot[range.clone()]);
    step_part(kernels, &NESTEROV, step, slots, part.weights, part.kept);
}

pub fn step() -> Step {
    Step::new(&NESTEROV, WORKERS as u32, Round(1), 1e-6, 1.0, 1.0)
}

/// Steps the model with one thread per core. All threads begin and end each pass at the same time, as in
/// rounds.
fn by_threads(
    variant: Variant,
    gradients: [&[f32]; WORKERS],
    parts: Vec<Vec<Part>>,
    cpus: &[usize],
    chunks: usize,
) -> Vec<Duration> {
    let counts: Vec<AtomicUsize> = (0..chunks).map(|_| AtomicUsize::new(0)).collect();
    let barrier = Barrier::new(cpus.len());
    let core = |cpu: usize, mut parts: Vec<Part>| {
        pin(cpu);
        let (kernels, step) = (Kernels::detect(), step());
        let one = |pass: usize| {
            barrier.wait();
            let begun = Instant::now();
            for part in &mut parts {
                run(kernels, &step, gradients, part);
                let count = &counts[part.chunk];
                match variant {
                    Variant::WideCounted => {
                        count.fetch_add(1, Ordering::AcqRel);
                    }
                    Variant::WideInStep => {
                        count.fetch_add(1, Ordering::AcqRel);
                        while count.load(Ordering::Acquire) < (pass + 1) * cpus.len() {
                            std::hint::spin_loop();
                        }
                    }
                    _ => {}
                }
            }
            barrier.wait();
            begun.elapsed()
        };
        (0..=PASSES).map(one).skip(1).collect()
    };
    std::thread::scope(|scope| {
        let core = &core;
        let start = |(&cpu, parts)| scope.spawn(move || core(cpu, parts));
        let threads: Vec<_> = cpus.iter().zip(parts).map(start).collect();
        let times: Vec<Vec<Duration>> =
            threads.into_iter().map(|thread| thread.join().expect("a core")).collect();
        times.into_iter().next().expect("a machine has a core")
    })
}

/// Steps the model with rayon's `join`. For each chunk, `join` divides the cores' parts into two sides.
fn by_rayon(gradients: [&[f32]; WORKERS], parts: Vec<Vec<Part>>, cpus: &[usize]) -> Vec<Duration> {
    let pool = pool(cpus.len());
    let (kernels, step) = (Kernels::detect(), step());
    let mut parts = parts.into_iter().map(Vec::into_iter).collect::<Vec<_>>();
    let mut chunks: Vec<Vec<Part>> = Vec::new();
    loop {
        let chunk: Vec<Part> = parts.iter_mut().filter_map(Iterator::next).collect();
        if chunk.is_empty() {
            break;
        }
        chunks.push(chunk);
    }
    let mut one = |_| {
        let begun = Instant::now();
        pool.install(|| chunks.iter_mut().for_each(|chunk| halves(kernels, &step, gradients, chunk)));
        begun.elapsed()
    };
    (0..=PASSES).map(&mut one).skip(1).collect()
}

/// Steps the parts of a chunk in two halves, which rayon may divide further.
pub fn halves(kernels: &Kernels, step: &Step, gradients: [&[f32]; WORKERS], parts: &mut [Part]) {
    match parts {
        [] => {}
        [part] => run(kernels, step, gradients, part),
        _ => {
            let (left, right) = parts.split_at_mut(parts.len() / 2);
            rayon::join(
                || halves(kernels, step, gradients, left),
                || halves(kernels, step, gradients, right),
            );
        }
    }
}

/// Returns a pool with a thread for each core.
pub fn pool(cores: usize) -> rayon::ThreadPool {
    rayon::ThreadPoolBuilder::new().num_threads(cores).build().expect("a pool")
}

pub fn pin(cpu: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set).expect("a cpu of this process");
}
