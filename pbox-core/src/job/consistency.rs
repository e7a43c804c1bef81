//! Consistency: how many rounds one worker may be ahead of another, and so which pushes are in a worker's weights.
//!
//! Plain data and one rule, used at both ends. This module must not depend on ranks or memory.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::layout::Round;

/// The consistency between workers and their hub, or between two levels of hubs: the time at which a hub answers a push.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Consistency {
    /// Bulk synchronous. A round is one step with the mean of all workers' gradients, and ends for all workers at the same
    /// time.
    #[default]
    Bsp,
    /// Stale synchronous (Ho et al., 2013). Each push is a separate step, and no worker is more than `staleness` rounds
    /// ahead of the slowest. The weights that a worker gets before its round `c` have all workers' pushes of all rounds
    /// before `c - staleness`.
    ///
    /// BSP makes one step a round. SSP makes one step for each worker, with only that worker's gradient. So the
    /// learning rate must be the rate for the batch of one worker.
    Ssp {
        /// The staleness in rounds. With 0, workers wait for each other as in BSP.
        staleness: u32,
    },
    /// Asynchronous. Works like SSP, but no worker waits for another worker once it has its first weights.
    Asp,
}

/// An error: the text names no consistency.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("consistency {seen:?}: expected bsp, ssp:S with the staleness S in rounds, or asp")]
pub struct NotAConsistency {
    seen: String,
}

impl Consistency {
    /// Whether each push is a separate step, and each worker has its own copy of the weights.
    pub fn steps_alone(self) -> bool {
        self != Consistency::Bsp
    }

    /// Whether a worker may get its weights. `next` is the worker's next round, and `slowest` is the slowest worker's
    /// next round. No worker passes round 0 before all workers have pushed it, because round 0 is the broadcast of the
    /// first weights.
    #[inline]
    pub fn allows(self, next: Round, slowest: Round) -> bool {
        let ahead = next.0.saturating_sub(slowest.0);
        slowest > Round(0)
            && match self {
                Consistency::Bsp => ahead == 0,
                Consistency::Ssp { staleness } => ahead <= staleness,
                Consistency::Asp => true,
            }
    }
}

impl fmt::Display for Consistency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Consistency::Bsp => f.write_str("bsp"),
            Consistency::Ssp { staleness } => write!(f, "ssp:{staleness}"),
            Consistency::Asp => f.write_str("asp"),
        }
    }
}

impl FromStr for Consistency {
    type Err = NotAConsistency;

    fn from_str(text: &str) -> Result<Self, NotAConsistency> {
        let staleness = |digits: &str| digits.parse().ok().map(|staleness| Consistency::Ssp { staleness });
        match text {
            "bsp" => Some(Consistency::Bsp),
            "asp" => Some(Consistency::Asp),
            _ => text.strip_prefix("ssp:").and_then(staleness),
        }
        .ok_or_else(|| NotAConsistency { seen: text.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SSP_2: Consistency = Consistency::Ssp { staleness: 2 };

    #[test]
    fn each_says_how_far_ahead_one_may_be() {
        let furthest = |consistency: Consistency| {
            (0..100).rfind(|&ahead| consistency.allows(Round(7 + ahead), Round(7)))
        };
        assert_eq!(furthest(Consistency::Bsp), Some(0));
        assert_eq!(furthest(Consistency::Ssp { staleness: 0 }), Some(0));
        assert_eq!(furthest(SSP_2), Some(2));
        assert_eq!(furthest(Consistency::Asp), Some(99));
        for consistency in [Consistency::Bsp, SSP_2, Consistency::Asp] {
            assert!(!consistency.allows(Round(1), Round(0)), "{consistency}: somebody has no weights yet");
            assert!(consistency.allows(Round(1), Round(1)), "{consistency}");
        }
    }

    #[test]
    fn in_json_and_on_the_command_line() {
        for (consistency, json, text) in [
            (Consistency::Bsp, r#""bsp""#, "bsp"),
            (SSP_2, r#"{"ssp":{"staleness":2}}"#, "ssp:2"),
            (Consistency::Asp, r#""asp""#, "asp"),
        ] {
            assert_eq!(serde_json::to_string(&consistency).unwrap(), json);
            assert_eq!(serde_json::from_str::<Consistency>(json).unwrap(), consistency);
            assert_eq!(consistency.to_string(), text);
            assert_eq!(text.parse(), Ok(consistency));
        }
        for wrong in
            [r#""ssp""#, r#"{"ssp":{}}"#, r#"{"ssp":{"staleness":-1}}"#, r#"{"ssp":{"staleness":1,"x":1}}"#]
        {
            assert!(serde_json::from_str::<Consistency>(wrong).is_err(), "{wrong}");
        }
        for wrong in ["", "ssp", "ssp:", "ssp:-1", "ssp: 1", "BSP"] {
            let error = wrong.parse::<Consistency>().unwrap_err().to_string();
            assert!(error.contains("expected bsp, ssp:S"), "{error}");
        }
    }
}
