//! The download of a job's state from a hub. The state is read piece by piece, and is never in memory as a whole.
//!
//! Runs on the caller's thread. Must not depend on the content of the state.

use std::io::{self, Read};
use std::time::Duration;

use authority::Credential;
use pbox_core::control::StateQuery;
use ureq::http::StatusCode;

use crate::control::Control;
use crate::error::MemberError;
use crate::named::Named;

/// The time within which a hub must begin to send. Half of this time is the hub's wait for the end of a round.
const BEGIN_LIMIT: Duration = Duration::from_secs(60);

/// The least speed at which a hub sends a state. A slower hub counts as stuck.
const SLOWEST_BYTES_PER_S: u64 = 1 << 20;

/// A reader of a state. The bytes are those of a checkpoint's file.
pub struct StateReader {
    body: Box<dyn Read + Send>,
    bytes: Option<u64>,
    hub: String,
}

impl StateReader {
    /// Returns the length of the state, if the hub has given it.
    pub fn bytes(&self) -> Option<u64> {
        self.bytes
    }
}

impl Read for StateReader {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let cut = |error: io::Error| {
            io::Error::new(
                error.kind(),
                format!("the connection to the hub at {} was cut off: {error}", self.hub),
            )
        };
        self.body.read(room).map_err(cut)
    }
}

/// Asks the hub at this address for the part of a job's state that the query describes. Returns `None` if the hub has no part
/// of the state. `bytes` is the approximate length. A hub of an older version ignores the query's `only`, and sends the whole
/// state.
///
/// # Errors
/// Returns an error if the hub cannot be reached, refuses, or is not trusted.
pub fn fetch_state(
    address: &str,
    job: &str,
    query: StateQuery,
    bytes: u64,
    credential: Option<&Credential>,
) -> Result<Option<StateReader>, MemberError> {
    let limit = BEGIN_LIMIT + Duration::from_secs(bytes / SLOWEST_BYTES_PER_S);
    let control = Control::new(address, job, limit, credential, &Named::Here)?;
    let path = format!("/v1/jobs/{job}/state{query}");
    let response = control.get(&path).map_err(|failure| failure.error)?;
    match response.status() {
        StatusCode::OK => {
            let bytes = response.body().content_length();
            let body = Box::new(response.into_body().into_reader());
            Ok(Some(StateReader { body, bytes, hub: address.to_owned() }))
        }
        StatusCode::NO_CONTENT => Ok(None),
        status => {
            let (what, hub) = ("give the state", address.to_owned());
            let strange = || MemberError::Nonsense { hub, what, saw: status.to_string() };
            let said = control.read_reply::<serde_json::Value>(what, response);
            Err(said.map_or_else(|failure| failure.error, |_| strange()))
        }
    }
}
