//! The machine's limit: the hub's kernels over private memory, on the hub's cores, with the hub's
//! placement, and no exchange at all.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use fabric::Slab;
use pbox_core::kernels::{Kernels, Slots};
use pbox_core::oracle::Step;
use pbox_core::{ChunkId, Layout, Optimizer, Placement, Round};

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
}

impl<'a> Limit<'a> {
    pub fn new(args: &Args, layout: &'a Layout, cpus: &'a [u32]) -> Self {
        Limit { layout, cpus, workers: args.workers as usize, optimizer: args.optimizer() }
    }

    /// Passes over the whole model for about `time`; the time of each.
    pub fn measure(&self, time: Duration) -> Result<Vec<Duration>> {
        let chunks_by_core = Placement::new(self.layout, self.cpus.len()).chunks_by_core();
        let barrier = Barrier::new(self.cpus.len());
        let passes = std::sync::atomic::AtomicUsize::new(usize::MAX);
        std::thread::scope(|scope| {
            let threads: Vec<_> = (self.cpus.iter().zip(&chunks_by_core).enumerate())
                .map(|(core, (&cpu, chunks))| {
                    let (barrier, passes) = (&barrier, &passes);
                    scope.spawn(move || -> Result<Vec<Duration>> {
                        pin(cpu)?;
                        let elements = |&chunk: &ChunkId| self.layout.chunk(chunk).span.bytes / 4;
                        let chunks: Vec<usize> = chunks.iter().map(elements).collect();
                        let mut share = Share::new(&chunks, self.workers, self.optimizer)?;
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
struct Share {
    chunks: Vec<usize>,
    gradients: Vec<Slab>,
    weights: Slab,
    state: Slab,
    optimizer: Optimizer,
    kernels: &'static Kernels,
}

impl Share {
    fn new(chunks: &[usize], workers: usize, optimizer: Optimizer) -> Result<Self> {
        // Chunks start on cache lines, as in a window.
        let elements: usize = chunks.iter().map(|elements| elements.next_multiple_of(16)).sum();
        let slab = |what, elements| -> Result<Slab> {
            let mut slab = Slab::zeroed(what, elements)?;
            slab.as_mut_slice().fill(0.5);
            Ok(slab)
        };
        let gradients =
            (0..workers).map(|_| slab("the limit's gradients", elements)).collect::<Result<_>>()?;
        Ok(Share {
            chunks: chunks.to_vec(),
            gradients,
            weights: slab("the limit's weights", elements)?,
            state: slab("the limit's state", elements * optimizer.state_per_element())?,
            optimizer,
            kernels: Kernels::detect(),
        })
    }

    fn pass(&mut self) {
        let step = Step::new(&self.optimizer, self.gradients.len() as u32, Round(1), 1e-6, 1.0, 1.0);
        let mut starts = vec![std::ptr::null(); self.gradients.len()];
        let mut offset = 0;
        for &elements in &self.chunks {
            for (start, gradients) in starts.iter_mut().zip(&self.gradients) {
                *start = gradients.as_slice()[offset..offset + elements].as_ptr();
            }
            // SAFETY: the starts point into slabs that outlive the call, sliced to `elements`.
            let slots = unsafe { Slots::new(&starts, elements) };
            let weights = &mut self.weights.as_mut_slice()[offset..offset + elements];
            let state_elements = elements * self.optimizer.state_per_element();
            let state_offset = offset * self.optimizer.state_per_element();
            let state = &mut self.state.as_mut_slice()[state_offset..state_offset + state_elements];
            self.kernels.run(&self.optimizer, &step, &slots, weights, state);
            offset += elements.next_multiple_of(16);
        }
    }
}

fn pin(cpu: u32) -> Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu as usize);
    rustix::thread::sched_setaffinity(None, &set).with_context(|| format!("pinning a thread to cpu {cpu}"))
}
