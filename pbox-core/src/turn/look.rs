//! A look is a check of a job's rounds: whether they move, and for which workers they wait.
//!
//! The core's thread takes a look between two turns, when the hub asks for a look. The code that handles pushes does
//! not know of looks.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::pace::Pace;
use super::shard::ShardOf;
use crate::layout::Round;
use crate::weights::Mode;

/// The result of a check of a job on one or several cores.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Look {
    /// The round of the first chunk, if rounds are moving. Otherwise the highest round of any chunk.
    pub round: Round,
    /// Whether rounds have finished since the last check. If so, this check looked at nothing else.
    pub is_moving: bool,
    /// The sum of the rounds and pushes of all chunks. If two checks have the same sum, nothing happened in between.
    pub done: u64,
    /// The workers that wait for other workers, or for which other workers wait, by rank.
    pub workers: BTreeMap<u32, Waits>,
}

/// The role of one worker in the waits: whether other workers wait for it, and whether it waits itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waits {
    /// The number of chunks that other workers have pushed, and that wait for this worker's push.
    pub owes: u32,
    /// The lowest round of these chunks.
    pub round: Option<Round>,
    /// Whether the worker itself waits for other workers.
    pub is_waiting: bool,
}

impl Look {
    /// Checks a shard. `before` is the round of its first chunk at the last check. While this round moves, a check costs
    /// nothing. Otherwise a check costs some microseconds per thousand chunks.
    pub(super) fn at<P: Pace, M: Mode>(shard: &ShardOf<P, M>, before: &mut Option<Round>) -> Self {
        let mut look = Look::default();
        let chunks = shard.keys().len();
        if shard.is_held() || chunks == 0 {
            look.is_moving = shard.is_held(); // a hold is short, and no worker is late in it
            return look;
        }
        look.round = shard.pace.round(0);
        if before.replace(look.round).is_some_and(|before| before != look.round) {
            look.is_moving = true;
            return look;
        }
        for place in 0..chunks {
            let round = shard.pace.round(place);
            look.round = look.round.max(round);
            look.done += u64::from(round.0);
            look.done += shard.pace.each_waiting(place, &mut |rank, owes| {
                let waits = look.workers.entry(rank).or_default();
                if owes {
                    waits.owes += 1;
                    waits.round = Some(waits.round.map_or(round, |lowest| lowest.min(round)));
                } else {
                    waits.is_waiting = true;
                }
            });
        }
        look
    }

    /// Combines the results of the checks of two cores, or of two shards.
    pub fn with(mut self, other: Look) -> Self {
        self.round = self.round.max(other.round);
        self.is_moving |= other.is_moving;
        self.done += other.done;
        for (rank, theirs) in other.workers {
            let waits = self.workers.entry(rank).or_default();
            waits.owes += theirs.owes;
            waits.is_waiting |= theirs.is_waiting;
            waits.round = [waits.round, theirs.round].into_iter().flatten().min();
        }
        self
    }

    /// Returns the workers that delay the rounds: those that owe a push and do not wait themselves. If all workers that owe
    /// a push also wait, returns all of them.
    pub fn late(&self) -> impl Iterator<Item = (u32, Waits)> {
        let owes = |waits: &Waits| waits.owes > 0;
        let is_someone_idle = self.workers.values().any(|waits| owes(waits) && !waits.is_waiting);
        let late = self.workers.iter().map(|(&rank, &waits)| (rank, waits));
        late.filter(move |(_, waits)| owes(waits) && !(is_someone_idle && waits.is_waiting))
    }
}
