//! The machine's limit: the hub's kernels over private memory, on the hub's cores, with the hub's
//! placement, and no exchange at all.

use std::marker::PhantomData;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use fabric::Slab;
use half::{bf16, f16};
use pbox_core::kernels::{Kernels, Slots};
use pbox_core::oracle::Step;
use pbox_core::{ChunkId, Dtype, Element, Layout, Optimizer, Placement, Round};
use zerocopy::{FromBytes, IntoBytes};

use super::args::Args;

/// At least so many passes, however long they take.
const MIN_PASSES: usize = 5;

/// What to measure.
#[derive(Debug)]
pub(super) struct Limit<'a> {
    layout: &'a Layout,
    cpus: &'a [u32],
    workers: usize,
    optimizer: Optimizer,
    dtype: Dtype,
}

impl<'a> Limit<'a> {
    pub fn new(args: &Args, layout: &'a Layout, cpus: &'a [u32]) -> Self {
        Limit {
            layout,
            cpus,
            workers: args.workers as usize,
            optimizer: args.optimizer(),
            dtype: args.dtype(),
        }
    }

    /// Passes over the whole model for about `time`; the time of each.
    pub fn measure(&self, time: Duration) -> Result<Vec<Duration>> {
        match self.dtype {
            Dtype::F32 => self.measure_in::<f32>(time),
            Dtype::F16 => self.measure_in::<f16>(time),
            Dtype::BF16 => self.measure_in::<bf16>(time),
        }
    }

    fn measure_in<E: Element>(&self, time: Duration) -> Result<Vec<Duration>> {
        let chunks_by_core = Placement::new(self.layout, self.cpus.len()).chunks_by_core();
        let barrier = Barrier::new(self.cpus.len());
        let passes = std::sync::atomic::AtomicUsize::new(usize::MAX);
        std::thread::scope(|scope| {
            let threads: Vec<_> = (self.cpus.iter().zip(&chunks_by_core).enumerate())
                .map(|(core, (&cpu, chunks))| {
                    let (barrier, passes) = (&barrier, &passes);
                    scope.spawn(move || -> Result<Vec<Duration>> {
                        pin(cpu)?;
                        let elements =
                            |&chunk: &ChunkId| self.layout.chunk(chunk).span.bytes / size_of::<E>();
                        let chunks: Vec<usize> = chunks.iter().map(elements).collect();
                        let mut share = Share::<E>::new(&chunks, self.workers, self.optimizer)?;
                        share.pass();
                        let started = Instant::now();
                        let mut times = Vec::new();
                        while times.len() < passes.load(std::sync::atomic::Ordering::Acquire) {
                            barrier.wait();
                            let begun = Instant::now();
                            share.pass();
                            barrier.wait();
                            times.push(begun.elapsed());
                            if core == 0 && times.len() >= MIN_PASSES && started.elapsed() > time {
                                passes.store(times.len(), std::sync::atomic::Ordering::Release);
                            }
                            // Nobody looks at `passes` before core 0 has decided.
                            barrier.wait();
                        }
                        Ok(times)
                    })
                })
                .collect();
            let times: Result<Vec<Vec<Duration>>> =
                threads.into_iter().map(|thread| thread.join().expect("no panics")).collect();
            Ok(times?.swap_remove(0))
        })
    }
}

/// One core's chunks in private memory.
struct Share<E> {
    chunks: Vec<usize>,
    gradients: Vec<Slab>,
    weights: Slab,
    kept: Slab,
    optimizer: Optimizer,
    kernels: &'static Kernels,
    elements: PhantomData<E>,
}

impl<E: Element> Share<E> {
    /// Elements of a cache line: chunks start on lines, as in a window.
    const LINE: usize = 64 / size_of::<E>();

    fn new(chunks: &[usize], workers: usize, optimizer: Optimizer) -> Result<Self> {
        let elements: usize = chunks.iter().map(|elements| elements.next_multiple_of(Self::LINE)).sum();
        let buffer = |what| -> Result<Slab> {
            let mut slab = Slab::zeroed(what, (elements * size_of::<E>()).div_ceil(size_of::<f32>()))?;
            Self::elements_mut(&mut slab).fill(E::from_f32(0.5));
            Ok(slab)
        };
        let gradients = (0..workers).map(|_| buffer("the limit's gradients")).collect::<Result<_>>()?;
        let kept = elements * optimizer.kept_per_element(E::DTYPE);
        let mut kept = Slab::zeroed("what the limit keeps", kept)?;
        kept.as_mut_slice().fill(0.5);
        Ok(Share {
            chunks: chunks.to_vec(),
            gradients,
            weights: buffer("the limit's weights")?,
            kept,
            optimizer,
            kernels: Kernels::detect(),
            elements: PhantomData,
        })
    }

    fn elements(slab: &Slab) -> &[E] {
        <[E]>::ref_from_bytes(slab.as_slice().as_bytes()).expect("a slab is aligned, and holds whole f32")
    }

    fn elements_mut(slab: &mut Slab) -> &mut [E] {
        let bytes = slab.as_mut_slice().as_mut_bytes();
        <[E]>::mut_from_bytes(bytes).expect("a slab is aligned, and holds whole f32")
    }

    fn pass(&mut self) {
        let step = Step::new(&self.optimizer, self.gradients.len() as u32, Round(1), 1e-6, 1.0, 1.0);
        let per_element = self.optimizer.kept_per_element(E::DTYPE);
        let mut starts = vec![std::ptr::null(); self.gradients.len()];
        let mut offset = 0;
        for &elements in &self.chunks {
            for (start, gradients) in starts.iter_mut().zip(&self.gradients) {
                *start = Self::elements(gradients)[offset..offset + elements].as_ptr();
            }
            // SAFETY: the starts point into slabs that outlive the call, sliced to `elements`.
            let slots = unsafe { Slots::new(&starts, elements) };
            let weights = &mut Self::elements_mut(&mut self.weights)[offset..offset + elements];
            let kept = &mut self.kept.as_mut_slice()[offset * per_element..(offset + elements) * per_element];
            self.kernels.run(&self.optimizer, &step, &slots, weights, kept);
            offset += elements.next_multiple_of(Self::LINE);
        }
    }
}

fn pin(cpu: u32) -> Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu as usize);
    rustix::thread::sched_setaffinity(None, &set).with_context(|| format!("pinning a thread to cpu {cpu}"))
}
