//! The transports by name.

use std::fmt;
use std::str::FromStr;

/// The kind of transport, in order of preference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Transport {
    /// Shared memory, on one machine.
    Shm,
    /// RDMA by libibverbs: InfiniBand and RoCE.
    Verbs,
    /// TCP.
    Tcp,
}

impl Transport {
    /// All transports, the best first.
    pub const ALL: [Transport; 3] = [Transport::Shm, Transport::Verbs, Transport::Tcp];

    /// Returns the name in settings.
    pub fn name(self) -> &'static str {
        match self {
            Transport::Shm => "shm",
            Transport::Verbs => "verbs",
            Transport::Tcp => "tcp",
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The error of a text that names no transport.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a transport; expected shm, verbs or tcp")]
pub struct ParseTransportError(String);

impl FromStr for Transport {
    type Err = ParseTransportError;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let known = Transport::ALL.into_iter().find(|transport| transport.name() == name);
        known.ok_or_else(|| ParseTransportError(name.to_owned()))
    }
}
