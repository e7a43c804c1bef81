//! The limits of the control port: how much time, memory and how many descriptors a client may use before the hub hangs up.
//! They are not settings, because no working worker reaches them.

use std::time::Duration;

use rustix::process::{Resource, getrlimit};

/// The longest join: a manifest of a million keys.
const JOIN_BYTES: usize = 256 << 20;
/// The longest other request. These have a token and a few numbers.
const SMALL_BYTES: usize = 64 << 10;
/// All bodies that are being read: a thousand workers that join at once with manifests of ten thousand keys.
const BODIES_BYTES: usize = 1 << 30;
/// From the end of one request to the end of the headers of the next. A worker's client drops a connection that was idle
/// for 15 s. The hub waits longer, or it would hang up while a request is on its way.
const HEADERS: Duration = Duration::from_secs(20);
/// If no byte of a body comes for this long, its sender is lost.
const BODY_STALL: Duration = Duration::from_secs(10);
/// The slowest body on average: a modem was faster. The longest join takes four hours at this rate, and may.
const BODY_BYTES_PER_S: u64 = 16 << 10;
/// If the client's end does not take bytes for this long, the connection ends: the client was cut off, or does not read.
const UNREAD: Duration = Duration::from_secs(30);
/// A worker has two connections. This is enough for two jobs with the most workers.
const CONNECTIONS: usize = 4096;

/// What a client of the control port may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlLimits {
    /// The longest join in bytes.
    pub join_bytes: usize,
    /// The longest other request in bytes.
    pub small_bytes: usize,
    /// Bytes of all bodies that are being read.
    pub bodies_bytes: usize,
    /// Until a request's headers are here; also how long a connection may be idle.
    pub headers: Duration,
    /// Between two parts of a body.
    pub body_stall: Duration,
    /// The slowest body, on average since it began, after one stall.
    pub body_bytes_per_s: u64,
    /// Until the client's end takes what was sent to it.
    pub unread: Duration,
    /// Connections at once.
    pub connections: usize,
}

impl Default for ControlLimits {
    fn default() -> Self {
        // The data path and the windows need descriptors, too.
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        ControlLimits {
            join_bytes: JOIN_BYTES,
            small_bytes: SMALL_BYTES,
            bodies_bytes: BODIES_BYTES,
            headers: HEADERS,
            body_stall: BODY_STALL,
            body_bytes_per_s: BODY_BYTES_PER_S,
            unread: UNREAD,
            connections: CONNECTIONS.min(usize::try_from(descriptors / 2).unwrap_or(CONNECTIONS)),
        }
    }
}
