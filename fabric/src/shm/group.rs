//! A group: the ports of one process or one hub, their bells, and the watch over their connections.

use std::sync::Arc;

use super::cells::{Bell, Words};
use super::futex;
use crate::port_state::{self, Ring};
use crate::ring::bell;
use crate::watch::Watch;

/// What a port shares with the other threads of its process.
pub(super) type PortState = port_state::PortState<Bell>;

impl Ring for Bell {
    /// Does not ask the word whether anybody sleeps: a peer that was killed between clearing the word and
    /// waking the sleeper, or a hostile peer, leaves a sleeper behind a clear word. This is rare enough to pay
    /// for a system call each time.
    fn ring(&self) {
        bell::published();
        bell::awake(self.asleep());
        futex::wake(self.asleep());
    }
}

/// The ports of one end, as the handshake sees them.
#[derive(Debug)]
pub struct Group {
    pub(super) bells: Arc<Words>,
    pub(super) ports: Vec<Arc<PortState>>,
    pub(crate) watch: Watch,
}

impl Group {
    pub(super) fn new(ports: usize) -> std::io::Result<Arc<Self>> {
        assert!(ports > 0, "a group has at least one port");
        let bells = Words::new("bells", Bell::bytes(ports)).map_err(std::io::Error::other)?;
        let ports = (0..ports).map(|index| PortState::new(Bell::new(&bells, index))).collect();
        Ok(Arc::new(Group { bells, ports, watch: Watch::start()? }))
    }
}
