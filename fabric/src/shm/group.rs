//! A group: the ports of one process or one hub, their bells, and the watch over their connections.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::bells::OwnBell;
use super::cells::{Bell, Words};
use super::datagram::{self, Name};
use crate::port_state;
use crate::watch::Watch;

/// What a port shares with the other threads of its process.
pub(super) type PortState = port_state::PortState<OwnBell>;

/// The ports of one end, as the handshake sees them.
#[derive(Debug)]
pub struct Group {
    pub(super) bells: Arc<Words>,
    /// Of the sockets by which peers wake ports.
    pub(super) name: Name,
    senders: Vec<OwnedFd>,
    pub(super) ports: Vec<Arc<PortState>>,
    pub(super) watch: Watch,
}

impl Group {
    pub(super) fn new(ports: usize) -> std::io::Result<Arc<Self>> {
        assert!(ports > 0, "a group has at least one port");
        let bells = Words::new("bells", Bell::bytes(ports)).map_err(std::io::Error::other)?;
        let (name, senders, receivers) = datagram::sockets(ports)?;
        let port = |(index, receiver)| PortState::new(OwnBell::new(Bell::new(&bells, index), receiver));
        let ports = receivers.into_iter().enumerate().map(port).collect();
        Ok(Arc::new(Group { bells, name, senders, ports, watch: Watch::start()? }))
    }

    /// What a handshake hands over: these descriptors, and those by which peers wake ports.
    pub(super) fn offer<'a, const N: usize>(&'a self, fds: [BorrowedFd<'a>; N]) -> Vec<BorrowedFd<'a>> {
        fds.into_iter().chain(self.senders.iter().map(AsFd::as_fd)).collect()
    }
}
