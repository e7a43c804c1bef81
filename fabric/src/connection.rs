//! A connection: the socket of one handshake, which lives as long as its links.
//!
//! Shared by the ports that have a link of it and by the watch. Knows neither transport nor link: the
//! socket's end is the end of all of them.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::net::Shutdown;

use crate::watch::{Register, Watch, Watched};

/// What a port shares with the watch.
pub(crate) trait Alarm: Send + Sync + std::fmt::Debug {
    /// One of the port's connections ended: counts it, and wakes the port.
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
    /// A connection over `socket`, watched from now on.
    pub fn watched(watch: &Watch, socket: OwnedFd, ports: Vec<Arc<dyn Alarm>>) -> std::io::Result<Arc<Self>> {
        let register = Arc::clone(watch.register());
        let number = register.number();
        let connection = Arc::new(Connection { number, socket, ports, register, dead: false.into() });
        let watched: Arc<dyn Watched> = connection.clone();
        watch.add_socket(number, &connection.socket, &watched)?;
        Ok(connection)
    }

    /// Whether the socket ended; the ports look when their alarm went.
    pub fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire) // [death]
    }

    /// Ends the connection for both sides; the peer sees its links close.
    pub fn shut(&self) {
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
    }
}

impl Watched for Connection {
    /// The socket ended: tell every port that has a link here.
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
