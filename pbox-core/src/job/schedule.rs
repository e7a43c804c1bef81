//! Schedules: the order in which the parts of a model are sent, at both ends of a link.
//!
//! Plain data. This module must not depend on links or time.
//!
//! | schedule | unit | order | weights are sent |
//! | --- | --- | --- | --- |
//! | `kvstore` | a layer | as pushed | when the worker pulls a layer, after the hub's notice |
//! | `layerwise` | a layer | as pushed | when the worker may have the whole layer |
//! | `sliced` | a slice | as pushed | chunk by chunk |
//! | `p3` | a slice | first layer first | chunk by chunk, first layer first |

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::layout::KeyId;

/// The order in which a job's gradients and weights are sent. It is the same at all workers and at the hub.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Schedule {
    /// The order of MXNet's KVStore, the baseline of P3's paper. Whole layers are sent in the order of their pushes. The
    /// hub sends a notice, the worker pulls, and only then does the hub send the weights.
    KvStore,
    /// Whole layers in the order of their pushes, sent back whole (wait-free backpropagation).
    Layerwise,
    /// Slices in the order of their pushes, sent back chunk by chunk.
    #[default]
    Sliced,
    /// Slices, those of the first layer first; within a layer in the order of their pushes (P3, section 4). The
    /// worker's queue of pushes and the hub's queue of answers have this order. The server of P3's paper also handles
    /// received pushes in this order. Here, a core handles pushes in the order in which they arrive.
    P3,
}

/// An error: the text names no schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("schedule {seen:?}: expected kvstore, layerwise, sliced or p3")]
pub struct NotASchedule {
    seen: String,
}

impl Schedule {
    /// All schedules.
    pub const ALL: [Schedule; 4] = [Schedule::KvStore, Schedule::Layerwise, Schedule::Sliced, Schedule::P3];

    /// Returns the schedule's name in the settings.
    pub fn name(self) -> &'static str {
        match self {
            Schedule::KvStore => "kvstore",
            Schedule::Layerwise => "layerwise",
            Schedule::Sliced => "sliced",
            Schedule::P3 => "p3",
        }
    }

    /// Returns the priority of a key's parts in a queue. The lowest number is sent first.
    #[inline]
    pub fn priority(self, key: KeyId) -> u32 {
        if self == Schedule::P3 { key.0 } else { 0 }
    }

    /// Whether a key's chunks on a core are one unit, and are answered together.
    pub fn by_layer(self) -> bool {
        matches!(self, Schedule::KvStore | Schedule::Layerwise)
    }

    /// Whether weights are sent only when the worker pulls them.
    pub fn pulls(self) -> bool {
        self == Schedule::KvStore
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Schedule {
    type Err = NotASchedule;

    fn from_str(text: &str) -> Result<Self, NotASchedule> {
        let found = Schedule::ALL.into_iter().find(|schedule| schedule.name() == text);
        found.ok_or_else(|| NotASchedule { seen: text.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_json_and_on_the_command_line() {
        for schedule in Schedule::ALL {
            let name = schedule.name();
            assert_eq!(serde_json::to_string(&schedule).unwrap(), format!("{name:?}"));
            assert_eq!(serde_json::from_str::<Schedule>(&format!("{name:?}")).unwrap(), schedule);
            assert_eq!((schedule.to_string().as_str(), name.parse()), (name, Ok(schedule)));
        }
        let error = "fifo".parse::<Schedule>().unwrap_err().to_string();
        assert!(error.contains("\"fifo\"") && error.contains("expected kvstore, layerwise"), "{error}");
        assert_eq!(Schedule::default(), Schedule::Sliced);
    }
}
