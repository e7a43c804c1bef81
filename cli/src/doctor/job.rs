//! The doctor's job: its model, and the memory that a hub registers for it. Pure.

use fabric::Ranges;
use pbox_core::{DEFAULT_CHUNK_BYTES, Key, Layout, LayoutError, Placement};

/// The job that memory, cpus and descriptors must suffice for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Job {
    pub name: String,
    pub workers: u32,
    layout: Layout,
}

impl Job {
    pub fn new(name: String, keys: Vec<Key>, workers: u32) -> Result<Self, LayoutError> {
        Ok(Job { name, workers, layout: Layout::new(keys, DEFAULT_CHUNK_BYTES)? })
    }

    /// The bytes that the hub registers of one window of a worker, as the kernel counts them: each NIC the chunks of its lanes
    /// (decision 49). `nics` has the NIC of each lane.
    pub fn window_bytes<N: PartialEq>(&self, nics: &[N]) -> u64 {
        if nics.is_empty() {
            return 0;
        }
        let placement = Placement::new(&self.layout, nics.len());
        let lanes = placement.spans_by_core(|chunk| self.layout.chunk(chunk).span);
        let of_nic = |(lane, nic): (usize, &N)| {
            let all = nics.iter().zip(&lanes).filter(|(other, _)| *other == nic);
            let ranges: Ranges = all.flat_map(|(_, spans)| spans.iter().copied()).collect();
            // Once for each NIC.
            if nics[..lane].contains(nic) { 0 } else { ranges.pinned_bytes() }
        };
        nics.iter().enumerate().map(of_nic).sum()
    }

    /// The bytes of one window, and how many of them huge pages hold where each lane's memory is on its node. `nodes` has the node
    /// of each lane.
    pub fn huge_bytes<N: PartialEq>(&self, nodes: &[N]) -> (u64, u64) {
        let lanes = Placement::new(&self.layout, nodes.len().max(1))
            .spans_by_core(|chunk| self.layout.chunk(chunk).span);
        let of_node = |(lane, node): (usize, &N)| {
            let all = nodes.iter().zip(&lanes).filter(|(other, _)| *other == node);
            let ranges: Ranges = all.flat_map(|(_, spans)| spans.iter().copied()).collect();
            // Once for each node.
            if nodes[..lane].contains(node) { 0 } else { ranges.huge_bytes() }
        };
        (self.layout.window_bytes() as u64, nodes.iter().enumerate().map(of_node).sum())
    }

    /// The most chunks of one of so many lanes: what its links must have room for.
    pub fn deepest_lane(&self, lanes: usize) -> u32 {
        let placement = Placement::new(&self.layout, lanes.max(1));
        let lanes = placement.spans_by_core(|chunk| self.layout.chunk(chunk).span);
        lanes.iter().map(|spans| spans.len() as u32).max().unwrap_or(0)
    }

    /// The bytes that the hub registers: gradients and weights of each worker, in a protection domain of their own (decision
    /// 12).
    pub fn registered_bytes(&self, window_bytes: u64) -> u64 {
        const WINDOWS: u64 = 2;
        u64::from(self.workers).saturating_mul(WINDOWS).saturating_mul(window_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_nics_together_register_each_window_once() {
        // Chunks begin on a page, and b has half of one.
        let job = Job::new("two".into(), vec![Key::f32("a", [1 << 20]), Key::f32("b", [512])], 3).unwrap();
        let (page, whole) = (rustix::param::page_size() as u64, (4 << 20) + 2048_u64);
        for nics in [vec!["a"], vec!["a", "a"], vec!["a", "b"], vec!["a", "b", "a", "b"]] {
            let pinned = job.window_bytes(&nics);
            assert_eq!(pinned, whole.next_multiple_of(page), "{nics:?}");
        }
        assert_eq!(job.registered_bytes(1000), 3 * 2 * 1000);
        assert_eq!(job.window_bytes::<&str>(&[]), 0);
        assert_eq!([1, 2, 0].map(|lanes| job.deepest_lane(lanes)), [129, 65, 129]);
    }

    #[test]
    fn huge_pages_hold_what_neighbouring_lanes_of_one_node_own() {
        // Runs of 512 KiB, in turn: a range of a node is as many as it has lanes.
        let job = Job::new("large".into(), vec![Key::f32("a", [80 << 20])], 1).unwrap();
        let whole = 320 << 20;
        assert_eq!(job.huge_bytes(&[0; 8]), (whole, whole));
        assert_eq!(job.huge_bytes(&[0, 0, 0, 0, 1, 1, 1, 1]), (whole, whole));
        assert_eq!(job.huge_bytes(&[0, 1, 0, 1, 0, 1, 0, 1]), (whole, 0));
        assert_eq!(job.huge_bytes(&[0, 0, 0, 0, 0, 1, 1, 1, 1, 1]), (whole, whole * 2 / 5));
        assert_eq!(job.huge_bytes::<u32>(&[]), (whole, 0));
    }

    #[test]
    fn what_huge_pages_hold_of_published_models_with_two_nodes() {
        let percent = |keys: Vec<Key>, lanes: usize| {
            let job = Job::new("job".into(), keys, 1).unwrap();
            let nodes: Vec<usize> = (0..lanes).map(|lane| lane * 2 / lanes).collect();
            let (bytes, huge) = job.huge_bytes(&nodes);
            100 * huge / bytes
        };
        let published = |name| pbox_core::models::model(name).unwrap().keys;
        let large = vec![Key::f32("bias", [17]), Key::f32("embedding", [1 << 30])];
        let of = |keys: Vec<Key>| [4, 8, 16, 20, 40].map(|lanes| percent(keys.clone(), lanes));
        let percents = [published("resnet50"), published("vgg19"), large].map(of);
        assert_eq!(percents, [[0; 5], [0, 0, 49, 49, 45], [0, 0, 49, 59, 79]]);
    }
}
