//! A connection: the socket of one handshake, which lives as long as its links.
//!
//! Shared by the watch and by the ports that have a link of the connection. Knows neither transport nor link: the
//! end of the socket is the end of all links.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::net::Shutdown;

use crate::watch::{Register, Watch, Watched};

/// What a port shares with the watch.
pub(crate) trait Alarm: Send + Sync + std::fmt::Debug {
    /// Counts that a connection of the port ended, and wakes the port.
    fn ended(&self);
}

#[derive(Debug)]
pub(crate) struct Connection {
    pub number: u64,
    socket: OwnedFd,
    /// Ports of this end that have a link of the connection.
    ports: Vec<Arc<dyn Alarm>>,
    register: Arc<Register>,
    dead: AtomicBool,
}

impl Connection {
    /// A connection over `socket`, which the watch looks after from now on.
    pub fn watched(watch: &Watch, socket: OwnedFd, ports: Vec<Arc<dyn Alarm>>) -> std::io::Result<Arc<Self>> {
        let register = Arc::clone(watch.register());
        let number = register.number();
        let connection = Arc::new(Connection { number, socket, ports, register, dead: false.into() });
        let watched: Arc<dyn Watched> = connection.clone();
        watch.add_socket(number, &connection.socket, &watched)?;
        Ok(connection)
    }

    /// Whether the socket ended. A port asks after its alarm went.
    pub fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire) // [death]
    }

    /// Ends the connection for both sides; the peer sees its links close.
    pub fn shut(&self) {
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
    }
}

impl Watched for Connection {
    /// The socket ended: tells every port that has a link of it.
    fn ready(&self) {
        self.dead.store(true, Ordering::Release); // [death], with what the ports count
        self.ports.iter().for_each(|port| port.ended());
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.register.leave(self.number);
    }
}
