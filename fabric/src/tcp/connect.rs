//! Listening, connecting, and the handshake. A worker's connections come one by one, and the worker is let in when
//! all have come.
//!
//! ```text
//!   worker                                   hub
//!   connection i: Hello{token, i of n} ----> gathered by token until there are n
//!                 <---- Welcome, or Refused{why}, on each
//! ```

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown, sockopt};
use zerocopy::{FromBytes, IntoBytes};

use super::io::{UNSENT_BYTES, limit_unsent};
use super::link::Endpoint;
use super::message::{HelloMessage, ReplyMessage, Verdict};
use crate::handshake::{Joined, Receive};
use crate::memory::{RecvWindow, SendWindow, WindowError};
use crate::plan::{LinkPorts, PlannedLink, check_ports};

/// A peer that acknowledges nothing for this long is taken for gone.
const SILENCE: Duration = Duration::from_secs(30);
/// The kernel probes a connection that was idle for this long.
const KEEPALIVE: Duration = Duration::from_secs(10);
/// The most workers at once whose connections have not all come.
const MAX_GATHERING: usize = 1024;

/// A handshake failed.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The socket failed.
    #[error(
        "{doing} {address} by TCP: {error}; is the hub alive, and is this port open between the machines?"
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
    #[error("the hub refused the TCP connection: {0}")]
    Refused(String),
    /// The other end talks nonsense.
    #[error("the TCP handshake failed: {0}")]
    Nonsense(String),
    /// The window could not be made, or is too small.
    #[error(transparent)]
    Window(#[from] WindowError),
}

/// The hub's socket, and the workers whose connections have not all come.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    address: SocketAddr,
    gathering: Arc<Gathering>,
}

impl Listener {
    /// Listens at `address`; port 0 takes a free one.
    pub fn bind(address: SocketAddr) -> Result<Self, ConnectError> {
        let fail = |error| ConnectError::Socket { doing: "listening at", address, error };
        let socket = TcpListener::bind(address).map_err(fail)?;
        let address = socket.local_addr().map_err(fail)?;
        Ok(Listener { socket, address, gathering: Arc::default() })
    }

    /// The address to connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits for the next connection; `Ok(None)` once [`stop`](Self::stop) was called.
    pub fn accept(&self) -> Result<Option<Accepted>, ConnectError> {
        match self.socket.accept() {
            Ok((socket, peer)) => Ok(Some(Accepted { socket, peer, gathering: Arc::clone(&self.gathering) })),
            Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => Ok(None),
            Err(error) => Err(ConnectError::Socket { doing: "accepting at", address: self.address, error }),
        }
    }

    /// Ends `accept` in whatever thread it waits.
    pub fn stop(&self) {
        let _ = shutdown(&self.socket, Shutdown::Both);
    }
}

/// A connection whose handshake has not begun.
#[derive(Debug)]
pub struct Accepted {
    socket: TcpStream,
    peer: SocketAddr,
    gathering: Arc<Gathering>,
}

impl Accepted {
    /// Reads the hello of one connection, within `timeout`. `None` while other connections of the worker are still to
    /// come. The last hello yields all connections.
    pub fn hello(mut self, timeout: Duration) -> Result<Option<Hello>, ConnectError> {
        let peer = self.peer;
        tune(&self.socket)
            .map_err(|errno| socket_error("setting up the connection of", peer, errno.into()))?;
        let mut bytes = [0; size_of::<HelloMessage>()];
        read_within(&mut self.socket, &mut bytes, timeout)
            .map_err(|error| ConnectError::Nonsense(format!("the hello of {peer}: {error}")))?;
        let message = HelloMessage::read_from_bytes(&bytes).expect("it has its size");
        let told = message.check().and_then(|message| {
            let Accepted { socket, gathering, .. } = &self;
            Ok((message, gathering.add(message, socket.try_clone().map_err(|e| e.to_string())?, timeout)?))
        });
        match told {
            Ok((_, None)) => Ok(None),
            Ok((message, Some(links))) => Ok(Some(Hello { message, links })),
            Err(why) => {
                refuse(&mut self.socket, &why);
                Err(ConnectError::Nonsense(format!("the hello of {peer}: {why}")))
            }
        }
    }
}

/// Connections of workers that still wait for others.
#[derive(Debug, Default)]
struct Gathering(Mutex<HashMap<[u8; 16], Partial>>);

#[derive(Debug)]
struct Partial {
    message: HelloMessage,
    links: Vec<Option<(TcpStream, LinkPorts)>>,
    until: Instant,
}

impl Gathering {
    /// Adds a connection. Returns all connections of the worker if this was the last.
    fn add(
        &self,
        message: HelloMessage,
        socket: TcpStream,
        timeout: Duration,
    ) -> Result<Option<Vec<(TcpStream, LinkPorts)>>, String> {
        let mut partials = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let now = Instant::now();
        partials.retain(|_, partial| partial.until > now); // their sockets close
        if partials.len() >= MAX_GATHERING && !partials.contains_key(&message.token) {
            return Err(format!(
                "{MAX_GATHERING} workers have connections open and others missing; try again"
            ));
        }
        let (link, links) = (message.link(), message.links());
        let partial = partials.entry(message.token).or_insert_with(|| Partial {
            message,
            links: (0..links).map(|_| None).collect(),
            until: now + timeout,
        });
        if partial.links.len() != links || partial.message.window_bytes() != message.window_bytes() {
            return Err("another connection of the same worker said otherwise".into());
        }
        if partial.links[link].replace((socket, message.ports())).is_some() {
            return Err(format!("link {link} of the same worker is there already"));
        }
        if partial.links.iter().any(Option::is_none) {
            return Ok(None);
        }
        let whole = partials.remove(&message.token).expect("it was just there");
        Ok(Some(whole.links.into_iter().flatten().collect()))
    }
}

/// A peer that wants in, with all its connections.
#[derive(Debug)]
pub struct Hello {
    message: HelloMessage,
    links: Vec<(TcpStream, LinkPorts)>,
}

impl Hello {
    /// The token that says who it is.
    pub fn token(&self) -> [u8; 16] {
        self.message.token
    }

    /// Says no, and why.
    pub fn refuse(mut self, why: &str) {
        self.links.iter_mut().for_each(|(socket, _)| refuse(socket, why));
    }

    /// Lets the peer in. `ours` is sent to the peer, and a window of `recv_bytes` is made for what it sends. The links
    /// are those of `plan`, which the hellos must name too. `place` sees the window before any bytes arrive, so that the
    /// owners of its pages can touch them.
    pub fn welcome(
        mut self,
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
        let welcome = ReplyMessage::welcome(ours.bytes());
        for (socket, _) in &mut self.links {
            socket
                .write_all(welcome.as_bytes())
                .map_err(|error| ConnectError::Nonsense(format!("sending the welcome: {error}")))?;
        }
        joined(self.links.into_iter().map(|(socket, _)| socket), ours, Arc::new(recv), plan)
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

/// Connects to a hub, whose port `i` listens at `addresses[i]`. `ours` is sent to the hub, and the links are those of
/// `plan`.
///
/// # Panics
/// When the plan names a port of the hub that has no address.
pub fn connect(
    addresses: &[SocketAddr],
    token: [u8; 16],
    ours: &Arc<SendWindow>,
    receive: Receive,
    plan: &[PlannedLink],
    timeout: Duration,
) -> Result<Joined<Endpoint>, ConnectError> {
    let addresses: Vec<SocketAddr> = plan.iter().map(|link| addresses[link.ports.hub.index()]).collect();
    let recv = receive.local()?;
    let mut sockets = Vec::with_capacity(addresses.len());
    for (link, &address) in addresses.iter().enumerate() {
        let fail = |doing| move |error| socket_error(doing, address, error);
        let mut socket = TcpStream::connect_timeout(&address, timeout).map_err(fail("connecting to"))?;
        tune(&socket).map_err(|errno| socket_error("setting up the connection to", address, errno.into()))?;
        let hello = HelloMessage::new(token, link, plan, ours.bytes());
        socket.write_all(hello.as_bytes()).map_err(fail("sending the hello to"))?;
        sockets.push(socket);
    }
    for (socket, &address) in sockets.iter_mut().zip(&addresses) {
        answered(socket, address, recv.bytes(), timeout)?;
    }
    joined(sockets, ours, recv, plan)
}

/// Waits for the hub's answer on one connection.
fn answered(
    socket: &mut TcpStream,
    address: SocketAddr,
    recv_bytes: usize,
    timeout: Duration,
) -> Result<(), ConnectError> {
    let fail = |error| socket_error("waiting for the welcome of", address, error);
    let mut bytes = [0; size_of::<ReplyMessage>()];
    read_within(socket, &mut bytes, timeout).map_err(fail)?;
    let reply = ReplyMessage::read_from_bytes(&bytes).expect("it has its size");
    match reply.check().map_err(ConnectError::Nonsense)? {
        Verdict::Welcome { window_bytes } if window_bytes == recv_bytes as u64 => Ok(()),
        Verdict::Welcome { window_bytes } => {
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
    sockets: impl IntoIterator<Item = TcpStream>,
    ours: &Arc<SendWindow>,
    recv: Arc<RecvWindow>,
    plan: &[PlannedLink],
) -> Result<Joined<Endpoint>, ConnectError> {
    let endpoints = sockets.into_iter().zip(plan).map(|(socket, link)| {
        socket.set_nonblocking(true)?;
        Ok(Endpoint::new(OwnedFd::from(socket), Arc::clone(ours), Arc::clone(&recv), link.capacity))
    });
    let endpoints: io::Result<_> = endpoints.collect();
    let endpoints = endpoints.map_err(|error| ConnectError::Nonsense(format!("a socket: {error}")))?;
    Ok(Joined::new(recv, endpoints))
}

/// Sets the options of a connection of the data path.
fn tune(socket: &TcpStream) -> Result<(), Errno> {
    sockopt::set_tcp_nodelay(socket, true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, KEEPALIVE)?;
    sockopt::set_tcp_keepintvl(socket, KEEPALIVE / 2)?;
    sockopt::set_tcp_user_timeout(socket, SILENCE.as_millis() as u32)?;
    limit_unsent(socket.as_fd(), UNSENT_BYTES)
}

/// Reads all of `bytes`, however slowly they come, within `timeout`.
fn read_within(socket: &mut TcpStream, bytes: &mut [u8], timeout: Duration) -> io::Result<()> {
    let until = Instant::now() + timeout;
    let mut filled = 0;
    while filled < bytes.len() {
        let left = until.saturating_duration_since(Instant::now());
        let silent = || io::Error::new(io::ErrorKind::TimedOut, format!("it said nothing for {timeout:?}"));
        if left.is_zero() {
            return Err(silent());
        }
        socket.set_read_timeout(Some(left))?;
        match socket.read(&mut bytes[filled..]) {
            Ok(0) => {
                let what = "it hung up during the handshake";
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

/// Tells the peer why it is refused, without waiting for a peer that does not read.
fn refuse(socket: &mut TcpStream, why: &str) {
    let _ = socket.write_all(&ReplyMessage::refused(why));
}

fn socket_error(doing: &'static str, address: SocketAddr, error: io::Error) -> ConnectError {
    ConnectError::Socket { doing, address, error }
}
