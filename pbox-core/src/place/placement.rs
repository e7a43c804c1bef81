//! Placement: which of a hub's cores owns each chunk. Pure; the same at both ends of every link. When a job is spread
//! over several hubs, [`share`](crate::share) first decides which hub owns a chunk.
//!
//! A chunk goes to one core (PHub, section 2), by LPT on bytes as in PHub's public code, but in *runs* of
//! neighbours:
//!
//! ```text
//!   key 0: [0 0 0 0 0 0 0 0][1 1 1 1 1 1 1 1][0 0 0 0]   one digit a chunk: its core
//!           run of 512 KiB
//! ```
//!
//! Small keys share runs, and a [group](crate::Layout::group) of them is on one core.
//!
//! A core that owns every other chunk starts each of its `workers + 2` streams through memory again every 32 KiB,
//! and prefetches its neighbour's data. With two cores, four workers and Nesterov this took a fifth of the memory's
//! bandwidth. Runs of 16 chunks give it back (`docs/design/turn-of-a-core.md#placement-in-runs`).

use std::ops::Range;
use std::sync::Arc;

use fabric::{Carries, PlannedLink, PortId, SendWindow, Span, Spans, WindowError};

use super::nodes::{CoreNodes, OfNode};
use super::runs::{cut, weights};
use super::share::{Share, pieces};
use crate::job::Schedule;
use crate::layout::{ChunkId, Layout};
use crate::wire::Wire;

/// The owner of a chunk that belongs to another hub.
const ELSEWHERE: u32 = u32::MAX;

/// The owner of every chunk: a core of the only hub, or of one of several hubs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    owners: Vec<u32>,
    cores: usize,
}

impl Placement {
    /// Places a layout's chunks on the cores of one hub, at least one. `cores` is a number of cores of one NUMA node,
    /// or the node of each core.
    pub fn new(layout: &Layout, cores: impl Into<CoreNodes>) -> Self {
        Self::of_share(layout, Schedule::default(), Share::WHOLE, cores)
    }

    /// Places a hub's share of a layout's chunks on its cores, at least one.
    pub fn of_share(layout: &Layout, schedule: Schedule, share: Share, cores: impl Into<CoreNodes>) -> Self {
        let cores = cores.into();
        let mut owners = vec![ELSEWHERE; layout.chunks().len()];
        for OfNode { cores, pieces } in cores.deal(layout, pieces(layout, schedule, share)) {
            let runs = cut(layout, cores.len(), pieces);
            for (run, core) in runs.iter().zip(topology::lpt(&weights(layout, &runs), cores.len())) {
                owners[run.start as usize..run.end as usize].fill(cores[core as usize]);
            }
        }
        Placement { owners, cores: cores.cores() }
    }

    /// Returns the runs of chunks that one core owns, ascending, each with its core.
    pub fn runs(&self) -> impl Iterator<Item = (Range<u32>, u32)> {
        let mut end = 0;
        let runs = self.owners.chunk_by(|core, next| core == next).map(move |run| {
            let start = end;
            end += run.len() as u32;
            (start..end, run[0])
        });
        runs.filter(|(_, core)| *core != ELSEWHERE)
    }

    /// Combines the placements of several hubs' shares, in the order of the hubs: the first cores are the first
    /// hub's, and so on.
    ///
    /// # Panics
    /// Panics if a chunk is in two shares or in none.
    pub fn over_hubs(shares: &[Placement]) -> Self {
        let mut all = Placement { owners: vec![ELSEWHERE; shares[0].owners.len()], cores: 0 };
        for share in shares {
            for (owner, &core) in
                all.owners.iter_mut().zip(&share.owners).filter(|(_, core)| **core != ELSEWHERE)
            {
                assert_eq!(*owner, ELSEWHERE, "a chunk is one hub's");
                *owner = core + all.cores as u32;
            }
            all.cores += share.cores;
        }
        assert!(!all.owners.contains(&ELSEWHERE), "every chunk is some hub's");
        all
    }

    /// Returns a placement with these owners, by chunk.
    pub(super) fn of_owners(owners: Vec<u32>, cores: usize) -> Self {
        Placement { owners, cores }
    }

    /// Returns the number of the layout's chunks.
    pub(super) fn chunks(&self) -> usize {
        self.owners.len()
    }

    /// Returns the core that owns a chunk. The chunk must not belong to another hub.
    pub fn owner(&self, chunk: ChunkId) -> usize {
        self.owners[chunk.index()] as usize
    }

    /// Returns a digest (XXH3) of all owners, by which two ends check that their placements agree.
    pub fn digest(&self) -> String {
        let owners: Vec<u8> = self.owners.iter().flat_map(|owner| owner.to_le_bytes()).collect();
        format!("{:016x}", xxhash_rust::xxh3::xxh3_64(&owners))
    }

    /// Returns the number of cores.
    pub fn cores(&self) -> usize {
        self.cores
    }

    /// Returns each core's chunks, ascending.
    pub fn chunks_by_core(&self) -> Vec<Vec<ChunkId>> {
        let mut chunks = vec![Vec::new(); self.cores];
        let here = self.owners.iter().zip(0..).filter(|(core, _)| **core != ELSEWHERE);
        here.for_each(|(&core, id)| chunks[core as usize].push(ChunkId(id)));
        chunks
    }

    /// Returns a weights window for the placed layout, and each core's part of it: its chunks, in the order of
    /// [`chunks_by_core`](Self::chunks_by_core). A hub with a share uses only its own part.
    pub fn weights_window(&self, wire: &Wire) -> Result<(Arc<SendWindow>, Vec<Spans>), WindowError> {
        let make = if self.owners.contains(&ELSEWHERE) { SendWindow::sparse } else { SendWindow::new };
        let window = make(wire.weights_window_bytes())?;
        Ok(window.split(self.weights_spans(wire)).expect("chunks are disjoint in the windows"))
    }

    /// Allocates a window like [`weights_window`](Self::weights_window), for the job. When each worker has its own
    /// weights and they are sent in frames, the hub's own weights are not frames: then nothing touches the window.
    pub fn job_window(&self, wire: &Wire) -> Result<(Arc<SendWindow>, Vec<Spans>), WindowError> {
        if wire.framing().is_none() || !wire.has_own_weights() {
            return self.weights_window(wire);
        }
        let window = SendWindow::sparse(wire.weights_window_bytes())?;
        Ok(window.split(self.weights_spans(wire)).expect("chunks are disjoint in the windows"))
    }

    /// Allocates a window like [`job_window`](Self::job_window), for a hub with a share, if its workers read all
    /// chunks in the window.
    pub fn shown_window(&self, wire: &Wire) -> Result<(Arc<SendWindow>, Vec<Spans>), WindowError> {
        let window = SendWindow::new(wire.weights_window_bytes())?;
        Ok(window.split(self.weights_spans(wire)).expect("chunks are disjoint in the windows"))
    }

    /// Returns each core's part of a weights window.
    fn weights_spans(&self, wire: &Wire) -> Vec<Vec<Span>> {
        self.chunks_by_core().iter().map(|chunks| wire.weights_spans(chunks)).collect()
    }

    /// Returns the places of each core's chunks, by the place of each chunk.
    pub fn spans_by_core(&self, place: impl Fn(ChunkId) -> Span) -> Vec<Vec<Span>> {
        let spans = |ids: Vec<ChunkId>| ids.into_iter().map(&place).collect();
        self.chunks_by_core().into_iter().map(spans).collect()
    }

    /// Returns the links to this hub, which has `ports` ports. Each core's port has one link, which carries the core's
    /// chunks. The links end at the ports `joiner` of the other end, one after another.
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

    /// Returns how many chunks each core owns: the link to the core must hold as many.
    pub fn capacities(&self) -> Vec<u32> {
        self.chunks_by_core().iter().map(|chunks| chunks.len() as u32).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::Codec;
    use crate::job::{JobTerms, Members};
    use crate::kernels::Optimizer;
    use crate::layout::Key;
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
            let mut cores: Vec<CoreNodes> = [2, 4, 8, 10, 16, 20, 40].map(CoreNodes::from).into();
            // Two nodes, in two orders; eight; and nodes with more cores than others.
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
            let owner = |id: u32| placement.owners[id as usize];
            assert!(group.clone().all(|id| owner(id) == owner(group.start)));
        }
    }

    #[test]
    fn neighbours_share_an_owner() {
        let layout = Layout::new(vec![Key::f32("a", [16 << 20])], 32 * 1024).unwrap();
        let placement = Placement::new(&layout, 2);
        let changes = placement.owners.windows(2).filter(|pair| pair[0] != pair[1]).count();
        assert_eq!(changes, layout.chunks().len() / 16 - 1);
        let runs: Vec<(Range<u32>, u32)> = placement.runs().collect();
        assert_eq!((runs.len(), &runs[0]), (changes + 1, &(0..16, placement.owners[0])));
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
            // Ports in another order than cores, and one without a core.
            let links = placement.links(&wire, cores + 1, (1..=cores).rev(), &[PortId(0)]);
            prop_assert_eq!(links.len(), cores);
            let link_of = |core: usize| links.iter().find(|link| link.ports.hub.index() == cores - core).unwrap();
            let groups = (0..wire.layout().groups().len()).map(|number| wire.layout().group_id(number));
            let chunks = (0..wire.layout().chunks().len() as u32).map(ChunkId);
            for id in chunks.chain(groups) {
                let chunks = wire.layout().group(id).unwrap_or(id.0..id.0 + 1);
                let owner = placement.owners[chunks.start as usize];
                // A group leaves as one if all of it goes to one core.
                let is_posted = chunks.len() == 1
                    || wire.group(id).is_some()
                        && chunks.clone().all(|chunk| placement.owners[chunk as usize] == owner);
                if owner == ELSEWHERE || !is_posted {
                    continue;
                }
                let carries = &link_of(owner as usize).carries;
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
