//! The limits of the control port: what a client may take of time, memory and descriptors before the
//! hub hangs up. Each has a reason; none is a setting, because none limits a worker that works.

use std::time::Duration;

use rustix::process::{Resource, getrlimit};

/// The longest join: a manifest of a million keys.
const JOIN_BYTES: usize = 256 << 20;
/// The longest of the other requests, which are a token and a number.
const SMALL_BYTES: usize = 64 << 10;
/// Bodies of all requests that are being read: a thousand workers that join at once with manifests of
/// ten thousand keys.
const BODIES_BYTES: usize = 1 << 30;
/// From the end of one request to the end of the next one's headers. A worker's client drops a
/// connection that was idle for 15 s: the hub is the more patient one, or it would hang up on a request
/// that is on its way.
const HEADERS: Duration = Duration::from_secs(20);
/// A body of which not a byte comes for so long has lost its sender.
const BODY_STALL: Duration = Duration::from_secs(10);
/// A body that comes slower than this, all in all, is no body: a modem was faster. The longest join
/// takes four hours at this rate, and may.
const BODY_BYTES_PER_S: u64 = 16 << 10;
/// Bytes that the client's end has not taken for so long end the connection: it was cut off, or it does
/// not read its answers.
const UNREAD: Duration = Duration::from_secs(30);
/// A worker has two connections: four jobs of the most workers, half of what processes may open.
const CONNECTIONS: usize = 4096;

/// What a client of the control port may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlLimits {
    /// The longest join in bytes.
    pub join_bytes: usize,
    /// The longest of the other requests in bytes.
    pub small_bytes: usize,
    /// Bytes of all bodies that are being read.
    pub bodies_bytes: usize,
    /// Until a request's headers are here; also how long a connection may be idle.
    pub headers: Duration,
    /// Between two parts of a body.
    pub body_stall: Duration,
    /// The slowest body, on average since it began; one stall is free.
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
