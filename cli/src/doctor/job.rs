//! The doctor's job: its model, and the memory that a hub registers for it.

use fabric::{Ranges, Span};
use pbox_core::{Key, Layout, LayoutError, Placement, default_chunk_bytes};

/// The job for which memory, cpus and descriptors must be enough.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Job {
    pub name: String,
    pub workers: u32,
    pub keys: Vec<Key>,
    layout: Layout,
}

impl Job {
    pub fn new(name: String, keys: Vec<Key>, workers: u32) -> Result<Self, LayoutError> {
        let layout = Layout::new(keys.clone(), default_chunk_bytes(&keys))?;
        Ok(Job { name, workers, layout, keys })
    }

    /// Returns the bytes that the hub registers of one window of a worker (its gradients or its weights), as
    /// the kernel counts them. Each NIC registers the chunks of its lanes, the cores that it serves (decision
    /// 49). `nodes` and `nics` have the NUMA node and the NIC of each lane.
    pub fn window_bytes<N: PartialEq>(&self, nodes: &[u32], nics: &[N]) -> u64 {
        self.sum(nodes, nics, Ranges::pinned_bytes)
    }

    /// Returns the number of bytes of one window, and how many of these bytes are in huge pages if each
    /// lane's memory is on the lane's node. A lane is a core with its NIC, and `nodes` has the node of each
    /// lane.
    pub fn huge_bytes(&self, nodes: &[u32]) -> (u64, u64) {
        let window = self.layout.window_bytes();
        (window as u64, self.sum(nodes, nodes, |ranges| ranges.huge_bytes(window)))
    }

    /// Returns the number of chunks of the lane (a core with its NIC) with the most chunks. The links of the
    /// lane must have room for them.
    pub fn deepest_lane(&self, nodes: &[u32]) -> u32 {
        self.spans_by_lane(nodes).iter().map(|spans| spans.len() as u32).max().unwrap_or(0)
    }

    /// Returns the spans of the window that each lane (a core with its NIC) carries. `nodes` has the node of
    /// each lane.
    fn spans_by_lane(&self, nodes: &[u32]) -> Vec<Vec<Span>> {
        if nodes.is_empty() {
            return Vec::new();
        }
        Placement::new(&self.layout, nodes.to_vec()).spans_by_core(|chunk| self.layout.chunk(chunk).span)
    }

    /// Returns the sum of `bytes` over the lanes (cores) of each NIC, or of each node. `of_lanes` has the NIC
    /// or node of each lane.
    fn sum<N: PartialEq>(&self, nodes: &[u32], of_lanes: &[N], bytes: impl Fn(&Ranges) -> u64) -> u64 {
        let lanes = self.spans_by_lane(nodes);
        let each = of_lanes.iter().enumerate().filter(|(lane, one)| !of_lanes[..*lane].contains(one));
        let ranges = |one: &N| -> Ranges {
            let all = of_lanes.iter().zip(&lanes).filter(|(other, _)| *other == one);
            all.flat_map(|(_, spans)| spans.iter().copied()).collect()
        };
        each.map(|(_, one)| bytes(&ranges(one))).sum()
    }

    /// Returns the bytes that the hub registers: gradients and weights of each worker, each worker in its own
    /// protection domain (decision 12).
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
        // Chunks begin on a page, and the chunk of b takes half of a page.
        let job = Job::new("two".into(), vec![Key::f32("a", [1 << 20]), Key::f32("b", [512])], 3).unwrap();
        let (page, whole) = (rustix::param::page_size() as u64, (4 << 20) + 2048_u64);
        for nics in [vec!["a"], vec!["a", "a"], vec!["a", "b"], vec!["a", "b", "a", "b"]] {
            let pinned = job.window_bytes(&vec![0; nics.len()], &nics);
            assert_eq!(pinned, whole.next_multiple_of(page), "{nics:?}");
        }
        assert_eq!(job.registered_bytes(1000), 3 * 2 * 1000);
        assert_eq!(job.window_bytes::<&str>(&[], &[]), 0);
        assert_eq!([1, 2, 0].map(|lanes| job.deepest_lane(&vec![0; lanes])), [129, 65, 0]);
    }

    #[test]
    fn huge_pages_hold_what_lanes_of_one_node_own_but_for_the_end() {
        let job = Job::new("large".into(), vec![Key::f32("a", [80 << 20])], 1).unwrap();
        let whole = 320 << 20;
        assert_eq!(job.huge_bytes(&[0; 8]), (whole, whole));
        for nodes in [[0, 0, 0, 0, 1, 1, 1, 1], [0, 1, 0, 1, 0, 1, 0, 1], [0, 0, 0, 0, 0, 0, 0, 9]] {
            let (_, huge) = job.huge_bytes(&nodes);
            assert!((whole - (8 << 20)..whole).contains(&huge), "{nodes:?}: {huge}");
        }
        assert_eq!(job.huge_bytes(&[]), (whole, 0));
    }

    #[test]
    fn what_huge_pages_hold_of_published_models_with_two_nodes() {
        let percent = |keys: Vec<Key>, lanes: u32| {
            let job = Job::new("job".into(), keys, 1).unwrap();
            let nodes: Vec<u32> = (0..lanes).map(|lane| lane * 2 / lanes).collect();
            let (bytes, huge) = job.huge_bytes(&nodes);
            100 * huge / bytes
        };
        let published = |name| pbox_core::models::model(name).unwrap().keys;
        let large = vec![Key::f32("bias", [17]), Key::f32("embedding", [1 << 30])];
        let of = |keys: Vec<Key>| [4, 8, 16, 20, 40].map(|lanes| percent(keys.clone(), lanes));
        let percents = [published("resnet50"), published("vgg19"), large].map(of);
        assert_eq!(percents, [[90; 5], [98; 5], [99; 5]]);
    }
}
