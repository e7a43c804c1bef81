//! A group: the ports of one process or one hub, their bells, and the thread that watches their connections.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::bells::OwnBell;
use super::cells::{Bell, Words};
use crate::port_state;
use crate::watch::Watch;

/// The state that a port shares with the other threads of its process.
pub(super) type PortState = port_state::PortState<OwnBell>;

/// The state of one end's ports that the handshake needs.
#[derive(Debug)]
pub struct Group {
    bells: Arc<Words>,
    pub(super) ports: Vec<Arc<PortState>>,
    pub(super) watch: Watch,
}

impl Group {
    pub(super) fn new(ports: usize) -> std::io::Result<Arc<Self>> {
        assert!(ports > 0, "a group has at least one port");
        let bells = Words::new_or_own("bells", Bell::bytes(ports)).map_err(std::io::Error::other)?;
        let port = |index| PortState::new(OwnBell::new(Bell::new(&bells, index)));
        let ports = (0..ports).map(port).collect();
        Ok(Arc::new(Group { bells, ports, watch: Watch::start()? }))
    }

    /// Returns the descriptor of the bells, to pass to a peer on this machine.
    pub(super) fn bells(&self) -> Result<BorrowedFd<'_>, String> {
        self.bells.fd()
    }

    /// Returns the reason why no peer can connect: this process is not allowed to make shareable memory.
    /// Returns `None` if peers can connect.
    pub fn unshared(&self) -> Option<String> {
        self.bells().err()
    }
}
