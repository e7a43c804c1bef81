//! The placement of chunks at a hub below other hubs. Pure functions: the hub and its workers compute the same placement.
//!
//! ```text
//!   above:  hub A  core 0  core 1  core 2     hub B  core 0  core 1
//!                    |       |       |                 |       |
//!   below:         core 0  core 1  core 0            core 0  core 1      two cores
//! ```
//!
//! A chunk keeps the number of its core above, modulo the number of cores below. So a core below has links to few cores
//! above, and owns all chunks of each of these cores.

use serde::{Deserialize, Serialize};

use super::cores::JobCores;
use super::placement::Placement;
use super::share::{Share, first_chunks};
use crate::job::{MAX_HUBS, Schedule};
use crate::layout::{ChunkId, Layout};

/// The way in which the hubs above a hub place chunks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Above {
    /// The schedule of the level between the hubs.
    pub schedule: Schedule,
    /// [`JobTerms::split_above`](crate::JobTerms::split_above).
    pub split_above: u64,
    /// The cores that the job has at each hub.
    pub cores: Vec<JobCores>,
    /// The hubs above these hubs, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub above: Option<Box<Above>>,
}

impl Above {
    /// Returns the placement of each hub's share.
    ///
    /// # Errors
    /// Returns an error if a level has no hub or too many hubs.
    pub fn placements(&self, layout: &Layout) -> Result<Vec<Placement>, String> {
        let Above { schedule, cores, above, .. } = self;
        let share = self.share()?;
        match above {
            None => Ok(Placement::of_shares(layout, *schedule, share, cores)),
            Some(upper) if share.is_whole() => {
                Ok(vec![Below::new(&upper.placements(layout)?, cores[0].cores()).placement])
            }
            Some(_) => {
                Err(format!("{} hubs at a level that is below other hubs: expected 1 hub", share.hubs))
            }
        }
    }

    /// Returns the first chunk of each top hub that owns chunks, in the order of the top hubs.
    ///
    /// # Errors
    /// Returns an error if a level has no hub or too many hubs.
    pub fn first_chunks(&self, layout: &Layout) -> Result<Vec<ChunkId>, String> {
        match &self.above {
            Some(upper) => upper.first_chunks(layout),
            None => Ok(first_chunks(layout, self.schedule, self.share()?)),
        }
    }

    /// Whether the cores of each hub are equally fast.
    pub fn are_equally_fast(&self) -> bool {
        let upper = self.above.as_ref().is_none_or(|upper| upper.are_equally_fast());
        upper && self.cores.iter().all(JobCores::are_equally_fast)
    }

    /// Returns the share of the first of the hubs above.
    fn share(&self) -> Result<Share, String> {
        let hubs = self.cores.len() as u32;
        if !(1..=MAX_HUBS).contains(&hubs) {
            return Err(format!("{hubs} hubs above: expected 1 to {MAX_HUBS}"));
        }
        Ok(Share { hub: 0, hubs, split_above: self.split_above })
    }
}

/// The placement of chunks at a hub below other hubs, and the links over which sums are sent to the hubs above.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Below {
    /// The placement on this hub's cores.
    pub placement: Placement,
    /// For each core of this hub, the cores of the hubs above to which this core has links, ascending. Cores above have
    /// the numbers of [`Placement::over_hubs`].
    pub cores_above: Vec<Vec<usize>>,
    /// The number of the link that carries each chunk's sums to a hub above, among the links of the chunk's core.
    links: Vec<u32>,
}

impl Below {
    /// Creates the placement of a hub with `cores` cores, at least 1. `above` has the placements of the shares of the hubs
    /// above.
    pub fn new(above: &[Placement], cores: usize) -> Self {
        let all = Placement::over_hubs(above);
        let here = above.iter().flat_map(|hub| (0..hub.cores()).map(|core| core % cores));
        let mut cores_above = vec![Vec::new(); cores];
        // For each core above: the core of this hub that has a link to it, and the number of this link among the
        // links of that core.
        let mut link_to = Vec::with_capacity(all.cores());
        for (core_above, core) in here.enumerate() {
            link_to.push((core as u32, cores_above[core].len() as u32));
            cores_above[core].push(core_above);
        }
        let runs = all.runs().map(|(run, core_above)| (run, link_to[core_above as usize].0));
        let placement = Placement::of_runs(runs.collect(), all.chunks(), cores);
        let links = all.owners(0..all.chunks()).map(|core_above| link_to[core_above].1).collect();
        Below { placement, cores_above, links }
    }

    /// Returns the number of the link that carries a chunk's sums to a hub above, among the links of the chunk's core.
    pub fn link(&self, chunk: ChunkId) -> u32 {
        self.links[chunk.index()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{SPLIT_ABOVE, Schedule};
    use crate::layout::{Key, Layout};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn each_link_leads_to_the_owner_above(
            sizes in proptest::collection::vec(1u64..9_000_000, 1..12),
            nodes in proptest::collection::vec(proptest::collection::vec(0u32..2, 1..6), 1..4),
            cores in 1usize..6,
        ) {
            let keys = sizes.iter().enumerate().map(|(i, &n)| Key::f32(format!("k{i}"), [n])).collect();
            let layout = Layout::new(keys, 32 * 1024).unwrap();
            let cores_above = nodes.into_iter().map(JobCores::from).collect();
            let (schedule, split_above) = (Schedule::Sliced, SPLIT_ABOVE);
            let shares = Above { schedule, split_above, cores: cores_above, above: None }.placements(&layout).unwrap();
            let (below, all) = (Below::new(&shares, cores), Placement::over_hubs(&shares));
            for chunk in (0..layout.chunks().len() as u32).map(ChunkId) {
                let core = below.placement.owner(chunk);
                prop_assert_eq!(below.cores_above[core][below.link(chunk) as usize], all.owner(chunk));
            }
            let mut cores_above: Vec<usize> = below.cores_above.concat();
            cores_above.sort_unstable();
            prop_assert_eq!(cores_above, (0..all.cores()).collect::<Vec<_>>(), "each core above has one link");
        }
    }
}
