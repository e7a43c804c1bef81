//! Placement: the core of a hub that owns each chunk. Pure functions, the same at both ends of every link. If a job is
//! spread over several hubs, [`share`](crate::share) first decides which hub owns a chunk.
//!
//! Each chunk goes to one core (PHub, section 2). Chunks are distributed by bytes with LPT (the largest first, to the core
//! that would finish it first), as in PHub's public code, but in *runs* of neighbours:
//!
//! ```text
//!   key 0: [0 0 0 0 0 0 0 0][1 1 1 1 1 1 1 1][0 0 0 0]   one digit a chunk: its core
//!           run of 512 KiB
//! ```
//!
//! Small keys share runs. A [group](crate::Layout::group) of small keys is always on one core.
//!
//! Without runs, each of two cores would own every other chunk. A core would start each of its `workers + 2` streams
//! through memory again every 32 KiB, and would prefetch its neighbour's data. With two cores, four workers and
//! Nesterov, this cost a fifth of the memory's bandwidth. Runs of 16 chunks have the full bandwidth
//! (`docs/design/turn-of-a-core.md#placement-in-runs`).

use std::ops::Range;
use std::sync::Arc;

use fabric::{Carries, PlannedLink, PortId, SendWindow, Span, Spans, WindowError};
use xxhash_rust::xxh3::Xxh3;

use super::cores::JobCores;
use super::nodes::OfNode;
use super::runs::{cut, weights};
use super::share::{Share, pieces, pieces_of_all};
use crate::job::Schedule;
use crate::layout::{ChunkId, Layout};
use crate::wire::Wire;

/// The owner of a chunk that belongs to another hub.
const ELSEWHERE: u32 = u32::MAX;

/// The number of owners that the digest takes at a time.
const DIGESTED: usize = 1024;

/// A run: neighbouring chunks of one core. With one owner per chunk, the placements of 256 hubs took 846 MB for a model of
/// 7 billion parameters, in chunks of 32 KiB. The runs take 7 MB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    start: u32,
    end: u32,
    core: u32,
}

/// The owner of every chunk: a core of the only hub, or of one of several hubs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The runs of all chunks that do not belong to another hub, ascending. Neighbouring runs have different cores.
    runs: Vec<Run>,
    /// The number of the layout's chunks.
    chunks: u32,
    cores: usize,
}

impl Placement {
    /// Places a layout's chunks on the cores of one hub. `cores` is the number of cores of one NUMA node, or the node of
    /// each core. There must be at least one core.
    pub fn new(layout: &Layout, cores: impl Into<JobCores>) -> Self {
        Self::of_share(layout, Schedule::default(), Share::WHOLE, cores)
    }

    /// Places a hub's share of a layout's chunks on its cores. There must be at least one core.
    pub fn of_share(layout: &Layout, schedule: Schedule, share: Share, cores: impl Into<JobCores>) -> Self {
        Self::of_pieces(layout, pieces(layout, schedule, share), &cores.into())
    }

    /// Places the shares of all hubs of a job on the cores of each hub, in the order of the hubs. `share` is the share of
    /// any of the hubs.
    pub fn of_shares(layout: &Layout, schedule: Schedule, share: Share, cores: &[JobCores]) -> Vec<Self> {
        let pieces = pieces_of_all(layout, schedule, share);
        pieces.into_iter().zip(cores).map(|(pieces, cores)| Self::of_pieces(layout, pieces, cores)).collect()
    }

    /// Places these pieces of a layout on the cores of a hub.
    fn of_pieces(layout: &Layout, pieces: Vec<Range<u32>>, cores: &JobCores) -> Self {
        let mut all = Vec::new();
        for OfNode { cores, speeds, pieces } in cores.deal(layout, pieces) {
            let runs = cut(layout, cores.len(), pieces);
            let dealt = topology::lpt_by_share(&weights(layout, &runs), &speeds);
            all.extend(runs.into_iter().zip(dealt).map(|(run, core)| (run, cores[core as usize])));
        }
        Self::of_runs(all, layout.chunks().len() as u32, cores.cores())
    }

    /// Creates a placement from runs in any order, each with its core. `chunks` is the number of the layout's chunks.
    ///
    /// # Panics
    /// Panics if a chunk is in two runs.
    pub(super) fn of_runs(mut runs: Vec<(Range<u32>, u32)>, chunks: u32, cores: usize) -> Self {
        runs.sort_unstable_by_key(|(run, _)| run.start);
        let mut merged: Vec<Run> = Vec::new();
        for (Range { start, end }, core) in runs.into_iter().filter(|(run, _)| !run.is_empty()) {
            match merged.last_mut() {
                Some(last) if last.end == start && last.core == core => last.end = end,
                last => {
                    assert!(last.is_none_or(|last| last.end <= start), "a chunk is one hub's");
                    merged.push(Run { start, end, core });
                }
            }
        }
        merged.shrink_to_fit();
        Placement { runs: merged, chunks, cores }
    }

    /// Returns the runs of chunks that one core owns, ascending, each with its core.
    pub fn runs(&self) -> impl Iterator<Item = (Range<u32>, u32)> {
        self.runs.iter().map(|run| (run.start..run.end, run.core))
    }

    /// Whether no chunk belongs to another hub.
    fn is_whole(&self) -> bool {
        self.runs.iter().map(|run| run.end - run.start).sum::<u32>() == self.chunks
    }

    /// Combines the placements of several hubs' shares, in the order of the hubs. The first cores are those of the first
    /// hub, and so on.
    ///
    /// # Panics
    /// Panics if a chunk is in two shares or in none.
    pub fn over_hubs<'a>(shares: impl IntoIterator<Item = &'a Placement>) -> Self {
        let (mut runs, mut chunks, mut cores) = (Vec::new(), 0, 0);
        for share in shares {
            runs.extend(share.runs().map(|(run, core)| (run, cores as u32 + core)));
            (chunks, cores) = (share.chunks, cores + share.cores);
        }
        let all = Self::of_runs(runs, chunks, cores);
        assert!(all.is_whole(), "every chunk is some hub's");
        all
    }

    /// Returns the number of the layout's chunks.
    pub(super) fn chunks(&self) -> u32 {
        self.chunks
    }

    /// Returns the core that owns a chunk. The chunk must not belong to another hub.
    pub fn owner(&self, chunk: ChunkId) -> usize {
        self.owner_near(chunk, &mut 0)
    }

    /// Returns the core that owns a chunk, as [`owner`](Self::owner) does. The run with index `near` is checked first,
    /// and `near` becomes the index of the chunk's run. Begin with any value, and pass the same variable for the next
    /// chunk: most posts of a link are of chunks in one run.
    #[inline]
    pub(crate) fn owner_near(&self, chunk: ChunkId, near: &mut u32) -> usize {
        let is_in = |run: &&Run| (run.start..run.end).contains(&chunk.0);
        if let Some(run) = self.runs.get(*near as usize).filter(is_in) {
            return run.core as usize;
        }
        *near = self.runs.partition_point(|run| run.end <= chunk.0) as u32;
        self.runs.get(*near as usize).filter(is_in).map_or(ELSEWHERE, |run| run.core) as usize
    }

    /// Returns the cores that own neighbouring chunks, which must not belong to another hub.
    pub(super) fn owners(&self, chunks: Range<u32>) -> impl Iterator<Item = usize> {
        let mut near = 0;
        chunks.map(move |chunk| self.owner_near(ChunkId(chunk), &mut near))
    }

    /// Returns a digest (XXH3) of all owners, with four bytes for each chunk. Two ends compare digests to check that their
    /// placements agree.
    pub fn digest(&self) -> String {
        let (mut digest, mut end) = (Xxh3::new(), 0);
        let mut owned = |chunks: u32, owner: u32| {
            let block: Vec<u8> = owner.to_le_bytes().repeat(DIGESTED.min(chunks as usize));
            let mut left = size_of::<u32>() * chunks as usize;
            while left > 0 {
                let bytes = left.min(block.len());
                digest.update(&block[..bytes]);
                left -= bytes;
            }
        };
        for run in &self.runs {
            owned(run.start - end, ELSEWHERE);
            owned(run.end - run.start, run.core);
            end = run.end;
        }
        owned(self.chunks - end, ELSEWHERE);
        format!("{:016x}", digest.digest())
    }

    /// Returns the number of cores.
    pub fn cores(&self) -> usize {
        self.cores
    }

    /// Returns each core's chunks, ascending.
    pub fn chunks_by_core(&self) -> Vec<Vec<ChunkId>> {
        let mut chunks = vec![Vec::new(); self.cores];
        self.runs().for_each(|(run, core)| chunks[core as usize].extend(run.map(ChunkId)));
        chunks
    }

    /// Creates a weights window for the placed layout. Also returns each core's part of the window: the core's chunks,
    /// in the order of [`chunks_by_core`](Self::chunks_by_core). A hub with a share uses only its own part.
    pub fn weights_window(&self, wire: &Wire) -> Result<(Arc<SendWindow>, Vec<Spans>), WindowError> {
        let make = if self.is_whole() { SendWindow::new } else { SendWindow::sparse };
        let window = make(wire.weights_window_bytes())?;
        Ok(window.split(self.weights_spans(wire)).expect("chunks are disjoint in the windows"))
    }

    /// Allocates the hub's own window, as [`weights_window`](Self::weights_window) does. If each worker has its own weights
    /// and gets frames, the hub keeps its weights elsewhere, and nothing touches this window.
    pub fn job_window(&self, wire: &Wire) -> Result<(Arc<SendWindow>, Vec<Spans>), WindowError> {
        if wire.framing().is_none() || !wire.has_own_weights() {
            return self.weights_window(wire);
        }
        let window = SendWindow::sparse(wire.weights_window_bytes())?;
        Ok(window.split(self.weights_spans(wire)).expect("chunks are disjoint in the windows"))
    }

    /// Allocates a window as [`job_window`](Self::job_window) does, for a hub with a share whose workers read all chunks in
    /// its window.
    pub fn shown_window(&self, wire: &Wire) -> Result<(Arc<SendWindow>, Vec<Spans>), WindowError> {
        let window = SendWindow::new(wire.weights_window_bytes())?;
        Ok(window.split(self.weights_spans(wire)).expect("chunks are disjoint in the windows"))
    }

    /// Returns each core's part of a weights window.
    fn weights_spans(&self, wire: &Wire) -> Vec<Vec<Span>> {
        self.chunks_by_core().iter().map(|chunks| wire.weights_spans(chunks)).collect()
    }

    /// Returns the spans of each core's chunks. `place` returns the span of a chunk.
    pub fn spans_by_core(&self, place: impl Fn(ChunkId) -> Span) -> Vec<Vec<Span>> {
        let spans = |ids: Vec<ChunkId>| ids.into_iter().map(&place).collect();
        self.chunks_by_core().into_iter().map(spans).collect()
    }

    /// Returns the links to this hub, which has `ports` ports. The port of each core has one link, for the core's
    /// chunks. At the member, the links are distributed over its ports `joiner` in turn.
    pub fn links(
        &self,
        wire: &Wire,
        ports: usize,
        of_cores: impl Iterator<Item = usize>,
        joiner: &[PortId],
    ) -> Vec<PlannedLink> {
        let mut capacities = vec![0; ports];
        let mut carries = vec![Carries::default(); ports];
        for (port, chunks) in of_cores.zip(self.chunks_by_core()) {
            capacities[port] = wire.posts(chunks.len());
            let (up, down) = (wire.gradient_spans(&chunks), wire.weights_spans(&chunks));
            carries[port] = Carries { up: up.into_iter().collect(), down: down.into_iter().collect() };
        }
        let mut links = PlannedLink::dealt(&capacities, joiner);
        links.iter_mut().for_each(|link| link.carries = std::mem::take(&mut carries[link.ports.hub.index()]));
        links
    }

    /// Returns the number of chunks of each core. The link to the core must have room for this number.
    pub fn capacities(&self) -> Vec<u32> {
        let mut counts = vec![0; self.cores];
        self.runs.iter().for_each(|run| counts[run.core as usize] += run.end - run.start);
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::Codec;
    use crate::job::{JobTerms, Members};
    use crate::kernels::Optimizer;
    use crate::layout::{Key, default_chunk_bytes};
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
            let mut cores: Vec<JobCores> = [2, 4, 8, 10, 16, 20, 40].map(JobCores::from).into();
            // Two nodes in two orders, eight nodes, and nodes with different numbers of cores.
            cores.extend(
                [4, 8, 20, 40]
                    .map(|cores| (0..cores).map(|core| core * 2 / cores).collect::<Vec<_>>().into()),
            );
            cores.push((0..40).map(|core| core % 2).collect::<Vec<_>>().into());
            cores.push((0..40).map(|core| core / 5).collect::<Vec<_>>().into());
            cores.push((0..14).map(|core| u32::from(core < 3)).collect::<Vec<_>>().into());
            for cores in cores {
                let loads = loads(&layout, &Placement::new(&layout, cores.clone()));
                let mean = loads.iter().sum::<u64>() as f64 / loads.len() as f64;
                let ratio = *loads.iter().max().unwrap() as f64 / mean;
                assert!(ratio < 1.02, "{name} on {cores:?}: max/mean {ratio}");
            }
        }
    }

    #[test]
    fn nics_register_few_ranges_and_each_byte_once() {
        let over = |name: &str, lanes: usize| {
            let layout = Arc::new(Layout::new(model(name).unwrap().keys, 32 * 1024).unwrap());
            let placement = Placement::new(&layout, lanes);
            let links = placement.links(&Wire::plain(Arc::clone(&layout)), lanes, 0..lanes, &[PortId(0)]);
            let pinned: u64 = links.iter().map(|link| link.carries.up.pinned_bytes()).sum();
            let more = pinned as f64 / layout.window_bytes() as f64 - 1.0;
            assert!((0.0..0.04).contains(&more), "{name} over {lanes} NICs: {more} more");
            println!("{name} over {lanes} NICs: {:.2}% more", 100.0 * more);
            links.iter().map(|link| link.carries.up.iter().len()).sum::<usize>()
        };
        let ranges = ["resnet50", "vgg19"].map(|name| [1, 2, 10].map(|lanes| over(name, lanes)));
        assert_eq!(ranges, [[1, 161, 768], [1, 1081, 1094]]);
    }

    #[test]
    fn small_keys_share_runs_and_groups_are_whole() {
        let keys = (0..1000).map(|key| Key::f32(format!("k{key}"), [256])).collect();
        let layout = Layout::new(keys, 32 * 1024).unwrap();
        assert_eq!(layout.groups().len(), 1000_usize.div_ceil(32));
        let placement = Placement::new(&layout, 2);
        for group in layout.groups() {
            let owner = |id: u32| placement.owner(ChunkId(id));
            assert!(group.clone().all(|id| owner(id) == owner(group.start)));
        }
    }

    #[test]
    fn neighbours_share_an_owner() {
        let layout = Layout::new(vec![Key::f32("a", [16 << 20])], 32 * 1024).unwrap();
        let placement = Placement::new(&layout, 2);
        let owners: Vec<usize> = placement.owners(0..layout.chunks().len() as u32).collect();
        let changes = owners.windows(2).filter(|pair| pair[0] != pair[1]).count();
        assert_eq!(changes, layout.chunks().len() / 16 - 1);
        let runs: Vec<(Range<u32>, u32)> = placement.runs().collect();
        assert_eq!((runs.len(), &runs[0]), (changes + 1, &(0..16, owners[0] as u32)));
    }

    /// Returns the keys of a decoder of 7 billion parameters.
    fn of_7b() -> Vec<Key> {
        let (square, wide, norm) = (vec![4096, 4096], vec![4096, 11_008], vec![4096]);
        let layer = [&square, &square, &square, &square, &wide, &wide, &wide, &norm, &norm];
        let shapes = (0..32).flat_map(|_| layer).cloned().chain([vec![2 * 32_000, 4096]]);
        (0..).zip(shapes).map(|(key, shape)| Key::f32(format!("k{key}"), shape)).collect()
    }

    #[test]
    fn the_placements_of_many_hubs_are_small() {
        let default = default_chunk_bytes(&of_7b());
        for (chunk_bytes, hubs, most) in [
            (default, 64, 2 << 20),
            (default, 256, 2 << 20),
            (32 << 10, 64, 8 << 20),
            (32 << 10, 256, 8 << 20),
        ] {
            let layout = Layout::new(of_7b(), chunk_bytes).unwrap();
            let cores = vec![JobCores::from(16); hubs];
            let share = Share { hubs: hubs as u32, ..Share::WHOLE };
            let began = std::time::Instant::now();
            let placed = Placement::of_shares(&layout, Schedule::P3, share, &cores);
            let all = Placement::over_hubs(&placed);
            placed.iter().for_each(|placement| drop(placement.digest()));
            let took = began.elapsed();
            let runs = placed.iter().chain([&all]).map(|placement| placement.runs.capacity()).sum::<usize>();
            let (bytes, chunks) = (runs * size_of::<Run>(), layout.chunks().len());
            println!("{hubs} hubs, {chunks} chunks: {bytes} bytes, {took:?}");
            assert!(bytes < most, "{hubs} hubs, {chunks} chunks: {bytes} bytes");
        }
    }

    #[test]
    fn a_digest_is_that_of_each_chunks_owner() {
        let layout = Layout::new(of_7b(), 1 << 20).unwrap();
        for hub in 0..3 {
            let share = Share { hub, hubs: 3, ..Share::WHOLE };
            let placement = Placement::of_share(&layout, Schedule::P3, share, 5);
            let owner = |id| placement.owner(ChunkId(id)) as u32;
            let owners: Vec<u8> =
                (0..layout.chunks().len() as u32).flat_map(|id| owner(id).to_le_bytes()).collect();
            assert_eq!(placement.digest(), format!("{:016x}", xxhash_rust::xxh3::xxh3_64(&owners)));
        }
    }

    proptest! {
        #[test]
        fn a_link_carries_all_that_is_posted_on_it(
            sizes in proptest::collection::vec(1u64..9000, 1..60),
            chunk_lines in 1usize..600,
            nodes in proptest::collection::vec(0u32..3, 1..8),
            hub in 0u32..3,
            hubs_meet in any::<bool>(),
            coded in any::<bool>(),
        ) {
            let keys = sizes.iter().enumerate().map(|(i, &n)| Key::f32(format!("k{i}"), [n])).collect();
            let mut terms = JobTerms::new(2, keys, Optimizer::Average);
            terms.chunk_bytes = chunk_lines * 64;
            terms.level.members = if hubs_meet { Members::Hubs } else { Members::Workers };
            terms.level.compression = coded.then(|| Codec::F16.into());
            let wire = Wire::of_terms(&terms).unwrap();
            let share = Share { hub, hubs: 3, split_above: 4096 };
            let placement = Placement::of_share(wire.layout(), terms.level.schedule, share, nodes.clone());
            let cores = nodes.len();
            // The ports are in another order than the cores, and one port has no core.
            let links = placement.links(&wire, cores + 1, (1..=cores).rev(), &[PortId(0)]);
            prop_assert_eq!(links.len(), cores);
            let link_of = |core: usize| links.iter().find(|link| link.ports.hub.index() == cores - core).unwrap();
            let groups = (0..wire.layout().groups().len()).map(|number| wire.layout().group_id(number));
            let chunks = (0..wire.layout().chunks().len() as u32).map(ChunkId);
            for id in chunks.chain(groups) {
                let chunks = wire.layout().group(id).unwrap_or(id.0..id.0 + 1);
                let owner = placement.owner(ChunkId(chunks.start));
                // A group is posted as a whole if one core owns all its chunks.
                let is_posted = chunks.len() == 1
                    || wire.group(id).is_some()
                        && placement.owners(chunks.clone()).all(|each| each == owner);
                if owner == ELSEWHERE as usize || !is_posted {
                    continue;
                }
                let carries = &link_of(owner).carries;
                prop_assert!(carries.up.holding(wire.gradient_span(id)).is_some(), "{id:?}");
                prop_assert!(carries.down.holding(wire.weights_span(id)).is_some(), "{id:?}");
            }
        }

        #[test]
        fn every_chunk_has_one_owner(
            sizes in proptest::collection::vec(1u64..6_000_000, 1..30),
            chunk_lines in 200usize..600,
            nodes in proptest::collection::vec(0u32..3, 1..20),
        ) {
            let keys = sizes.iter().enumerate().map(|(i, &n)| Key::f32(format!("k{i}"), [n])).collect();
            let layout = Layout::new(keys, chunk_lines * 64).unwrap();
            let placement = Placement::new(&layout, nodes);
            let mut seen: Vec<u32> = placement.chunks_by_core().into_iter().flatten().map(|c| c.0).collect();
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..layout.chunks().len() as u32).collect::<Vec<_>>());
            prop_assert_eq!(placement.capacities().iter().sum::<u32>() as usize, layout.chunks().len());
        }
    }
}
