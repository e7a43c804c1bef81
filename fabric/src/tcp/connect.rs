//! Listening, connecting, and the handshake. A worker's connections arrive one by one, and the hub admits the
//! worker when all have arrived ([`gathering`](super::gathering)).
//!
//! ```text
//!   worker                                   hub
//!   connection i: Hello{i of n, proof} ----> gathered by token until there are n
//!                                            refused at once if no token proves it
//!                 <---- Welcome, or Refused{why}, on each
//! ```

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown, sockopt};
use zerocopy::{FromBytes, IntoBytes};

use super::congestion::{Congestion, CongestionError, Controlled};
use super::frames::Frames;
use super::gathering::{Gathered, Gathering, Said};
use super::io::{UNSENT_BYTES, limit_unsent};
use super::link::Endpoint;
use super::message::{HelloMessage, ReplyMessage, Verdict};
use crate::handshake::{Joined, Receive};
use crate::memory::{RecvWindow, SendWindow, WindowError};
use crate::plan::{LinkPorts, PlannedLink, check_ports};

/// The time after which a peer that acknowledges nothing counts as gone.
const SILENCE: Duration = Duration::from_secs(30);
/// The idle time after which the kernel probes a connection.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// Returns advice about a socket that failed. If a hub cannot listen, the advice does not mention a peer.
fn advice(doing: &str) -> &'static str {
    match doing {
        "listening at" => "; give another address, or stop the program that listens at this address",
        "accepting at" => "",
        _ => "; is the hub alive, and is this port open between the machines?",
    }
}

/// The error of a handshake over TCP.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The socket failed.
    #[error("{doing} {address} by TCP: {error}{}", advice(doing))]
    Socket {
        /// The action that was tried.
        doing: &'static str,
        /// The address.
        address: SocketAddr,
        /// The kernel's answer.
        error: io::Error,
    },
    /// The other end refused the connection.
    #[error("the hub refused the TCP connection: {0}")]
    Refused(String),
    /// The other end sent bytes that are not a message of the handshake.
    #[error("the TCP handshake failed: {0}")]
    Nonsense(String),
    /// Some of the worker's connections did not arrive.
    #[error(
        "of the worker's {links} TCP connections, one for each link, the connections of links {came} arrived, but those of \
         links {lack} did not arrive within {limit:?}; is the worker alive, and does each connection get through?"
    )]
    Incomplete {
        /// The number of the worker's links.
        links: usize,
        /// The links whose connections arrived.
        came: String,
        /// The links whose connections did not arrive.
        lack: String,
        /// The time limit, counted from the first connection.
        limit: Duration,
    },
    /// The kernel refuses the requested congestion control.
    #[error(transparent)]
    Congestion(#[from] CongestionError),
    /// The window could not be made, or is too small.
    #[error(transparent)]
    Window(#[from] WindowError),
}

/// The options of one end for its connections.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The frame format. Frames have checksums if either end asks for them.
    pub frames: Frames,
    /// The congestion control for the bytes that this end sends.
    pub congestion: Congestion,
}

/// The hub's socket, and the workers of which some connections are missing.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    address: SocketAddr,
    congestion: Arc<Congestion>,
    gathering: Arc<Gathering>,
}

impl Listener {
    /// Listens at `address`. Port 0 stands for any free port.
    pub fn bind(address: SocketAddr) -> Result<Self, ConnectError> {
        let fail = |error| ConnectError::Socket { doing: "listening at", address, error };
        let socket = TcpListener::bind(address).map_err(fail)?;
        let address = socket.local_addr().map_err(fail)?;
        Ok(Listener { socket, address, congestion: Arc::default(), gathering: Arc::default() })
    }

    /// Sets the congestion control for accepted connections. Also returns the algorithm that the connections
    /// get. If the algorithm depends on the path, returns the algorithm for short paths.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses the requested algorithm.
    pub fn with_congestion(self, congestion: Congestion) -> Result<(Self, Controlled), ConnectError> {
        let controlled = congestion.control_all(self.socket.as_fd())?;
        Ok((Listener { congestion: Arc::new(congestion), ..self }, controlled))
    }

    /// Returns the address to connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits for the next connection. Returns `Ok(None)` once [`stop`](Self::stop) was called.
    pub fn accept(&self) -> Result<Option<Accepted>, ConnectError> {
        match self.socket.accept() {
            Ok((socket, peer)) => {
                let (congestion, gathering) = (Arc::clone(&self.congestion), Arc::clone(&self.gathering));
                Ok(Some(Accepted { socket, peer, congestion, gathering }))
            }
            Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => Ok(None),
            Err(error) => Err(ConnectError::Socket { doing: "accepting at", address: self.address, error }),
        }
    }

    /// Ends `accept` in each thread that waits in it.
    pub fn stop(&self) {
        let _ = shutdown(&self.socket, Shutdown::Both);
    }
}

/// A connection before its handshake.
#[derive(Debug)]
pub struct Accepted {
    socket: TcpStream,
    peer: SocketAddr,
    congestion: Arc<Congestion>,
    gathering: Arc<Gathering>,
}

impl Accepted {
    /// Reads the hello of one connection, within `timeout`.
    pub fn hello(mut self, timeout: Duration) -> Result<Hello, ConnectError> {
        let peer = self.peer;
        tune(&self.socket)
            .map_err(|errno| socket_error("setting up the connection of", peer, errno.into()))?;
        self.congestion.control(&self.socket)?;
        let mut bytes = [0; size_of::<HelloMessage>()];
        read_within(&mut self.socket, &mut bytes, timeout).map_err(|error| {
            refuse(&mut self.socket, &error.to_string());
            ConnectError::Nonsense(format!("the hello of {peer}: {error}"))
        })?;
        let message = HelloMessage::read_from_bytes(&bytes).expect("it has its size");
        match message.check() {
            Ok(message) => {
                let (token, links) = (message.name, vec![(self.socket, message.ports())]);
                Ok(Hello { token, message, links, gathering: self.gathering })
            }
            Err(why) => {
                refuse(&mut self.socket, &why);
                Err(ConnectError::Nonsense(format!("the hello of {peer}: {why}")))
            }
        }
    }
}

impl AsFd for Accepted {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A peer that asks for admission. The value holds one connection of the peer, or all of them after
/// [`gather`](Self::gather).
#[derive(Debug)]
pub struct Hello {
    /// The worker's token after the check of its proof. Before the check, the name that the hello uses for
    /// the token.
    pub(super) token: [u8; 16],
    pub(super) message: HelloMessage,
    pub(super) links: Vec<Said>,
    pub(super) gathering: Arc<Gathering>,
}

impl Hello {
    /// Returns the worker's token after [`identify`](Self::identify). Before that call, returns the name that
    /// the hello uses for the token.
    pub fn token(&self) -> [u8; 16] {
        self.token
    }

    /// Checks the proof of the peer's token. `token_of` finds the token by the name that the hello shows.
    pub fn identify(&mut self, token_of: impl FnOnce([u8; 16]) -> Option<[u8; 16]>) {
        if let Some(token) = token_of(self.message.name).filter(|&token| self.message.is_proven_by(token)) {
            self.token = token;
        }
    }

    /// Refuses the peer, with a reason.
    pub fn refuse(mut self, why: &str) {
        self.links.iter_mut().for_each(|(socket, _)| refuse(socket, why));
    }

    /// Adds this connection to the peer's other connections. The caller must know the token, because a
    /// waiting connection costs memory and a descriptor.
    pub fn gather(self) -> Result<Gathered, ConnectError> {
        Arc::clone(&self.gathering).add(self)
    }

    /// Admits the peer. The hub's posts come from `ours`, and a new window of `recv_bytes` receives the
    /// peer's bytes. The links are those of `plan`, and the hellos must name the same links. `place` gets the
    /// window before any bytes arrive. So the owners of its pages can touch the pages first. Frames have
    /// checksums if `frames` or the peer ask for them.
    pub fn welcome(
        mut self,
        frames: Frames,
        ours: &Arc<SendWindow>,
        recv_bytes: usize,
        plan: &[PlannedLink],
        place: impl FnOnce(&RecvWindow),
    ) -> Result<Joined<Endpoint>, ConnectError> {
        let made = self.check(recv_bytes, plan).and_then(|()| Ok(RecvWindow::local(recv_bytes)?));
        let recv = made.inspect_err(|error| {
            self.links.iter_mut().for_each(|(socket, _)| refuse(socket, &error.to_string()));
        })?;
        place(&recv);
        let frames = frames.agreed(self.message.frames());
        let welcome = ReplyMessage::welcome(ours.bytes(), frames);
        for (socket, _) in &mut self.links {
            socket
                .write_all(welcome.as_bytes())
                .map_err(|error| ConnectError::Nonsense(format!("sending the welcome: {error}")))?;
        }
        let sockets = self.links.into_iter().map(|(socket, _)| (socket, frames));
        joined(sockets, ours, Arc::new(recv), plan)
    }

    fn check(&self, recv_bytes: usize, plan: &[PlannedLink]) -> Result<(), ConnectError> {
        let named: Vec<LinkPorts> = self.links.iter().map(|&(_, ports)| ports).collect();
        check_ports(&named, plan).map_err(ConnectError::Nonsense)?;
        let seen = self.message.window_bytes();
        if seen != recv_bytes as u64 {
            return Err(WindowError::TooSmall { expected: recv_bytes, seen }.into());
        }
        Ok(())
    }
}

/// Connects to a hub whose port `i` listens at `addresses[i]`. This end's posts come from `ours`, and the
/// links are those of `plan`.
///
/// # Panics
/// Panics if the plan names a port of the hub that has no address.
pub fn connect(
    addresses: &[SocketAddr],
    token: [u8; 16],
    options: &Options,
    ours: &Arc<SendWindow>,
    receive: Receive,
    plan: &[PlannedLink],
    timeout: Duration,
) -> Result<Joined<Endpoint>, ConnectError> {
    let addresses: Vec<SocketAddr> = plan.iter().map(|link| addresses[link.ports.hub.index()]).collect();
    let recv = receive.local()?;
    let (frames, mut controlled) = (options.frames, None);
    let mut sockets = Vec::with_capacity(addresses.len());
    for (link, &address) in addresses.iter().enumerate() {
        let fail = |doing| move |error| socket_error(doing, address, error);
        let mut socket = TcpStream::connect_timeout(&address, timeout).map_err(fail("connecting to"))?;
        tune(&socket).map_err(|errno| socket_error("setting up the connection to", address, errno.into()))?;
        controlled = Some(options.congestion.control(&socket)?);
        let hello = HelloMessage::new(token, link, plan, ours.bytes(), frames);
        socket.write_all(hello.as_bytes()).map_err(fail("sending the hello to"))?;
        sockets.push(socket);
    }
    let agreed = |(mut socket, &address): (TcpStream, _)| {
        let agreed = answered(&mut socket, address, recv.bytes(), timeout)?;
        if agreed != frames.agreed(agreed) {
            let why = "this worker wants checksums, and the hub's welcome agrees to none; install the same version at both ends";
            return Err(ConnectError::Nonsense(why.into()));
        }
        Ok((socket, agreed))
    };
    let sockets: Vec<_> = sockets.into_iter().zip(&addresses).map(agreed).collect::<Result<_, _>>()?;
    Ok(Joined { congestion: controlled.map(|it| it.to_string()), ..joined(sockets, ours, recv, plan)? })
}

/// Waits for the hub's answer on one connection. Returns the frame format of both ends.
fn answered(
    socket: &mut TcpStream,
    address: SocketAddr,
    recv_bytes: usize,
    timeout: Duration,
) -> Result<Frames, ConnectError> {
    let fail = |error| socket_error("waiting for the welcome of", address, error);
    let mut bytes = [0; size_of::<ReplyMessage>()];
    read_within(socket, &mut bytes, timeout).map_err(fail)?;
    let reply = ReplyMessage::read_from_bytes(&bytes).expect("it has its size");
    match reply.check().map_err(ConnectError::Nonsense)? {
        Verdict::Welcome { window_bytes, frames } if window_bytes == recv_bytes as u64 => Ok(frames),
        Verdict::Welcome { window_bytes, .. } => {
            Err(WindowError::TooSmall { expected: recv_bytes, seen: window_bytes }.into())
        }
        Verdict::Refused { words } => {
            let mut why = vec![0; words];
            read_within(socket, &mut why, timeout).map_err(fail)?;
            Err(ConnectError::Refused(String::from_utf8_lossy(&why).into_owned()))
        }
    }
}

fn joined(
    sockets: impl IntoIterator<Item = (TcpStream, Frames)>,
    ours: &Arc<SendWindow>,
    recv: Arc<RecvWindow>,
    plan: &[PlannedLink],
) -> Result<Joined<Endpoint>, ConnectError> {
    let endpoints = sockets.into_iter().zip(plan).map(|((socket, frames), link)| {
        socket.set_nonblocking(true)?;
        let (socket, ours, recv) = (OwnedFd::from(socket), Arc::clone(ours), Arc::clone(&recv));
        Ok(Endpoint::new(socket, ours, recv, link.capacity, frames))
    });
    let endpoints: io::Result<_> = endpoints.collect();
    let endpoints = endpoints.map_err(|error| ConnectError::Nonsense(format!("a socket: {error}")))?;
    Ok(Joined::new(recv, endpoints))
}

/// Sets the socket options of a connection of the data path.
fn tune(socket: &TcpStream) -> Result<(), Errno> {
    sockopt::set_tcp_nodelay(socket, true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, KEEPALIVE)?;
    sockopt::set_tcp_keepintvl(socket, KEEPALIVE / 2)?;
    sockopt::set_tcp_user_timeout(socket, SILENCE.as_millis() as u32)?;
    limit_unsent(socket.as_fd(), UNSENT_BYTES)
}

/// Fills all of `bytes` within `timeout`, even if the bytes arrive slowly.
fn read_within(socket: &mut TcpStream, bytes: &mut [u8], timeout: Duration) -> io::Result<()> {
    let until = Instant::now() + timeout;
    let mut filled = 0;
    while filled < bytes.len() {
        let left = until.saturating_duration_since(Instant::now());
        let silent =
            || io::Error::new(io::ErrorKind::TimedOut, format!("the other end said nothing for {timeout:?}"));
        if left.is_zero() {
            return Err(silent());
        }
        socket.set_read_timeout(Some(left))?;
        match socket.read(&mut bytes[filled..]) {
            Ok(0) => {
                let what = "the other end hung up during the handshake";
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, what));
            }
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(silent()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Sends the reason of the refusal to the peer. Does not wait for a peer that does not read.
pub(super) fn refuse(socket: &mut TcpStream, why: &str) {
    let _ = socket.write_all(&ReplyMessage::refused(why));
}

fn socket_error(doing: &'static str, address: SocketAddr, error: io::Error) -> ConnectError {
    ConnectError::Socket { doing, address, error }
}
