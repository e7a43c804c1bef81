//! The download of a job's state from a hub: piece by piece, or into memory that this process lends to the hub.
//!
//! Runs on the caller's thread. Must not depend on the content of the state.

use std::io::{self, Read};
use std::time::Duration;

use authority::Credential;
use fabric::Slab;
use pbox_core::control::{BASE_HEADER, DELTAS_HEADER, MEMORY_HEADER, StateQuery};
use ureq::http::StatusCode;

use crate::control::Control;
use crate::error::MemberError;
use crate::lend::{Header, LoanNics, while_lending};
use crate::named::Named;

/// The time within which a hub must begin to send. Half of this time is the hub's wait for the end of a round.
const BEGIN_LIMIT: Duration = Duration::from_secs(60);

/// The least speed at which a hub sends a state. A slower hub counts as stuck.
const SLOWEST_BYTES_PER_S: u64 = 1 << 20;

/// A reader of a state. The bytes are a checkpoint's file. If the values are in memory, the bytes are the file's
/// header. If there are deltas, they follow the header.
pub struct StateReader {
    body: Box<dyn Read + Send>,
    bytes: Option<u64>,
    hub: String,
    values: Option<Slab>,
    deltas: Option<usize>,
}

impl StateReader {
    /// Returns the number of deltas, if the hub sends them in place of values.
    pub fn deltas(&self) -> Option<usize> {
        self.deltas
    }

    /// Returns the length of the state's file with all values, if the hub has sent this length.
    pub fn bytes(&self) -> Option<u64> {
        self.bytes
    }

    /// Returns the values, if the hub has written them into memory.
    pub fn take_values(&mut self) -> Option<Slab> {
        self.values.take()
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

/// The place of the values of a state.
#[derive(Debug)]
pub enum Values<'a> {
    /// The bytes of the reader, behind the header.
    Sent,
    /// The bytes of the reader, behind the header. If the hub has the differences from the file with this digest, it
    /// sends these differences instead of the values. Without a digest, the hub prepares to send differences later.
    Changed(Option<&'a str>),
    /// Memory, if the hub is on this machine and in this network namespace, or if it reaches these NICs by RDMA. Otherwise
    /// the bytes of the reader. Not with TLS, because RDMA is not encrypted.
    InMemory(Option<&'a mut LoanNics>),
}

/// Asks the hub at this address for the part of a job's state that the query describes. Returns `None` if the hub has no part
/// of the state. `bytes` is the approximate length, and the limit of the memory that is lent. A hub of an older version ignores
/// the query's `only`, and sends the whole state.
///
/// # Errors
/// Returns an error if the hub cannot be reached, refuses, or is not trusted.
pub fn fetch_state(
    address: &str,
    job: &str,
    query: StateQuery,
    (values, bytes): (Values<'_>, u64),
    credential: Option<&Credential>,
) -> Result<Option<StateReader>, MemberError> {
    let limit = BEGIN_LIMIT + Duration::from_secs(bytes / SLOWEST_BYTES_PER_S);
    let control = Control::new(address, job, limit, credential, &Named::Here)?;
    let path = format!("/v1/jobs/{job}/state{query}");
    let get = |more: &[Header]| control.get(&path, more).map_err(|failure| failure.error);
    let (response, lent) = match values {
        Values::Sent => (get(&[]), None),
        Values::Changed(base) => (get(&[(BASE_HEADER, base.unwrap_or("none").to_owned())]), None),
        Values::InMemory(nics) => {
            let mut nics = nics.filter(|_| !control.is_encrypted());
            let (response, lent) = while_lending(nics.as_deref_mut(), bytes, get);
            if let (Some(nics), Ok(response)) = (nics, &response)
                && response.status() == StatusCode::OK
            {
                nics.note(response.headers().contains_key(MEMORY_HEADER));
            }
            (response, lent)
        }
    };
    let response = response?;
    let (what, hub) = ("give the state", address.to_owned());
    let nonsense = |saw: String| MemberError::Nonsense { hub: hub.clone(), what, saw };
    match response.status() {
        StatusCode::OK => {
            let sent = response.body().content_length();
            let header = |name| response.headers().get(name).and_then(|value| value.to_str().ok());
            let written = header(MEMORY_HEADER);
            let values = match (written, lent) {
                (None, _) => None,
                (Some(written), Some(lent)) if written == lent.bytes().to_string() => {
                    Some((lent.bytes() as u64, lent.seal().map_err(|error| nonsense(error.to_string()))?))
                }
                (Some(written), lent) => {
                    let lent = lent.map_or(0, |lent| lent.bytes());
                    return Err(nonsense(format!("{written:?} bytes in memory of {lent} bytes")));
                }
            };
            let (in_memory, values) = values.unzip();
            let parse = |(count, of_file): (&str, &str)| Some((count.parse().ok()?, of_file.parse().ok()?));
            let deltas = match header(DELTAS_HEADER) {
                None => None,
                Some(said) => {
                    Some(said.split_once(',').and_then(parse).ok_or_else(|| nonsense(said.to_owned()))?)
                }
            };
            let bytes = match deltas {
                Some((_, of_file)) => Some(of_file),
                None => sent.and_then(|sent| sent.checked_add(in_memory.unwrap_or(0))),
            };
            let body = Box::new(response.into_body().into_reader());
            Ok(Some(StateReader { body, bytes, hub, values, deltas: deltas.map(|(count, _)| count) }))
        }
        StatusCode::NO_CONTENT => Ok(None),
        status => {
            let said = control.read_reply::<serde_json::Value>(what, response);
            Err(said.map_or_else(|failure| failure.error, |_| nonsense(status.to_string())))
        }
    }
}
