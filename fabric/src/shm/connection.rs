//! A connection: the socket of one handshake, which lives as long as its links.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::net::Shutdown;

use super::group::PortState;
use super::watch::Register;

#[derive(Debug)]
pub(super) struct Connection {
    pub number: u64,
    pub socket: OwnedFd,
    /// Ports of this end that have a link of the connection.
    pub ports: Vec<Arc<PortState>>,
    pub register: Arc<Register>,
    /// Set once the socket ended; the ports look when their `deaths` changed.
    pub dead: AtomicBool,
}

impl Connection {
    /// The socket ended: tell every port that has a link here.
    pub fn died(&self) {
        self.dead.store(true, Ordering::Release); // [death], with the count below
        for port in &self.ports {
            port.deaths.fetch_add(1, Ordering::Release);
            port.ring();
        }
    }

    /// Ends the connection for both sides; the peer sees its links close.
    pub fn shut(&self) {
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.register.leave(self.number);
    }
}
