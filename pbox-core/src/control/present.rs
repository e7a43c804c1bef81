//! The present of a job whose hub is lost: what its workers have of each key, in their joins, and with what each key begins, in
//! the news.
//!
//! Plain data. Rounds of workers are counted with the rounds that they know to be lost with hubs before.

use serde::{Deserialize, Serialize};

use super::{NumbersSet, is_zero};
use crate::job::{Compression, Consistency, JobTerms};
use crate::layout::{KeyId, Round};

/// Of a worker that asks for the present: what it has of the job's weights.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Present {
    /// Rounds that it knows to be lost with hubs before.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub lost: u32,
    /// The learning rate that it has set last, and the first round that had it. If it has set all numbers, a rate after these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub learning_rate: Option<(Round, f32)>,
    /// The numbers of the optimizer that it has set last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numbers: Option<NumbersSet>,
    /// By key; empty if it has lost no hub, and has nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<Stand>,
}

/// What a worker has of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stand {
    /// The round of the push under way, else of the next one.
    pub round: Round,
    /// What its weights are.
    pub weights: Holds,
    /// The XXH3 digest of 64 bits of these weights, as they lie in its window; the seed is the key's number.
    pub digest: u64,
}

/// What a worker's weights of a key are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Holds {
    /// Those before the round, and the round is not pushed.
    Whole,
    /// Those before the round, and the round is pushed.
    Before,
    /// The round is pushed, and some of its new weights may be there.
    Mixed,
}

/// With what each key of a job begins.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PresentReply {
    /// By key.
    pub keys: Vec<Begins>,
    /// Rounds that were lost with hubs before, as the worker that knows of the most says.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub lost: u32,
    /// The optimizer's state is that before this round. 0: it is zero.
    pub state_before: Round,
    /// Why there is no present: workers have different weights of the same round.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub differ: Option<String>,
}

/// With what a key begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Begins {
    /// The round that all workers push next.
    pub round: Round,
    /// The rank whose weights these are. None: the checkpoint's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<u32>,
    /// Whether some elements may lack the round before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub in_part: bool,
}

impl PresentReply {
    /// The round that a key begins with, counted with those that were lost.
    pub fn line(&self, key: KeyId) -> Round {
        Round(self.keys[key.index()].round.0.saturating_add(self.lost))
    }
}

impl Present {
    /// Whether a job with these terms can bring the present back. `meshed` is of workers whose hub shares the weights
    /// with others.
    ///
    /// # Errors
    /// What it does not go with, and why.
    pub fn check_goes_with(terms: &JobTerms, meshed: bool) -> Result<(), String> {
        let level = &terms.level;
        let (what, why) = if level.consistency != Consistency::Bsp {
            ("SSP and ASP", "workers that step alone have no common round")
        } else if let Some(Compression::Slim(_)) = level.compression {
            ("Slim-DP", "its workers have weights of their own")
        } else if level.compression.is_some() {
            ("a codec", "workers have what was decoded, and not the hub's weights")
        } else if !terms.optimizer.keeps_weights() {
            ("average", "there are no weights that could be brought back")
        } else if meshed {
            ("a mesh", "its hubs share the weights, and each is below the others")
        } else {
            return Ok(());
        };
        Err(format!(
            "it does not go with {what}: {why}; leave it out, and the hub goes on from its checkpoint"
        ))
    }
}
