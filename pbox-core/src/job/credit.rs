//! Credit: the number of bytes of a link that may be in flight, so that an urgent chunk never waits behind more than
//! this number of bytes.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::schedule::Schedule;

/// The bytes that may be in flight on each link of a job, in each direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Credit {
    /// Any number of bytes.
    None,
    /// This number of bytes, at least 1. A chunk that is larger is sent alone.
    Bytes(usize),
    /// A search by each worker for the best credit, in its first rounds. The hub's answers have [`Credit::AT_FIRST`].
    Auto,
}

/// An error: the text names no credit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("credit {seen:?}: expected none, auto, or a number of bytes from 1 on")]
pub struct NotACredit {
    seen: String,
}

impl Credit {
    /// The credit before any measurement. For P3 on links of 4 Gbit/s, every credit from 64 KiB to 4 MiB was equally good. A
    /// faster network needs more credit, because it carries more bytes while a worker wakes up.
    pub const AT_FIRST: usize = 1 << 20;

    /// The smallest useful credit for each of several links to a peer. It is enough for one slice that is being sent, and
    /// for the next slice.
    pub const LEAST: usize = 64 << 10;

    /// Returns the default credit for a schedule, for all links to a peer together. Without a limit, a transport that
    /// queues bytes would make [`Schedule::P3`] first in, first out. The other schedules gain nothing from a limit.
    pub fn default_of(schedule: Schedule) -> Self {
        if schedule == Schedule::P3 { Credit::Bytes(Credit::AT_FIRST) } else { Credit::None }
    }

    /// Returns the number of bytes that may be in flight on each link in the first round; `None` for any number.
    pub fn at_first(self) -> Option<usize> {
        match self {
            Credit::None => None,
            Credit::Bytes(bytes) => Some(bytes),
            Credit::Auto => Some(Credit::AT_FIRST),
        }
    }
}

impl fmt::Display for Credit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Credit::None => f.write_str("none"),
            Credit::Bytes(bytes) => write!(f, "{bytes}"),
            Credit::Auto => f.write_str("auto"),
        }
    }
}

impl FromStr for Credit {
    type Err = NotACredit;

    fn from_str(text: &str) -> Result<Self, NotACredit> {
        match text {
            "none" => Ok(Credit::None),
            "auto" => Ok(Credit::Auto),
            _ => match text.parse() {
                Ok(bytes) if bytes > 0 => Ok(Credit::Bytes(bytes)),
                _ => Err(NotACredit { seen: text.to_owned() }),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_json_and_on_the_command_line() {
        for (credit, text, json) in [
            (Credit::None, "none", r#""none""#),
            (Credit::Auto, "auto", r#""auto""#),
            (Credit::Bytes(65_536), "65536", r#"{"bytes":65536}"#),
        ] {
            assert_eq!((text.parse(), credit.to_string().as_str()), (Ok(credit), text));
            assert_eq!(serde_json::to_string(&credit).unwrap(), json);
            assert_eq!(serde_json::from_str::<Credit>(json).unwrap(), credit);
        }
        for wrong in ["", "0", "-1", "1k"] {
            assert!(wrong.parse::<Credit>().unwrap_err().to_string().contains("expected none, auto"));
        }
    }
}
