//! Listening, connecting, and the handshake that exchanges addresses, queue pairs and keys.
//!
//! Threads other than the ports' run the handshake. `join.rs` has what both ends do with the messages.
//!
//! ```text
//!   worker                                hub
//!   connect ----------------------------> accept
//!   Hello{name, NICs, proof} ----------> Hello         the layer above finds the token
//!          <------------------ Ports{bytes, addresses}  either end may send Refused{why} from here on
//!   Trial{NICs, queue pairs} ----------> queue pairs to RTS   for pairs of NICs that were not tried; again for other pairs
//!          <---------------- Tried{queue pairs}
//!   a write of nothing over each
//!   Unreached{ports} ------------------> Ports again with other NICs, as long as there are ports
//!   Links{window, queue pairs, keys} ---> queue pairs to RTS
//!          <---------------- Links{window, queue pairs, keys}
//!   queue pairs to RTS; Ready ----------> Joined
//!   Joined
//! ```

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use super::join;
use super::message::{self, Message};
use super::stream::MessageStream;
use crate::handshake::{Joined, Receive};
use crate::memory::{RecvWindow, SendWindow, WindowError};
use crate::plan::{PlannedLink, check_ports, ports_of};
use crate::proof::{PROOF, name_of, proves};
use crate::verbs::error::VerbsError;
use crate::verbs::group::Group;
use crate::verbs::port::Endpoint;

/// The factor by which the timeouts of later messages exceed that of the hello. Between messages, an admitted
/// peer does slow work: it registers its windows, at 10 GB/s and one NIC after another. It also resolves the
/// addresses of its queue pairs. Nobody waits so long for a dead peer, because the end of its socket ends the
/// wait.
const LATER: u32 = 12;

/// The error of a handshake over RDMA.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The socket failed.
    #[error(
        "{doing} at RDMA address {address}: {error}; is the hub alive, and does this machine reach the address over TCP?"
    )]
    Socket {
        /// The action that was tried.
        doing: &'static str,
        /// The address.
        address: SocketAddr,
        /// The kernel's answer.
        error: io::Error,
    },
    /// The other end refused the connection.
    #[error("the other end refused the RDMA connection: {0}")]
    Refused(String),
    /// The other end sent bytes that are not a message of the handshake.
    #[error("the RDMA handshake failed: {0}")]
    Nonsense(String),
    /// No NIC of this end reaches the NIC of a port of the hub.
    #[error("no path between the NICs of worker and hub: {0}")]
    NoPath(String),
    /// A window could not be made, or is too small.
    #[error(transparent)]
    Window(#[from] WindowError),
    /// A NIC failed.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
}

/// The hub's socket.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    address: SocketAddr,
}

impl Listener {
    /// Listens at `address`. Port 0 stands for any free port.
    pub fn bind(address: SocketAddr) -> Result<Self, ConnectError> {
        let fail = |error| ConnectError::Socket { doing: "listening", address, error };
        let socket = TcpListener::bind(address).map_err(fail)?;
        let address = socket.local_addr().map_err(fail)?;
        Ok(Listener { socket, address })
    }

    /// Returns the address of the socket. A hub that listens at all addresses gives workers another address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits for the next connection. Returns `Ok(None)` once [`stop`](Self::stop) was called.
    pub fn accept(&self) -> Result<Option<Accepted>, ConnectError> {
        match self.socket.accept() {
            Ok((stream, _)) => Ok(Some(Accepted { stream })),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(None),
            Err(error) => Err(ConnectError::Socket { doing: "accepting", address: self.address, error }),
        }
    }

    /// Ends `accept` in each thread that waits in it.
    pub fn stop(&self) {
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }
}

/// A connection before its handshake.
#[derive(Debug)]
pub struct Accepted {
    stream: TcpStream,
}

impl Accepted {
    /// Reads the peer's hello within `timeout`. Each later step may take twelve times as long.
    pub fn hello(self, timeout: Duration) -> Result<Hello, ConnectError> {
        let nonsense = |error: io::Error| ConnectError::Nonsense(error.to_string());
        let mut stream = MessageStream::new(self.stream, timeout).map_err(nonsense)?;
        match stream.receive() {
            Ok(Message::Hello { hello, proof }) => Ok(Hello { stream, token: hello.name, hello, proof }),
            Ok(Message::Refused(why)) => Err(ConnectError::Refused(why)),
            Ok(other) => Err(refuse(&mut stream, join::unexpected("a hello", &other))),
            Err(error) => Err(refuse(&mut stream, nonsense(error))),
        }
    }
}

impl AsFd for Accepted {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Sends the reason of a refusal to the other end.
pub(in crate::verbs) fn refuse(stream: &mut MessageStream, error: ConnectError) -> ConnectError {
    // Nothing is sent to a peer that has refused, because it has already closed the connection.
    if !matches!(error, ConnectError::Refused(_)) {
        let _ = stream.send(&Message::Refused(error.to_string()));
    }
    error
}

/// A peer that asks for admission.
#[derive(Debug)]
pub struct Hello {
    stream: MessageStream,
    /// The worker's token after the check of its proof. Before the check, the name that the hello uses for
    /// the token.
    token: [u8; 16],
    hello: message::Hello,
    proof: [u8; PROOF],
}

impl Hello {
    /// Returns the worker's token after [`identify`](Self::identify). Before that call, returns the name that
    /// the hello uses for the token.
    pub fn token(&self) -> [u8; 16] {
        self.token
    }

    /// Checks the proof of the peer's token. `token_of` finds the token by the name that the hello shows.
    pub fn identify(&mut self, token_of: impl FnOnce([u8; 16]) -> Option<[u8; 16]>) {
        let (name, said) = (self.hello.name, self.hello.text());
        let proven = |&token: &[u8; 16]| name == name_of(token) && proves(token, &said, &self.proof);
        if let Some(token) = token_of(name).filter(proven) {
            self.token = token;
        }
    }

    /// Returns the address from which the worker connected.
    pub fn peer(&self) -> String {
        self.stream.peer()
    }

    /// Refuses the peer, with a reason.
    pub fn refuse(mut self, why: &str) {
        let _ = self.stream.send(&Message::Refused(why.to_owned()));
    }

    /// Admits the peer. This end's posts come from `ours`, and a new window of `recv_bytes` receives the
    /// peer's posts. The links are those of `plan`, and the hello must name the same links. `place` is called
    /// when the window is mapped and not registered yet. Registration allocates all pages that no thread has
    /// touched: a page that a core touches in `place` lies on the core's node. If no NIC of the peer reaches
    /// a NIC of this end, `no_path` is called before the peer is notified.
    pub fn welcome(
        self,
        group: &Arc<Group>,
        ours: &Arc<SendWindow>,
        recv_bytes: usize,
        plan: &[PlannedLink],
        place: impl FnOnce(&RecvWindow),
        no_path: impl FnOnce(),
    ) -> Result<Joined<Endpoint>, ConnectError> {
        let Hello { mut stream, hello: message::Hello { send_bytes, links, nics, .. }, .. } = self;
        if let Err(why) = check_ports(&links, plan) {
            return Err(refuse(&mut stream, ConnectError::Nonsense(why)));
        }
        if send_bytes < recv_bytes as u64 {
            let error = WindowError::TooSmall { expected: recv_bytes, seen: send_bytes };
            return Err(refuse(&mut stream, error.into()));
        }
        stream.take_time(LATER);
        match join::welcome(&mut stream, group, &nics, ours, recv_bytes, plan, place) {
            Ok(parts) => parts.watched(group, stream),
            Err(error) => {
                if matches!(error, ConnectError::NoPath(_)) {
                    no_path();
                }
                Err(refuse(&mut stream, error))
            }
        }
    }
}

/// Connects to a hub's [`Listener`]. This end's posts come from `ours`, `receive` gets the hub's posts, and
/// the links are those of `plan`. `timeout` applies to each step.
pub fn connect(
    address: SocketAddr,
    token: [u8; 16],
    group: &Arc<Group>,
    ours: &Arc<SendWindow>,
    receive: Receive,
    plan: &[PlannedLink],
    timeout: Duration,
) -> Result<Joined<Endpoint>, ConnectError> {
    let dial = |error| ConnectError::Socket { doing: "connecting", address, error };
    let mut stream = MessageStream::connect(address, timeout).map_err(dial)?;
    let nics = join::nics_to_be_near(group);
    let hello = Message::hello(token, ours.bytes() as u64, ports_of(plan), nics);
    let talk = |error| ConnectError::Socket { doing: "sending the hello", address, error };
    stream.send(&hello).map_err(talk)?;
    match join::connect(&mut stream, address, group, ours, receive, plan) {
        Ok(parts) => parts.watched(group, stream),
        Err(error) => Err(refuse(&mut stream, error)),
    }
}
