//! The machine's limit: the hub's kernels over private memory, on the hub's cores, with the hub's
//! placement, without exchange.

use std::marker::PhantomData;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Barrier};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use fabric::Slab;
use half::{bf16, f16};
use pbox_core::kernels::{Kernels, Slots};
use pbox_core::oracle::Step;
use pbox_core::{ChunkId, Dtype, Element, Layout, Optimizer, Placement, Round};
use zerocopy::{FromBytes, IntoBytes};

use super::args::Args;

/// The threads that measure. Each is pinned to one of the hub's cpus, has its share in memory, and sleeps between
/// measurements.
#[derive(Debug)]
pub(super) struct Limit {
    asks: Vec<Sender<u32>>,
    times: Receiver<Result<Vec<Duration>>>,
    threads: Vec<JoinHandle<()>>,
}

impl Limit {
    /// Starts the threads and waits until they have their memory.
    pub fn start(args: &Args, layout: &Layout, cpus: &[u32]) -> Result<Self> {
        match args.dtype() {
            Dtype::F32 => Self::start_in::<f32>(args, layout, cpus),
            Dtype::F16 => Self::start_in::<f16>(args, layout, cpus),
            Dtype::BF16 => Self::start_in::<bf16>(args, layout, cpus),
        }
    }

    fn start_in<E: Element>(args: &Args, layout: &Layout, cpus: &[u32]) -> Result<Self> {
        let barrier = Arc::new(Barrier::new(cpus.len()));
        let (said, times) = channel();
        let (mut asks, mut threads) = (Vec::new(), Vec::new());
        let chunks_by_core = Placement::new(layout, cpus.len()).chunks_by_core();
        for (core, (&cpu, chunks)) in cpus.iter().zip(&chunks_by_core).enumerate() {
            let elements = |&chunk: &ChunkId| layout.chunk(chunk).span.bytes / size_of::<E>();
            let chunks: Vec<usize> = chunks.iter().map(elements).collect();
            let (workers, optimizer) = (args.workers as usize, args.optimizer());
            let (ask, asked) = channel();
            let (barrier, said) = (Arc::clone(&barrier), said.clone());
            let thread = std::thread::Builder::new().name(format!("limit-{core}"));
            threads.push(thread.spawn(move || {
                let share = pin(cpu).and_then(|()| Share::<E>::new(&chunks, workers, optimizer));
                let mut share = match share {
                    Ok(share) => share,
                    Err(error) => return drop(said.send(Err(error))),
                };
                let _ = said.send(Ok(Vec::new()));
                for passes in asked {
                    let times = share.passes(passes, &barrier);
                    if core == 0 {
                        let _ = said.send(Ok(times));
                    }
                }
            })?);
            asks.push(ask);
        }
        for _ in cpus {
            times.recv().context("a thread of the limit ended")??;
        }
        Ok(Limit { asks, times, threads })
    }

    /// Makes `passes` passes over the whole model after one that is not counted. Returns the time of each.
    pub fn measure(&self, passes: u32) -> Result<Vec<Duration>> {
        for ask in &self.asks {
            ask.send(passes).context("a thread of the limit ended")?;
        }
        self.times.recv().context("a thread of the limit ended")?
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        self.asks.clear(); // ends the threads' loops
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
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

    /// All threads begin and end each pass at the same time, as rounds do.
    fn passes(&mut self, passes: u32, barrier: &Barrier) -> Vec<Duration> {
        self.pass();
        let timed = (0..passes).map(|_| {
            barrier.wait();
            let begun = Instant::now();
            self.pass();
            barrier.wait();
            begun.elapsed()
        });
        timed.collect()
    }

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
