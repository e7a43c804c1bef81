//! The probe's report of credit: the number of bytes that each link of a worker may hold, and the tries in the search
//! for this number.
//!
//! A worker process sends this plain data to its parent.

use pbox_core::Credit;
use serde::{Deserialize, Serialize};
use worker_shim::{Session, TRIALS, Trial};

/// The credit of one worker. Each worker searches for itself.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(in crate::probe) struct CreditReport {
    /// The credit at the end, or `None` if there is no limit.
    pub bytes: Option<usize>,
    /// The tries of the search, in order.
    pub tried: Vec<Tried>,
}

/// A credit that was tried.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::probe) struct Tried {
    bytes: usize,
    /// The time of the fastest round with this credit.
    round_ms: f64,
}

impl CreditReport {
    /// Returns the report of a session at its end.
    pub fn from_session(session: &Session) -> Self {
        let (bytes, tried) = session.credit();
        let tried = tried
            .iter()
            .map(|&Trial { bytes, round }| Tried { bytes, round_ms: round.as_nanos() as f64 / 1e6 });
        CreditReport { bytes, tried: tried.collect() }
    }

    /// Returns the report as text.
    pub fn words(&self, asked: Credit) -> String {
        let bytes =
            self.bytes.map_or("no bound".to_owned(), |bytes| format!("{} KiB a link", bytes as f64 / 1024.0));
        if asked != Credit::Auto {
            return bytes;
        }
        let each: Vec<String> = self
            .tried
            .iter()
            .map(|trial| format!("{} KiB {:.2} ms", trial.bytes >> 10, trial.round_ms))
            .collect();
        let state = if self.tried.len() == TRIALS.len() { "found" } else { "still searching" };
        format!("{bytes}, {state}, {} of {} tried: {}", each.len(), TRIALS.len(), each.join(", "))
    }
}
