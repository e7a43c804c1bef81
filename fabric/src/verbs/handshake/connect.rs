//! Listening, connecting, and the handshake that exchanges addresses, queue pairs and keys.
//!
//! Any thread; not the ports'. What both ends make of the messages is in `join.rs`.
//!
//! ```text
//!   worker                                hub
//!   connect ----------------------------> accept
//!   Hello{token, bytes} ----------------> Hello         the layer above looks the token up
//!          <------------------ Ports{bytes, addresses}  or Refused{why}, then and later, from either
//!   Links{window, queue pairs, keys} ---> queue pairs to RTS
//!          <---------------- Links{window, queue pairs, keys}
//!   queue pairs to RTS; Ready ----------> Joined
//!   Joined
//! ```

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use super::join;
use super::message::Message;
use super::pairing::Pairing;
use super::wire::Wire;
use crate::memory::{RecvWindow, SendWindow, WindowError};
use crate::verbs::error::VerbsError;
use crate::verbs::group::Group;
use crate::verbs::port::Endpoint;

/// A handshake failed.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The socket failed.
    #[error(
        "{doing} at RDMA address {address}: {error}; is the hub alive, and does this machine reach the address over TCP?"
    )]
    Socket {
        /// What was tried.
        doing: &'static str,
        /// Where.
        address: SocketAddr,
        /// The kernel's answer.
        error: io::Error,
    },
    /// The other end said no.
    #[error("the other end refused the RDMA connection: {0}")]
    Refused(String),
    /// The other end talks nonsense.
    #[error("the RDMA handshake failed: {0}")]
    Nonsense(String),
    /// No NIC of this end reaches a port of the hub's.
    #[error("no path between the NICs of worker and hub: {0}")]
    NoPath(String),
    /// A window could not be made, or is too small.
    #[error(transparent)]
    Window(#[from] WindowError),
    /// A NIC would not do its part.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
}

/// What a handshake yields: the window that the peer writes, and the links, one per pair of ports.
#[derive(Debug)]
pub struct Joined {
    /// The window that the peer writes, here.
    pub recv: RecvWindow,
    /// The links in the order of the hub's ports; none where the capacity was 0.
    pub endpoints: Vec<Endpoint>,
    /// Which NICs they go over, and why, in the same order.
    pub pairings: Vec<Pairing>,
}

/// The hub's socket.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    address: SocketAddr,
}

impl Listener {
    /// Listens at `address`; port 0 for any that is free.
    pub fn bind(address: SocketAddr) -> Result<Self, ConnectError> {
        let fail = |error| ConnectError::Socket { doing: "listening", address, error };
        let socket = TcpListener::bind(address).map_err(fail)?;
        let address = socket.local_addr().map_err(fail)?;
        Ok(Listener { socket, address })
    }

    /// The address that it listens at. Whoever bound to all addresses tells workers another.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits for the next connection; `Ok(None)` once [`stop`](Self::stop) was called.
    pub fn accept(&self) -> Result<Option<Accepted>, ConnectError> {
        match self.socket.accept() {
            Ok((stream, _)) => Ok(Some(Accepted { stream })),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(None),
            Err(error) => Err(ConnectError::Socket { doing: "accepting", address: self.address, error }),
        }
    }

    /// Ends `accept` in whatever thread it waits.
    pub fn stop(&self) {
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }
}

/// A connection whose handshake has not begun.
#[derive(Debug)]
pub struct Accepted {
    stream: TcpStream,
}

impl Accepted {
    /// Reads the peer's hello. `timeout` is for this and for each later step of the handshake.
    pub fn hello(self, timeout: Duration) -> Result<Hello, ConnectError> {
        let nonsense = |error: io::Error| ConnectError::Nonsense(error.to_string());
        let mut wire = Wire::new(self.stream, timeout).map_err(nonsense)?;
        match wire.receive() {
            Ok(Message::Hello { token, send_bytes }) => Ok(Hello { wire, token, send_bytes }),
            Ok(Message::Refused(why)) => Err(ConnectError::Refused(why)),
            Ok(other) => Err(refuse(&mut wire, join::unexpected("a hello", &other))),
            Err(error) => Err(refuse(&mut wire, nonsense(error))),
        }
    }
}

/// Tells the other end why there will be no connection.
pub(in crate::verbs) fn refuse(wire: &mut Wire, error: ConnectError) -> ConnectError {
    // One that refused has hung up.
    if !matches!(error, ConnectError::Refused(_)) {
        let _ = wire.send(&Message::Refused(error.to_string()));
    }
    error
}

/// A peer that wants in.
#[derive(Debug)]
pub struct Hello {
    wire: Wire,
    token: [u8; 16],
    send_bytes: u64,
}

impl Hello {
    /// The token that says who it is.
    pub fn token(&self) -> [u8; 16] {
        self.token
    }

    /// Where it connected from.
    pub fn peer(&self) -> String {
        self.wire.peer()
    }

    /// Says no, and why.
    pub fn refuse(mut self, why: &str) {
        let _ = self.wire.send(&Message::Refused(why.to_owned()));
    }

    /// Lets the peer in: `ours` is what posts of this end come from, and a window of `recv_bytes` is made
    /// for the peer's. Port `i` of `group` gets a link with room for `capacities[i]` posts each way, or none
    /// where that is 0. `place` is called when the window is mapped and not yet registered, which allocates
    /// its pages: whoever touches one before has it on his node.
    pub fn welcome(
        self,
        group: &Arc<Group>,
        ours: &Arc<SendWindow>,
        recv_bytes: usize,
        capacities: &[u32],
        place: impl FnOnce(&RecvWindow),
    ) -> Result<Joined, ConnectError> {
        assert_eq!(capacities.len(), group.ports.len(), "one capacity a port");
        let Hello { mut wire, send_bytes, .. } = self;
        if send_bytes < recv_bytes as u64 {
            let error = WindowError::TooSmall { expected: recv_bytes, seen: send_bytes };
            return Err(refuse(&mut wire, error.into()));
        }
        match join::welcome(&mut wire, group, ours, recv_bytes, capacities, place) {
            Ok(parts) => parts.watched(group, wire),
            Err(error) => Err(refuse(&mut wire, error)),
        }
    }
}

/// Connects to a hub's [`Listener`]: `ours` is what posts of this end come from, a window of `recv_bytes` is
/// made for the hub's, and all links go to the one port of `group`. The hub's port `i` has a link with room
/// for `capacities[i]` posts, or none where that is 0. `timeout` is for each step.
pub fn connect(
    address: SocketAddr,
    token: [u8; 16],
    group: &Arc<Group>,
    ours: &Arc<SendWindow>,
    recv_bytes: usize,
    capacities: &[u32],
    timeout: Duration,
) -> Result<Joined, ConnectError> {
    let dial = |error| ConnectError::Socket { doing: "connecting", address, error };
    let mut wire = Wire::connect(address, timeout).map_err(dial)?;
    let hello = Message::Hello { token, send_bytes: ours.bytes() as u64 };
    let talk = |error| ConnectError::Socket { doing: "sending the hello", address, error };
    wire.send(&hello).map_err(talk)?;
    match join::connect(&mut wire, address, group, ours, recv_bytes, capacities) {
        Ok(parts) => parts.watched(group, wire),
        Err(error) => Err(refuse(&mut wire, error)),
    }
}
