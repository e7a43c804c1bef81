//! How a job's last rounds went: how fast, and for whom the hub waited.

use serde::{Deserialize, Serialize};

use crate::layout::Round;

/// The last rounds of a job, as this hub saw them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoundsReply {
    /// The round in flight.
    pub round: Round,
    /// Rounds a second.
    pub per_second: f64,
    /// How many of the last rounds, with the round in flight, all that follows is about.
    pub window: u32,
    /// Ranks whose pushes others wait for now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waits_for: Vec<u32>,
    /// For how long the round in flight has waited, in microseconds.
    #[serde(default)]
    pub waited_us: u64,
    /// By rank.
    pub ranks: Vec<RankReply>,
    /// By round, the oldest first: for how long each rank was waited for, in microseconds. Only in `GET /v1/events`, and only
    /// of rounds in which somebody was waited for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recent: Vec<(Round, Vec<u32>)>,
}

/// How late a worker was. Its lateness in a round is the time for which a core of the hub had nothing to do but to wait for
/// the worker's push, while others had pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankReply {
    /// Its rank.
    pub rank: u32,
    /// Rounds of the window in which it was waited for longest.
    pub last: u32,
    /// The median of its lateness in these, in microseconds.
    pub late_us: u64,
    /// The median of its lateness in all rounds of the window.
    pub median_us: u64,
    /// The greatest.
    pub greatest_us: u64,
}
