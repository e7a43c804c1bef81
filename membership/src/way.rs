//! The route from a member to a hub: a transport, and the NICs at both ends.

use fabric::NicPair;
use fabric::any::Transport;

/// The path by which a member reaches a hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Way {
    /// The transport.
    pub transport: Transport,
    /// The reason why by this one, in words.
    pub reason: String,
    /// The NICs that the links go over; nothing if there is no choice.
    pub paths: Vec<NicPair>,
}

impl Way {
    /// Returns which NICs the links go over, in words.
    pub fn spoken_paths(&self) -> String {
        self.paths.iter().map(|pair| pair.words.as_str()).collect::<Vec<_>>().join("; ")
    }

    /// Whether its links may end while both ends live. On shared memory nothing but a death ends them.
    pub fn may_break(&self) -> bool {
        self.transport != Transport::Shm
    }
}

/// Logs that a member has new links to each of these hubs.
pub fn say_made<'a>(job: &str, hubs: impl IntoIterator<Item = &'a str>, ways: &[Way], lost: &str) {
    for (hub, way) in hubs.into_iter().zip(ways) {
        let Way { transport, reason, .. } = way;
        let paths = way.spoken_paths();
        tracing::warn!(job, hub, %transport, paths, "{lost}; reconnected: {reason}");
    }
}
