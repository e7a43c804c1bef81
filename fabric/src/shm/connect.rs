//! Listening, connecting, and the handshake that passes windows, bells and rings.
//!
//! ```text
//!   worker                          hub
//!   connect ----------------------> accept
//!   Hello{token} + windows -------> Hello         the layer above looks the token up
//!           <--- Welcome + windows, bells, rings  or Refused{why}
//! ```

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::retry_on_intr;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect as connect_socket,
    listen, shutdown, socket_with, sockopt,
};

use super::bells::PeerBells;
use super::cells::{Words, rings, rings_bytes};
use super::datagram::senders;
use super::group::Group;
use super::message::{HelloMessage, ReplyMessage, receive, send};
use super::port::Endpoint;
use crate::connection::{Alarm, Connection};
use crate::handshake::{Joined, Receive};
use crate::memory::{RecvWindow, SendWindow, WindowError};
use crate::plan::{LinkPorts, PlannedLink, PortId, check_ports, ports_of, ports_with_links};

/// Connections that wait to be accepted: one for each worker, of which there are at most 1024.
const BACKLOG: i32 = 1024;

/// A handshake failed.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The socket failed.
    #[error(
        "{doing} at shared-memory address {address:?}: {error}; is the hub alive, on this machine and in this network namespace?"
    )]
    Socket {
        /// What was tried.
        doing: &'static str,
        /// Where.
        address: String,
        /// The kernel's answer.
        error: io::Error,
    },
    /// The other end said no.
    #[error("the hub refused the shared-memory connection: {0}")]
    Refused(String),
    /// The other end talks nonsense.
    #[error("the shared-memory handshake failed: {0}")]
    Nonsense(String),
    /// A window could not be opened.
    #[error(transparent)]
    Window(#[from] WindowError),
}

/// The hub's socket: an abstract name, which the kernel forgets with the last holder.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    address: String,
}

impl Listener {
    /// Listens under `address`, any string that no other process of this network namespace uses.
    pub fn bind(address: &str) -> Result<Self, ConnectError> {
        let fail = |error: rustix::io::Errno| socket_error("listening", address, error);
        let socket = new_socket().map_err(fail)?;
        let name = SocketAddrUnix::new_abstract_name(address.as_bytes()).map_err(fail)?;
        bind(&socket, &name).map_err(fail)?;
        listen(&socket, BACKLOG).map_err(fail)?;
        Ok(Listener { socket, address: address.to_owned() })
    }

    /// The address to connect to.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Waits for the next connection; `Ok(None)` once [`stop`](Self::stop) was called.
    pub fn accept(&self) -> Result<Option<Accepted>, ConnectError> {
        match retry_on_intr(|| accept_with(&self.socket, SocketFlags::CLOEXEC)) {
            Ok(socket) => Ok(Some(Accepted { socket })),
            Err(rustix::io::Errno::INVAL) => Ok(None),
            Err(errno) => Err(socket_error("accepting", &self.address, errno)),
        }
    }

    /// Ends `accept` in whatever thread it waits.
    pub fn stop(&self) {
        let _ = shutdown(&self.socket, rustix::net::Shutdown::Both);
    }
}

/// A connection whose handshake has not begun.
#[derive(Debug)]
pub struct Accepted {
    pub(super) socket: OwnedFd,
}

impl Accepted {
    /// Reads the peer's hello, within `timeout`. The layer above lets its token in, whoever the peer's user is.
    pub fn hello(self, timeout: Duration) -> Result<Hello, ConnectError> {
        let nonsense = |error: io::Error| ConnectError::Nonsense(error.to_string());
        let (bytes, fds) = receive(self.socket.as_fd(), timeout).map_err(|error| {
            let _ = send(self.socket.as_fd(), &ReplyMessage::Refused(error.to_string()).encode(), &[]);
            nonsense(error)
        })?;
        match Offer::new(&bytes, fds) {
            Ok(offer) => Ok(Hello { socket: self.socket, offer }),
            Err(why) => {
                let _ = send(self.socket.as_fd(), &ReplyMessage::Refused(why.clone()).encode(), &[]);
                Err(ConnectError::Nonsense(why))
            }
        }
    }
}

impl AsFd for Accepted {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A peer that wants in.
#[derive(Debug)]
pub struct Hello {
    socket: OwnedFd,
    offer: Offer,
}

impl Hello {
    /// The token that says who it is.
    pub fn token(&self) -> [u8; 16] {
        self.offer.message.token
    }

    /// Says no, and why.
    pub fn refuse(self, why: &str) {
        let _ = send(self.socket.as_fd(), &ReplyMessage::Refused(why.to_owned()).encode(), &[]);
    }

    /// Lets the peer in: `ours` goes to it read-only, its window of at least `recv_bytes` comes
    /// here, and the links are those of `plan`, which the hello must name too.
    pub fn welcome(
        self,
        group: &Arc<Group>,
        ours: &SendWindow,
        recv_bytes: usize,
        plan: &[PlannedLink],
    ) -> Result<Joined<Endpoint>, ConnectError> {
        let Hello { socket, offer } = self;
        let opened = offer.open(&socket, group, recv_bytes, plan);
        let (joined, words) = opened.inspect_err(|error| {
            let _ = send(socket.as_fd(), &ReplyMessage::Refused(error.to_string()).encode(), &[]);
        })?;
        let (send_bytes, ports) = (ours.bytes() as u64, group.ports.len() as u32);
        let reply = ReplyMessage::Welcome { send_bytes, ports, name: group.name };
        let fds = group.offer([ours.fd(), group.bells.fd(), words.fd()]);
        send(socket.as_fd(), &reply.encode(), &fds)
            .map_err(|error| ConnectError::Nonsense(format!("sending the welcome: {error}")))?;
        Ok(joined)
    }
}

/// What a hello brought.
#[derive(Debug)]
struct Offer {
    message: HelloMessage,
    window: OwnedFd,
    bells: OwnedFd,
    senders: Vec<OwnedFd>,
}

impl Offer {
    fn new(bytes: &[u8], fds: Vec<OwnedFd>) -> Result<Self, String> {
        let message = HelloMessage::decode(bytes)?;
        let ([window, bells], senders) = offered(fds, message.ports as usize)?;
        Ok(Offer { message, window, bells, senders })
    }

    /// The hub's half of the connection; and the words of its rings.
    fn open(
        self,
        socket: &OwnedFd,
        group: &Arc<Group>,
        recv_bytes: usize,
        plan: &[PlannedLink],
    ) -> Result<(Joined<Endpoint>, Arc<Words>), ConnectError> {
        let Offer { message: HelloMessage { send_bytes, ports, name, links, .. }, window, bells, senders } =
            self;
        check_ports(&links, plan).map_err(ConnectError::Nonsense)?;
        if send_bytes < recv_bytes as u64 {
            return Err(WindowError::TooSmall { expected: recv_bytes, seen: send_bytes }.into());
        }
        let recv = RecvWindow::open(window.as_fd(), recv_bytes)?;
        let bells = PeerBells::open("the worker's bells", name, ports as usize, bells, senders)
            .map_err(ConnectError::Nonsense)?;
        let words = Words::new("rings", rings_bytes(plan)).map_err(WindowError::Map)?;
        let connection = watched(group, socket, &ports_with_links(plan, |ports| ports.hub))?;
        let endpoint = |((up, down), ports): (_, &LinkPorts)| {
            let port = Arc::clone(&group.ports[ports.hub.index()]);
            Endpoint::new(Arc::clone(&connection), port, down, up, bells.of(ports.joiner))
        };
        let endpoints = rings(&words, plan).into_iter().zip(&links).map(endpoint).collect();
        Ok((Joined::new(Arc::new(recv), endpoints), words))
    }
}

/// Connects to a hub's [`Listener`]: `ours` goes to it read-only, and the links are those of `plan`. Its
/// window is seen through `receive_into`.
pub fn connect(
    address: &str,
    token: [u8; 16],
    group: &Arc<Group>,
    ours: &SendWindow,
    receive_into: impl Into<Receive>,
    plan: &[PlannedLink],
    timeout: Duration,
) -> Result<Joined<Endpoint>, ConnectError> {
    let socket = dial(address, timeout)?;
    let (send_bytes, ports) = (ours.bytes() as u64, group.ports.len() as u32);
    let hello = HelloMessage { token, send_bytes, ports, name: group.name, links: ports_of(plan) };
    let talk = |doing| move |error| ConnectError::Socket { doing, address: address.into(), error };
    send(socket.as_fd(), &hello.encode(), &group.offer([ours.fd(), group.bells.fd()]))
        .map_err(talk("sending the hello"))?;
    let answer = receive(socket.as_fd(), timeout).map_err(talk("waiting for the welcome"))?;
    welcomed(answer, &socket, group, receive_into, plan)
}

fn dial(address: &str, timeout: Duration) -> Result<OwnedFd, ConnectError> {
    let fail = |doing| move |error: rustix::io::Errno| socket_error(doing, address, error);
    let socket = new_socket().map_err(fail("opening a socket"))?;
    let name = SocketAddrUnix::new_abstract_name(address.as_bytes()).map_err(fail("naming the hub"))?;
    // When a hub accepts nobody, its queue of connections is full, and connecting waits too.
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(timeout))
        .map_err(fail("setting a time-out"))?;
    connect_socket(&socket, &name).map_err(|errno| match errno {
        rustix::io::Errno::AGAIN => {
            let what = format!("the hub accepted nobody for {timeout:?}");
            let error = io::Error::new(io::ErrorKind::TimedOut, what);
            ConnectError::Socket { doing: "connecting", address: address.into(), error }
        }
        errno => fail("connecting")(errno),
    })?;
    Ok(socket)
}

/// The worker's half of a connection, from the hub's answer to its hello.
pub(super) fn welcomed(
    (bytes, fds): (Vec<u8>, Vec<OwnedFd>),
    socket: &OwnedFd,
    group: &Arc<Group>,
    receive_into: impl Into<Receive>,
    plan: &[PlannedLink],
) -> Result<Joined<Endpoint>, ConnectError> {
    let (ports, name) = match ReplyMessage::decode(&bytes).map_err(ConnectError::Nonsense)? {
        ReplyMessage::Refused(why) => return Err(ConnectError::Refused(why)),
        ReplyMessage::Welcome { ports, name, .. } => (ports as usize, name),
    };
    let planned = ports_with_links(plan, |ports| ports.hub);
    if planned.last().is_some_and(|last| last.index() >= ports) {
        return Err(ConnectError::Nonsense(format!("the hub has {ports} ports, the plan names {planned:?}")));
    }
    let ([window, bells, words], senders) = offered(fds, ports).map_err(ConnectError::Nonsense)?;
    let recv = receive_into.into().view(window.as_fd())?;
    let bells =
        PeerBells::open("the hub's bells", name, ports, bells, senders).map_err(ConnectError::Nonsense)?;
    let words = Words::open("rings", words, rings_bytes(plan)).map_err(ConnectError::Nonsense)?;
    let connection = watched(group, socket, &ports_with_links(plan, |ports| ports.joiner))?;
    let endpoint = |((up, down), link): (_, &PlannedLink)| {
        let port = Arc::clone(&group.ports[link.ports.joiner.index()]);
        Endpoint::new(Arc::clone(&connection), port, up, down, bells.of(link.ports.hub))
    };
    let endpoints = rings(&words, plan).into_iter().zip(plan).map(endpoint).collect();
    Ok(Joined::new(recv, endpoints))
}

/// The first `N` descriptors that a peer with so many ports handed over, and its senders.
fn offered<const N: usize>(
    mut fds: Vec<OwnedFd>,
    ports: usize,
) -> Result<([OwnedFd; N], Vec<OwnedFd>), String> {
    let expected = N + senders(ports);
    if fds.len() != expected {
        return Err(format!("expected {expected} descriptors, got {}", fds.len()));
    }
    let senders = fds.split_off(N);
    Ok((fds.try_into().expect("their number was checked"), senders))
}

/// The connection of these ports of the group.
fn watched(group: &Arc<Group>, socket: &OwnedFd, ports: &[PortId]) -> Result<Arc<Connection>, ConnectError> {
    let nonsense = |error: io::Error| ConnectError::Nonsense(format!("watching the socket: {error}"));
    let ports = ports.iter().map(|port| Arc::clone(&group.ports[port.index()]) as Arc<dyn Alarm>).collect();
    Connection::watched(&group.watch, socket.try_clone().map_err(nonsense)?, ports).map_err(nonsense)
}

fn new_socket() -> Result<OwnedFd, rustix::io::Errno> {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
}

fn socket_error(doing: &'static str, address: &str, errno: rustix::io::Errno) -> ConnectError {
    ConnectError::Socket { doing, address: address.to_owned(), error: errno.into() }
}
