//! The speed of a job's last rounds, and the workers that the hub waited for.

use serde::{Deserialize, Serialize};

use crate::job::MAX_WORKERS;
use crate::layout::Round;

/// The longest path of a [`Latest`]: machines, one within the other, and the worker there.
pub const MAX_PATH: usize = 16;

/// The last rounds of a job, as this hub saw them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoundsReply {
    /// The round in flight.
    pub round: Round,
    /// Rounds a second.
    pub per_second: f64,
    /// The number of the last rounds, including the round in flight, that all fields below describe.
    pub window: u32,
    /// Ranks for which other ranks now wait.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waits_for: Vec<u32>,
    /// The time for which the round in flight has waited, in microseconds.
    #[serde(default)]
    pub waited_us: u64,
    /// One entry for each rank.
    pub ranks: Vec<RankReply>,
    /// The time for which the hub waited for each rank, in microseconds, by round, the oldest first. It is only in `GET
    /// /v1/events`, and only has rounds in which the hub waited for a rank.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recent: Vec<(Round, Vec<u32>)>,
}

/// The size of a job's gradients: the mean over the workers, of this hub's share of the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GradientsReply {
    /// The interval of the rounds that are measured.
    pub every: u32,
    /// Values that were infinite or NaN, in all rounds that were looked at since the job began.
    pub not_finite: u64,
    /// The number of rounds that changed nothing because their gradient was not finite. Only jobs that wait for the
    /// norm of each round have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skipped: Option<u64>,
    /// The last round that was measured, or for which steps have waited.
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

/// The lateness of a worker. In a round it is the time for which a core of the hub waited only for this worker's push,
/// after other workers had pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankReply {
    /// The rank.
    pub rank: u32,
    /// The number of rounds of the window in which the hub waited longest for the worker.
    pub last: u32,
    /// The median of the worker's lateness in these rounds, in microseconds.
    pub late_us: u64,
    /// The median of the worker's lateness in all rounds of the window, in microseconds.
    pub median_us: u64,
    /// The greatest lateness, in microseconds.
    pub greatest_us: u64,
    /// The lateness since the job began.
    #[serde(default)]
    pub all: LatenessReply,
}

/// The upper bounds of the classes of lateness that a [`LatenessReply`] counts separately, in microseconds.
pub const LATENESS_BOUNDS_US: [u32; 6] = [100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000];

/// A worker's lateness in all rounds that the hub looked at. With more than some 60 rounds per second, the hub does not
/// look at every round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatenessReply {
    /// The sum over the rounds, in microseconds.
    pub sum_us: u64,
    /// The number of rounds up to each of the [bounds](LATENESS_BOUNDS_US), and above the last bound. Each round is counted
    /// once.
    pub rounds: [u64; LATENESS_BOUNDS_US.len() + 1],
}

impl LatenessReply {
    /// Adds as many rounds of this lateness.
    pub fn add(&mut self, late_us: u32, rounds: u64) {
        self.sum_us += u64::from(late_us) * rounds;
        self.rounds[LATENESS_BOUNDS_US.partition_point(|&bound| bound < late_us)] += rounds;
    }
}

/// The late one of a hub's own workers, reported by a hub below for the window of its own [`RoundsReply`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Latest {
    /// The rank at its own hub, after the numbers of the machines between that hub and the hub that reports
    /// it.
    pub path: Vec<u32>,
    /// The number of last rounds that the report covers.
    pub window: u32,
    /// The number of these rounds in which the hub waited longest for the rank.
    pub last: u32,
    /// The median of the worker's lateness in these rounds, in microseconds.
    pub late_us: u64,
    /// The time for which the round in flight has waited for the worker, in microseconds; 0 unless this wait makes the worker
    /// late.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub waited_us: u64,
}

impl Latest {
    /// Checks that such a rate is possible.
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
            () if *window == 0 || last > window => {
                Err(format!("last in {last} of {window} rounds: expected at most all of at least one"))
            }
            () => Ok(()),
        }
    }

    /// Returns the worker in words, from the machine of this number on.
    pub fn of_machine(&self, number: u32) -> String {
        let (worker, machines) = self.path.split_last().unwrap_or((&0, &[]));
        let between: String = machines.iter().map(|machine| format!("machine {machine}: ")).collect();
        format!("machine {number}: {between}worker {worker}")
    }
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}
