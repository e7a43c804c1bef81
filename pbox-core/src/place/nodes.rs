//! NUMA nodes: the node whose cores own each part of the window. Pure functions.
//!
//! ```text
//!   window   [ 2 MiB ][ 2 MiB ][ 2 MiB ][ 2 MiB ] ... [run][run][run][run]
//!   node         0        1        0        1           0    1    1    0
//! ```
//!
//! The memory of a chunk should be on the node of its owner, and a huge page is on one node. If a hub has cores on several
//! nodes, its chunks are therefore distributed over nodes by huge pages of the window. In the order of addresses, each page
//! goes to the node that would finish it first: the cores of this node have the fewest bytes for their speed so far. The last
//! pages are distributed by runs, so that all cores finish together (`docs/design/memory-and-numa.md`).

use std::ops::Range;

use super::cores::{JobCore, JobCores};
use super::runs::{RUN_BYTES, bytes, units, weights};
use crate::layout::{ChunkId, Layout};

/// The size of a huge page, in bytes.
const PAGE_BYTES: u64 = 2 << 20;

/// The least size of a hub's chunks at which a node gets several huge pages at a time. One call of the kernel collapses
/// neighbouring pages of one node, and each call interrupts all cpus. So large windows need few calls.
const LARGE_BYTES: u64 = 4 << 30;
const LARGE_BLOCK_BYTES: u64 = 32 << 20;

/// The number of last blocks per node that are cut smaller before they are distributed: large blocks into pages, and pages
/// into runs.
const LAST_BLOCKS: u64 = 2;

/// The least number of pages for each node. With fewer pages, chunks are distributed to cores without regard to nodes. By
/// nodes, few pages would be huge, and each layer would be spread over fewer cores.
const LEAST_PAGES: u64 = 8;

/// The cores of one node, and the pieces of the layout that they own.
#[derive(Default)]
pub(super) struct OfNode {
    pub cores: Vec<u32>,
    /// The speed of each of the cores.
    pub speeds: Vec<u64>,
    pub pieces: Vec<Range<u32>>,
}

impl OfNode {
    fn add(&mut self, core: u32, speed: u8) {
        self.cores.push(core);
        self.speeds.push(u64::from(speed));
    }

    /// Returns the sum of the cores' speeds.
    fn speed(&self) -> u64 {
        self.speeds.iter().sum()
    }
}

impl JobCores {
    /// Distributes these pieces of a layout over the nodes.
    pub(super) fn deal(&self, layout: &Layout, pieces: Vec<Range<u32>>) -> Vec<OfNode> {
        let mut nodes = self.by_node();
        let all = weights(layout, &pieces).iter().sum::<u64>();
        let count = nodes.len() as u64;
        if count == 1 || all < LEAST_PAGES * count * PAGE_BYTES {
            let mut all = OfNode { pieces, ..OfNode::default() };
            self.iter().zip(0..).for_each(|(JobCore { speed, .. }, core)| all.add(core, speed));
            return vec![all];
        }
        let mut loads = vec![0; nodes.len()];
        let is_before = |at: u64, block: u64| at + LAST_BLOCKS * count * block < all;
        let length = |at| {
            if all >= LARGE_BYTES && is_before(at, LARGE_BLOCK_BYTES) {
                LARGE_BLOCK_BYTES
            } else if is_before(at, PAGE_BYTES) {
                PAGE_BYTES
            } else {
                RUN_BYTES
            }
        };
        for part in parts(layout, pieces, length) {
            let bytes: u64 = weights(layout, &part).iter().sum();
            // The node that would finish first, by (load + bytes) / speed, compared without fractions.
            let time = |node: usize, other: usize| (loads[node] + bytes) * nodes[other].speed();
            let behind = (0..nodes.len()).min_by(|&a, &b| time(a, b).cmp(&time(b, a)));
            let behind = behind.expect("there are cores");
            loads[behind] += bytes;
            nodes[behind].pieces.extend(part);
        }
        nodes
    }

    /// Returns the cores of each node. The nodes are in the order of their first cores.
    fn by_node(&self) -> Vec<OfNode> {
        let mut nodes: Vec<(u32, OfNode)> = Vec::new();
        for (JobCore { node, speed }, core) in self.iter().zip(0..) {
            let at = nodes.iter().position(|(known, _)| *known == node).unwrap_or_else(|| {
                nodes.push((node, OfNode::default()));
                nodes.len() - 1
            });
            nodes[at].1.add(core, speed);
        }
        nodes.into_iter().map(|(_, of_node)| of_node).collect()
    }
}

/// Cuts pieces of a layout at the ends of blocks of the window. `length` gets the number of bytes before a block, and
/// returns the block's length.
fn parts(layout: &Layout, pieces: Vec<Range<u32>>, length: impl Fn(u64) -> u64) -> Vec<Vec<Range<u32>>> {
    let mut parts: Vec<Vec<Range<u32>>> = Vec::new();
    let (mut before, mut last) = (0, None);
    for unit in units(layout, pieces) {
        let length = length(before);
        let place = Some((length, layout.chunk(ChunkId(unit.start)).span.offset as u64 / length));
        before += bytes(layout, &unit);
        if place != std::mem::replace(&mut last, place) {
            parts.push(Vec::new());
        }
        parts.last_mut().expect("the first unit begins a part").push(unit);
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Key;
    use crate::place::Placement;

    fn layout(elements: u64) -> Layout {
        Layout::new(vec![Key::f32("a", [elements])], 32 * 1024).unwrap()
    }

    /// Returns the first core of each node that owns a part of `bytes`, in the order of addresses.
    fn nodes(layout: &Layout, nodes: &[u32], bytes: usize) -> Vec<u32> {
        let placement = Placement::new(layout, nodes.to_vec());
        let chunks = layout.chunks().iter().zip(0..).filter(|(chunk, _)| chunk.span.offset % bytes == 0);
        chunks.map(|(_, id)| nodes[placement.owner(ChunkId(id))]).collect()
    }

    #[test]
    fn nodes_get_huge_pages_in_turn_and_runs_at_the_end() {
        let layout = layout(32 << 18);
        let by_page = nodes(&layout, &[7, 7, 3, 3], 2 << 20);
        assert_eq!(by_page[..12], [7, 3].repeat(6));
        let placement = Placement::new(&layout, vec![7, 7, 3, 3]);
        for (chunk, id) in layout.chunks().iter().zip(0..).filter(|(chunk, _)| chunk.span.offset < 24 << 20) {
            let node = [7, 7, 3, 3][placement.owner(ChunkId(id))];
            assert_eq!(node, by_page[chunk.span.offset >> 21], "chunk {id}");
        }
    }

    #[test]
    fn a_large_share_has_large_blocks() {
        let [few, many] = [4 << 28, (4 << 28) - 1].map(layout).map(|layout| {
            let of_pages = nodes(&layout, &[0, 1], 2 << 20);
            let most = of_pages.iter().filter(|&&node| node == 0).count() as f64 / of_pages.len() as f64;
            assert!((most - 0.5).abs() < 0.02, "{most}");
            of_pages.windows(2).filter(|pair| pair[0] != pair[1]).count()
        });
        assert!((100..300).contains(&few) && many > 2000, "{few} and {many} calls");
    }

    #[test]
    fn a_node_gets_as_much_as_it_has_cores() {
        let by_page = nodes(&layout(96 << 18), &[0, 1, 1], 2 << 20);
        assert_eq!(by_page[..6], [1, 0, 1, 1, 0, 1]);
    }

    #[test]
    fn little_is_dealt_to_cores_alone() {
        let small = layout(8 << 18);
        assert_eq!(Placement::new(&small, vec![0, 0, 1, 1]), Placement::new(&small, 4));
    }
}
