//! The path from a member to a hub: a transport, and the NICs at both ends.

use fabric::NicPair;
use fabric::any::Transport;

/// The path over which a member reaches a hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Way {
    /// The transport.
    pub transport: Transport,
    /// The reason for this transport, in words.
    pub reason: String,
    /// The pairs of NICs over which the links go. Empty if the transport leaves no choice.
    pub paths: Vec<NicPair>,
}

impl Way {
    /// Describes the NICs over which the links go.
    pub fn spoken_paths(&self) -> String {
        self.paths.iter().map(|pair| pair.words.as_str()).collect::<Vec<_>>().join("; ")
    }

    /// Whether links of this path can end while both ends are alive. On shared memory, only a death ends a link.
    pub fn may_break(&self) -> bool {
        self.transport != Transport::Shm
    }
}

/// Logs that a member has reconnected to each of these hubs.
pub fn say_made<'a>(job: &str, hubs: impl IntoIterator<Item = &'a str>, ways: &[Way], lost: &str) {
    for (hub, way) in hubs.into_iter().zip(ways) {
        let Way { transport, reason, .. } = way;
        let paths = way.spoken_paths();
        tracing::warn!(job, hub, %transport, paths, "{lost}; reconnected: {reason}");
    }
}
