//! The limits of the control port: time, memory and descriptors that a client may use before the hub closes
//! its connection. They are not settings, because no correct worker reaches them.

use std::time::Duration;

use pbox_core::MAX_WORKERS;
use rustix::process::{Resource, getrlimit};

/// The limits of a client of the control port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlLimits {
    /// The longest join in bytes.
    pub join_bytes: usize,
    /// The longest other request in bytes.
    pub small_bytes: usize,
    /// The most bytes for each key, in a request that has hyperparameters for each key of a job.
    pub key_bytes: usize,
    /// The most bytes of all bodies that are being read.
    pub bodies_bytes: usize,
    /// The time within which a request's headers must arrive. It is also the longest time for which a connection may be
    /// idle.
    pub headers: Duration,
    /// The longest time between two parts of a body.
    pub body_stall: Duration,
    /// The least average rate of a body. The hub checks the rate only while it waits for the next part.
    pub body_bytes_per_s: u64,
    /// The time within which the client must take the bytes that were sent to it.
    pub unread: Duration,
    /// Connections at once.
    pub connections: usize,
    /// The most connections of one address.
    pub of_an_address: usize,
    /// The most connections that have shown no token yet. If there are more, the address with the most such connections
    /// loses its oldest such connection.
    pub strangers: usize,
}

impl Default for ControlLimits {
    fn default() -> Self {
        // The other half of the descriptors is for the data path and the windows.
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        // A worker has two connections. There is room for two jobs with the maximum number of workers each.
        Self::of_connections((descriptors / 2).min(4 * u64::from(MAX_WORKERS)) as usize)
    }
}

impl ControlLimits {
    /// Returns the limits of a hub that may have this number of connections.
    pub(super) fn of_connections(connections: usize) -> Self {
        ControlLimits {
            // Enough for a manifest with the maximum number of keys, if each key has 256 bytes.
            join_bytes: 64 << 20,
            // The longest of these requests is the release of a cut, which names each of 4096 workers by up to 20
            // digits.
            small_bytes: 128 << 10,
            // Two numbers as text, with their punctuation.
            key_bytes: 64,
            // Enough for a thousand workers that join at once with manifests of ten thousand keys.
            bodies_bytes: 1 << 30,
            // A worker's client closes a connection that was idle for 15 s. The hub waits longer, so that it
            // never closes a connection while a request is in flight.
            headers: Duration::from_secs(20),
            body_stall: Duration::from_secs(10),
            // The least rate at which a body must arrive. The longest join takes an hour at this rate.
            body_bytes_per_s: 16 << 10,
            // A client that has read nothing for this time is cut off.
            unread: Duration::from_secs(30),
            connections,
            // All workers of the largest job may have one address, on one machine or behind one gateway. Half of the
            // connections is left for other addresses.
            of_an_address: connections / 2,
            // A worker shows its token with its first request, whose bytes may arrive after the connection.
            // With 2000 new connections a second, a connection keeps its place for a second.
            strangers: connections / 2,
        }
    }
}
