//! Placement: which of the hub's cores owns each chunk. Pure; the same at both ends of every link.
//!
//! A chunk goes to one core (PHub, section 2), by LPT on bytes as in PHub's public code, but in *runs* of
//! neighbours:
//!
//! ```text
//!   key 0: [0 0 0 0 0 0 0 0][1 1 1 1 1 1 1 1][0 0 0 0]   one digit a chunk: its core
//!           run of 512 KiB
//! ```
//!
//! A core that owns every other chunk starts each of its `workers + 2` streams through memory anew
//! every 32 KiB, and prefetches what belongs to its neighbour: on two cores, four workers and
//! Nesterov that took a fifth of the memory's bandwidth. Runs of 16 chunks give it back
//! (`docs/decisions/0005-placement-by-runs.md`).

use std::sync::Arc;

use fabric::{SendWindow, Span, Spans, WindowError};

use crate::chunk::ChunkId;
use crate::key::KeyId;
use crate::layout::Layout;

/// The longest run: what is needed for the memory's full speed, and no more, so that a layer is
/// spread over the cores.
const RUN_BYTES: usize = 512 * 1024;

/// Runs that each core should have at least, so that LPT balances them; small models have shorter
/// runs for it.
const RUNS_PER_CORE: usize = 64;

/// The owner of every chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    owners: Vec<u32>,
    cores: usize,
}

impl Placement {
    /// Places a layout's chunks on `cores` cores; at least one.
    pub fn new(layout: &Layout, cores: usize) -> Self {
        let runs = runs(layout, cores);
        let bytes = |run: &std::ops::Range<u32>| {
            run.clone().map(|id| layout.chunk(ChunkId(id)).span.bytes as u64).sum()
        };
        let weights: Vec<u64> = runs.iter().map(bytes).collect();
        let mut owners = vec![0; layout.chunks().len()];
        for (run, core) in runs.into_iter().zip(topology::lpt(&weights, cores)) {
            owners[run.start as usize..run.end as usize].fill(core);
        }
        Placement { owners, cores }
    }

    /// The core that owns a chunk.
    pub fn owner(&self, chunk: ChunkId) -> usize {
        self.owners[chunk.index()] as usize
    }

    /// Number of cores.
    pub fn cores(&self) -> usize {
        self.cores
    }

    /// Each core's chunks, ascending.
    pub fn chunks_by_core(&self) -> Vec<Vec<ChunkId>> {
        let mut chunks = vec![Vec::new(); self.cores];
        self.owners.iter().zip(0..).for_each(|(&core, id)| chunks[core as usize].push(ChunkId(id)));
        chunks
    }

    /// A weights window for the layout that was placed, and each core's part of it: its chunks, in the
    /// order of [`chunks_by_core`](Self::chunks_by_core).
    pub fn weights_window(&self, layout: &Layout) -> Result<(Arc<SendWindow>, Vec<Spans>), WindowError> {
        let window = SendWindow::new(layout.window_bytes())?;
        Ok(window.split(self.spans_by_core(layout)).expect("the layout's chunks are disjoint"))
    }

    /// Where each core's chunks lie in a window of the layout that was placed.
    pub fn spans_by_core(&self, layout: &Layout) -> Vec<Vec<Span>> {
        let spans = |ids: Vec<ChunkId>| ids.iter().map(|&id| layout.chunk(id).span).collect();
        self.chunks_by_core().into_iter().map(spans).collect()
    }

    /// How many chunks each core owns: what the link to it must hold.
    pub fn capacities(&self) -> Vec<u32> {
        let mut capacities = vec![0; self.cores];
        self.owners.iter().for_each(|&core| capacities[core as usize] += 1);
        capacities
    }
}

/// The runs of a layout on `cores` cores, as ranges of chunk ids, ascending: the items of the
/// placement. A run does not cross keys.
pub fn runs(layout: &Layout, cores: usize) -> Vec<std::ops::Range<u32>> {
    let chunks = layout.chunks().len();
    let by_speed = RUN_BYTES / layout.chunk_bytes();
    let by_balance = chunks / (cores * RUNS_PER_CORE);
    let length = by_speed.min(by_balance).max(1) as u32;
    let keys = (0..layout.keys().len() as u32).map(KeyId);
    let cut = |key| {
        let chunks = layout.key_chunks(key);
        let end = chunks.end;
        chunks.step_by(length as usize).map(move |start| start..end.min(start + length))
    };
    keys.flat_map(cut).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Key;
    use crate::models::model;
    use proptest::prelude::*;

    fn loads(layout: &Layout, placement: &Placement) -> Vec<u64> {
        let mut loads = vec![0; placement.cores()];
        for (chunk, id) in layout.chunks().iter().zip(0..) {
            loads[placement.owner(ChunkId(id))] += chunk.span.bytes as u64;
        }
        loads
    }

    #[test]
    fn published_models_are_balanced() {
        for name in crate::models::MODELS {
            let layout = Layout::new(model(name).unwrap().keys, 32 * 1024).unwrap();
            for cores in [2, 4, 8, 10, 16, 20, 40] {
                let loads = loads(&layout, &Placement::new(&layout, cores));
                let mean = loads.iter().sum::<u64>() as f64 / cores as f64;
                let ratio = *loads.iter().max().unwrap() as f64 / mean;
                assert!(ratio < 1.02, "{name} on {cores} cores: max/mean {ratio}");
            }
        }
    }

    #[test]
    fn neighbours_share_an_owner() {
        let layout = Layout::new(vec![Key::f32("a", [16 << 20])], 32 * 1024).unwrap();
        let placement = Placement::new(&layout, 2);
        let changes = placement.owners.windows(2).filter(|pair| pair[0] != pair[1]).count();
        assert_eq!(changes, layout.chunks().len() / 16 - 1);
    }

    proptest! {
        #[test]
        fn every_chunk_has_one_owner(
            sizes in proptest::collection::vec(1u64..50_000, 1..30),
            chunk_lines in 1usize..600,
            cores in 1usize..20,
        ) {
            let keys = sizes.iter().enumerate().map(|(i, &n)| Key::f32(format!("k{i}"), [n])).collect();
            let layout = Layout::new(keys, chunk_lines * 64).unwrap();
            let placement = Placement::new(&layout, cores);
            let mut seen: Vec<u32> = placement.chunks_by_core().into_iter().flatten().map(|c| c.0).collect();
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..layout.chunks().len() as u32).collect::<Vec<_>>());
            prop_assert_eq!(placement.capacities().iter().sum::<u32>() as usize, layout.chunks().len());
        }
    }
}
