//! The speed of a job's last rounds, and the workers for which the hub waited.

use serde::{Deserialize, Serialize};

use crate::job::MAX_WORKERS;
use crate::layout::Round;

/// The length limit of the path of a [`Latest`]. A path names a hub's machine for each level of hubs, from the top down, and
/// then the worker.
pub const MAX_PATH: usize = 16;

/// The last rounds of a job, as this hub saw them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoundsReply {
    /// The round in flight.
    pub round: Round,
    /// The rounds per second.
    pub per_second: f64,
    /// The number of last rounds that all fields below describe. It includes the round in flight.
    pub window: u32,
    /// The ranks of the workers for which other workers wait now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waits_for: Vec<u32>,
    /// The time for which the round in flight has waited, in microseconds.
    #[serde(default)]
    pub waited_us: u64,
    /// The lateness of each rank.
    pub ranks: Vec<RankReply>,
    /// The time for which the hub waited for each rank, in microseconds, by round, the oldest round first. Only in `GET
    /// /v1/events`. The list has only rounds in which the hub waited for a rank.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recent: Vec<(Round, Vec<u32>)>,
}

/// The norms of the mean gradient of all workers of a job, in this hub's share of the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GradientsReply {
    /// The interval of measured rounds.
    pub every: u32,
    /// The number of values that were infinite or NaN, in all measured rounds since the job began.
    pub not_finite: u64,
    /// The number of rounds that were skipped because of their gradient. Only in jobs that wait for the norm of each round.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skipped: Option<u64>,
    /// The last measured round. In jobs whose steps wait for the norm, the last round with a norm.
    pub last: GradientNorm,
    /// The last measured rounds, the oldest first. Only in `GET /v1/events`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recent: Vec<GradientNorm>,
}

/// The gradients of one round.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct GradientNorm {
    /// The round.
    pub round: Round,
    /// The Euclidean norm of the finite values.
    pub norm: f64,
    /// The number of values that are not finite.
    #[serde(default)]
    pub not_finite: u64,
}

/// The lateness of a worker. In a round, it is the time for which a core of the hub waited only for this worker's push,
/// after other workers had pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankReply {
    /// The rank.
    pub rank: u32,
    /// The number of rounds of the window in which the hub waited longest for this worker.
    pub last: u32,
    /// The median lateness of the worker in these `last` rounds, in microseconds.
    pub late_us: u64,
    /// The median lateness of the worker in all rounds of the window, in microseconds.
    pub median_us: u64,
    /// The worker's greatest lateness in the window, in microseconds.
    pub greatest_us: u64,
    /// The lateness since the job began.
    #[serde(default)]
    pub all: LatenessReply,
}

/// The upper bounds of the classes into which a [`LatenessReply`] sorts the lateness, in microseconds.
pub const LATENESS_BOUNDS_US: [u32; 6] = [100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000];

/// A worker's lateness in all rounds that the hub checked. At more than about 60 rounds per second, the hub does not check
/// every round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatenessReply {
    /// The sum over these rounds, in microseconds.
    pub sum_us: u64,
    /// The number of rounds in each class: up to each of the [bounds](LATENESS_BOUNDS_US), and above the last one. A round
    /// is counted in one class only.
    pub rounds: [u64; LATENESS_BOUNDS_US.len() + 1],
}

impl LatenessReply {
    /// Adds `rounds` rounds with this lateness.
    pub fn add(&mut self, late_us: u32, rounds: u64) {
        self.sum_us += u64::from(late_us) * rounds;
        self.rounds[LATENESS_BOUNDS_US.partition_point(|&bound| bound < late_us)] += rounds;
    }
}

/// The late worker among the workers below a hub. That hub reports the worker to the hub above, for the rounds of its
/// [`RoundsReply`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Latest {
    /// The numbers of the machines on the way from the reporting hub down to the worker's hub, and then the worker's
    /// rank at that hub.
    pub path: Vec<u32>,
    /// The number of last rounds that the report describes.
    pub window: u32,
    /// The number of these rounds in which the hub waited longest for this worker.
    pub last: u32,
    /// The median lateness of the worker in these `last` rounds, in microseconds.
    pub late_us: u64,
    /// The time for which the round in flight has waited for the worker, in microseconds. It is 0 unless this wait is the
    /// reason for the report.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub waited_us: u64,
}

impl Latest {
    /// Checks that the numbers of the report are possible.
    ///
    /// # Errors
    /// Returns an error that names the expected and the seen value.
    pub fn check(&self) -> Result<(), String> {
        let Latest { path, window, last, .. } = self;
        match () {
            () if path.is_empty() || path.len() > MAX_PATH => {
                Err(format!("a path of {} ranks: expected 1 to {MAX_PATH}", path.len()))
            }
            () if path.iter().any(|&rank| rank >= MAX_WORKERS) => {
                Err(format!("the path {path:?}: expected ranks below {MAX_WORKERS}"))
            }
            () if *window == 0 || last > window => Err(format!(
                "the worker was last in {last} of {window} rounds: expected at least 1 round, and the first number not \
                 above the second"
            )),
            () => Ok(()),
        }
    }

    /// Describes the worker in words, beginning with the machine of this number.
    pub fn of_machine(&self, number: u32) -> String {
        let (worker, machines) = self.path.split_last().unwrap_or((&0, &[]));
        let between: String = machines.iter().map(|machine| format!("machine {machine}: ")).collect();
        format!("machine {number}: {between}worker {worker}")
    }
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}
