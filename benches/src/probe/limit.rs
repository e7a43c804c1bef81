//! The machine's limit: the hub's kernels over private memory, without exchange. They run on the hub's cores,
//! with the hub's placement.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Barrier};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use pbox_core::kernels::Kernels;
use pbox_core::{ChunkId, Element, Layout, Placement};

use super::args::Args;
use crate::private_memory::PrivateMemory;

/// The threads that measure. Each is pinned to one of the hub's cpus, has its share of the model in memory,
/// and sleeps between measurements.
#[derive(Debug)]
pub(super) struct Limit {
    asks: Vec<Sender<u32>>,
    times: Receiver<Result<Vec<Duration>>>,
    threads: Vec<JoinHandle<()>>,
}

impl Limit {
    /// Starts the threads and waits until they have their memory.
    pub fn start(args: &Args, layout: &Layout, cpus: &[u32]) -> Result<Self> {
        in_dtype!(layout.keys()[0].dtype, Self::start_in(args, layout, cpus))
    }

    fn start_in<E: Element>(args: &Args, layout: &Layout, cpus: &[u32]) -> Result<Self> {
        let barrier = Arc::new(Barrier::new(cpus.len()));
        let (said, times) = channel();
        let (mut asks, mut threads) = (Vec::new(), Vec::new());
        let chunks_by_core = Placement::new(layout, cpus.len()).chunks_by_core();
        for (core, (&cpu, chunks)) in cpus.iter().zip(&chunks_by_core).enumerate() {
            let elements = |&chunk: &ChunkId| layout.chunk(chunk).span.bytes / size_of::<E>();
            let chunks: Vec<usize> = chunks.iter().map(elements).collect();
            let (workers, optimizer) = (args.workers as usize, args.optimizer);
            let (ask, asked) = channel();
            let (barrier, said) = (Arc::clone(&barrier), said.clone());
            let thread = std::thread::Builder::new().name(format!("limit-{core}"));
            threads.push(thread.spawn(move || {
                let memory =
                    pin(cpu).and_then(|()| Ok(PrivateMemory::<E>::new(&chunks, workers, optimizer)?));
                let mut memory = match memory {
                    Ok(memory) => memory,
                    Err(error) => return drop(said.send(Err(error))),
                };
                let _ = said.send(Ok(Vec::new()));
                for passes in asked {
                    let times = timed(&mut memory, passes, &barrier);
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

    /// Makes `passes` passes over the whole model, after one pass that does not count. Returns the time of
    /// each.
    pub fn measure(&self, passes: u32) -> Result<Vec<Duration>> {
        for ask in &self.asks {
            ask.send(passes).context("a thread of the limit ended")?;
        }
        self.times.recv().context("a thread of the limit ended")?
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        self.asks.clear(); // closes the channels, which ends the threads
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// Measures passes. All threads begin and end each pass at the same time, as in rounds.
fn timed<E: Element>(memory: &mut PrivateMemory<E>, passes: u32, barrier: &Barrier) -> Vec<Duration> {
    let kernels = Kernels::detect();
    memory.pass(kernels);
    let one = |_| {
        barrier.wait();
        let begun = Instant::now();
        memory.pass(kernels);
        barrier.wait();
        begun.elapsed()
    };
    (0..passes).map(one).collect()
}

fn pin(cpu: u32) -> Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu as usize);
    rustix::thread::sched_setaffinity(None, &set).with_context(|| format!("pinning a thread to cpu {cpu}"))
}
