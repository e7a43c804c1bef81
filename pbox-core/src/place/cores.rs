//! The cores that a job has at a hub: the NUMA node and the speed of each. Both decide which chunks a core owns.

use serde::{Deserialize, Serialize};

/// The limit on the cores of a hub.
const MAX_CORES: usize = 4096;

/// The speed of the fastest core of a hub. A core with half of this speed gets half as many bytes.
const FULL_SPEED: u8 = 8;

/// The part of the fastest core's speed above which a core counts as equally fast. Smaller differences are often chance.
const ABOUT_EQUAL: f64 = 0.7;

/// The cores that a job has at a hub. If all are on one node and equally fast, a message has only their number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "InMessages", into = "InMessages")]
pub struct JobCores(Vec<JobCore>);

/// A core of a hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct JobCore {
    pub node: u32,
    /// The speed, from 1 to [`FULL_SPEED`].
    pub speed: u8,
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum InMessages {
    Cores(usize),
    Nodes(Vec<u32>),
    NodesAndSpeeds(Vec<(u32, u8)>),
}

impl TryFrom<InMessages> for JobCores {
    type Error = String;

    fn try_from(said: InMessages) -> Result<Self, String> {
        let cores = match &said {
            InMessages::Cores(cores) => *cores,
            InMessages::Nodes(nodes) => nodes.len(),
            InMessages::NodesAndSpeeds(cores) => cores.len(),
        };
        if !(1..=MAX_CORES).contains(&cores) {
            return Err(format!("{cores} cores of a hub: expected 1 to {MAX_CORES}"));
        }
        Ok(match said {
            InMessages::Cores(cores) => cores.into(),
            InMessages::Nodes(nodes) => nodes.into(),
            InMessages::NodesAndSpeeds(cores) => {
                if let Some((_, speed)) = cores.iter().find(|(_, speed)| !(1..=FULL_SPEED).contains(speed)) {
                    return Err(format!("speed {speed} of a core: expected 1 to {FULL_SPEED}"));
                }
                JobCores(cores.into_iter().map(|(node, speed)| JobCore { node, speed }).collect())
            }
        })
    }
}

impl From<JobCores> for InMessages {
    fn from(cores: JobCores) -> Self {
        match (cores.are_equally_fast(), cores.is_one_node()) {
            (true, true) => InMessages::Cores(cores.cores()),
            (true, false) => InMessages::Nodes(cores.0.iter().map(|core| core.node).collect()),
            (false, _) => {
                InMessages::NodesAndSpeeds(cores.0.iter().map(|core| (core.node, core.speed)).collect())
            }
        }
    }
}

impl From<usize> for JobCores {
    /// Creates `cores` equally fast cores on one node.
    fn from(cores: usize) -> Self {
        vec![0; cores].into()
    }
}

impl From<Vec<u32>> for JobCores {
    /// Creates equally fast cores on these nodes. The numbers of the nodes are arbitrary.
    fn from(nodes: Vec<u32>) -> Self {
        JobCores(nodes.into_iter().map(|node| JobCore { node, speed: FULL_SPEED }).collect())
    }
}

impl JobCores {
    /// Returns these cores with other speeds. `speeds` has the speed of each core, in any unit. If no core is much slower
    /// than the fastest, all cores count as equally fast.
    pub fn with_speeds(mut self, speeds: &[f64]) -> Self {
        let fastest = speeds.iter().copied().fold(0.0, f64::max);
        let is_slow = |speed: &f64| *speed < ABOUT_EQUAL * fastest;
        if speeds.iter().any(is_slow) {
            for (core, speed) in self.0.iter_mut().zip(speeds) {
                let part = speed / fastest * f64::from(FULL_SPEED);
                core.speed = (part.round() as u8).clamp(1, FULL_SPEED);
            }
        }
        self
    }

    /// Returns the number of cores.
    pub fn cores(&self) -> usize {
        self.0.len()
    }

    /// Whether all cores are on one node.
    pub fn is_one_node(&self) -> bool {
        self.0.windows(2).all(|pair| pair[0].node == pair[1].node)
    }

    /// Whether all cores are on one node and equally fast.
    pub fn are_alike(&self) -> bool {
        self.is_one_node() && self.are_equally_fast()
    }

    /// Whether all cores have the same speed.
    pub fn are_equally_fast(&self) -> bool {
        self.0.windows(2).all(|pair| pair[0].speed == pair[1].speed)
    }

    /// Returns the speed of each core, in eighths of the fastest core's speed.
    pub fn speeds(&self) -> impl Iterator<Item = u8> {
        self.0.iter().map(|core| core.speed)
    }

    /// Returns the cores.
    pub(super) fn iter(&self) -> impl Iterator<Item = JobCore> {
        self.0.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Layout;
    use crate::models::model;
    use crate::place::Placement;

    #[test]
    fn messages_have_nodes_and_speeds_only_if_they_differ() {
        let slow = |nodes: Vec<u32>| JobCores::from(nodes).with_speeds(&[1.0, 0.5]);
        for (cores, text) in [
            (JobCores::from(3), "3"),
            (vec![5, 5].into(), "2"),
            (vec![0, 1].into(), "[0,1]"),
            (slow(vec![0, 0]), "[[0,8],[0,4]]"),
            (slow(vec![0, 1]), "[[0,8],[1,4]]"),
        ] {
            assert_eq!(serde_json::to_string(&cores).unwrap(), text);
            let read: JobCores = serde_json::from_str(text).unwrap();
            assert_eq!(read.speeds().collect::<Vec<_>>(), cores.speeds().collect::<Vec<_>>());
            assert_eq!((read.cores(), read.is_one_node()), (cores.cores(), cores.is_one_node()));
        }
        for bad in ["0", "[]", "4294967296"] {
            let error = serde_json::from_str::<JobCores>(bad).unwrap_err().to_string();
            assert!(error.contains("cores of a hub: expected 1 to 4096"), "{bad}: {error}");
        }
        for bad in ["[[0,0]]", "[[0,8],[0,9]]"] {
            let error = serde_json::from_str::<JobCores>(bad).unwrap_err().to_string();
            assert!(error.contains("of a core: expected 1 to 8"), "{bad}: {error}");
        }
    }

    #[test]
    fn small_differences_of_speed_do_not_count() {
        let speeds =
            |speeds: &[f64]| JobCores::from(speeds.len()).with_speeds(speeds).speeds().collect::<Vec<_>>();
        assert_eq!(speeds(&[1.0, 0.71, 0.9]), [8, 8, 8]);
        assert_eq!(speeds(&[1.0, 0.69, 0.9]), [8, 6, 7]);
        assert_eq!(speeds(&[0.4, 0.1, 0.001]), [8, 2, 1]);
        assert_eq!(speeds(&[0.0, 0.0]), [8, 8]);
    }

    /// One core of four has half the speed, on one node and on two nodes.
    #[test]
    fn a_slow_core_costs_its_speed_and_not_the_round() {
        let layout = Layout::new(model("resnet50").unwrap().keys, 32 * 1024).unwrap();
        for nodes in [vec![0; 4], vec![0, 0, 1, 1]] {
            let cores = JobCores::from(nodes).with_speeds(&[1.0, 1.0, 1.0, 0.5]);
            let placement = Placement::new(&layout, cores);
            let bytes =
                |chunks: Vec<_>| chunks.into_iter().map(|id| layout.chunk(id).span.bytes as f64).sum::<f64>();
            let of_cores: Vec<f64> = placement.chunks_by_core().into_iter().map(bytes).collect();
            let all: f64 = of_cores.iter().sum();
            for (bytes, part) in of_cores.iter().zip([2.0, 2.0, 2.0, 1.0]) {
                let even = all * part / 7.0;
                assert!((bytes / even - 1.0).abs() < 0.02, "{of_cores:?}");
            }
        }
    }
}
