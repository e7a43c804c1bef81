//! Listening, connecting, and the handshake: a worker's connections come one by one, and are one peer when
//! all are there.
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
use crate::memory::{RecvWindow, SendWindow, WindowError};

/// A peer that acknowledges nothing for so long is gone, whatever made it so.
const SILENCE: Duration = Duration::from_secs(30);
/// A connection with nothing to say is asked after so long whether it still is one.
const KEEPALIVE: Duration = Duration::from_secs(10);
/// Workers whose connections are not all there, at once.
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

/// What a handshake yields: the window that the peer writes, and the links, one per hub port.
#[derive(Debug)]
pub struct Joined {
    /// The window that the peer writes.
    pub recv: Arc<RecvWindow>,
    /// The links in the order of the hub's ports; none where the capacity was 0.
    pub endpoints: Vec<Endpoint>,
}

/// The hub's socket, and the workers that are half in.
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
    /// Reads the hello of one connection, within `timeout`. `None` while the worker has others that are not
    /// there yet: whoever reads the last one has them all.
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
            Ok((message, Some(sockets))) => Ok(Some(Hello { message, sockets })),
            Err(why) => {
                refuse(&mut self.socket, &why);
                Err(ConnectError::Nonsense(format!("the hello of {peer}: {why}")))
            }
        }
    }
}

/// Connections of workers that are not whole yet.
#[derive(Debug, Default)]
struct Gathering(Mutex<HashMap<[u8; 16], Partial>>);

#[derive(Debug)]
struct Partial {
    message: HelloMessage,
    sockets: Vec<Option<TcpStream>>,
    until: Instant,
}

impl Gathering {
    /// Adds a connection; all of the worker's when it was the last one.
    fn add(
        &self,
        message: HelloMessage,
        socket: TcpStream,
        timeout: Duration,
    ) -> Result<Option<Vec<TcpStream>>, String> {
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
            sockets: (0..links).map(|_| None).collect(),
            until: now + timeout,
        });
        if partial.sockets.len() != links || partial.message.window_bytes() != message.window_bytes() {
            return Err("another connection of the same worker said otherwise".into());
        }
        if partial.sockets[link].replace(socket).is_some() {
            return Err(format!("link {link} of the same worker is there already"));
        }
        if partial.sockets.iter().any(Option::is_none) {
            return Ok(None);
        }
        let whole = partials.remove(&message.token).expect("it was just there");
        Ok(Some(whole.sockets.into_iter().flatten().collect()))
    }
}

/// A peer that wants in, with all its connections.
#[derive(Debug)]
pub struct Hello {
    message: HelloMessage,
    sockets: Vec<TcpStream>,
}

impl Hello {
    /// The token that says who it is.
    pub fn token(&self) -> [u8; 16] {
        self.message.token
    }

    /// Says no, and why.
    pub fn refuse(mut self, why: &str) {
        self.sockets.iter_mut().for_each(|socket| refuse(socket, why));
    }

    /// Lets the peer in: `ours` is what is sent to it, a window of `recv_bytes` is made for what comes from it,
    /// and port `i` of the hub gets a link with room for `capacities[i]` posts each way, or none where that
    /// is 0. `place` sees the window before anything comes, to have its pages touched by their owners.
    pub fn welcome(
        mut self,
        ours: &Arc<SendWindow>,
        recv_bytes: usize,
        capacities: &[u32],
        place: impl FnOnce(&RecvWindow),
    ) -> Result<Joined, ConnectError> {
        let made = self.check(recv_bytes, capacities).and_then(|()| Ok(RecvWindow::local(recv_bytes)?));
        let recv = made.inspect_err(|error| {
            self.sockets.iter_mut().for_each(|socket| refuse(socket, &error.to_string()));
        })?;
        place(&recv);
        let welcome = ReplyMessage::welcome(ours.bytes());
        for socket in &mut self.sockets {
            socket
                .write_all(welcome.as_bytes())
                .map_err(|error| ConnectError::Nonsense(format!("sending the welcome: {error}")))?;
        }
        joined(self.sockets, ours, Arc::new(recv), capacities)
    }

    fn check(&self, recv_bytes: usize, capacities: &[u32]) -> Result<(), ConnectError> {
        let links = capacities.iter().filter(|&&capacity| capacity > 0).count();
        if self.sockets.len() != links {
            let seen = self.sockets.len();
            return Err(ConnectError::Nonsense(format!(
                "expected {links} connections, one a core; saw {seen}"
            )));
        }
        let seen = self.message.window_bytes();
        if seen != recv_bytes as u64 {
            return Err(WindowError::TooSmall { expected: recv_bytes, seen }.into());
        }
        Ok(())
    }
}

/// Connects to a hub: its port `i` listens at `addresses[i]`, and has a link with room for `capacities[i]`
/// posts, or none where that is 0. `ours` is what is sent to it.
pub fn connect(
    addresses: &[SocketAddr],
    token: [u8; 16],
    ours: &Arc<SendWindow>,
    recv_bytes: usize,
    capacities: &[u32],
    timeout: Duration,
) -> Result<Joined, ConnectError> {
    assert_eq!(addresses.len(), capacities.len(), "one address a port");
    let addresses: Vec<SocketAddr> =
        addresses.iter().zip(capacities).filter(|&(_, &capacity)| capacity > 0).map(|(&a, _)| a).collect();
    let recv = Arc::new(RecvWindow::local(recv_bytes)?);
    let mut sockets = Vec::with_capacity(addresses.len());
    for (link, &address) in addresses.iter().enumerate() {
        let fail = |doing| move |error| socket_error(doing, address, error);
        let mut socket = TcpStream::connect_timeout(&address, timeout).map_err(fail("connecting to"))?;
        tune(&socket).map_err(|errno| socket_error("setting up the connection to", address, errno.into()))?;
        let hello = HelloMessage::new(token, link, addresses.len(), ours.bytes());
        socket.write_all(hello.as_bytes()).map_err(fail("sending the hello to"))?;
        sockets.push(socket);
    }
    for (socket, &address) in sockets.iter_mut().zip(&addresses) {
        answered(socket, address, recv_bytes, timeout)?;
    }
    joined(sockets, ours, recv, capacities)
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
    sockets: Vec<TcpStream>,
    ours: &Arc<SendWindow>,
    recv: Arc<RecvWindow>,
    capacities: &[u32],
) -> Result<Joined, ConnectError> {
    let capacities = capacities.iter().filter(|&&capacity| capacity > 0);
    let endpoints = sockets.into_iter().zip(capacities).map(|(socket, &capacity)| {
        socket.set_nonblocking(true)?;
        Ok(Endpoint::new(OwnedFd::from(socket), Arc::clone(ours), Arc::clone(&recv), capacity))
    });
    let endpoints: io::Result<_> = endpoints.collect();
    let endpoints = endpoints.map_err(|error| ConnectError::Nonsense(format!("a socket: {error}")))?;
    Ok(Joined { recv, endpoints })
}

/// What every connection of the data path is set to.
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

/// Says no, as far as the socket takes it: nobody waits for one that is not let in.
fn refuse(socket: &mut TcpStream, why: &str) {
    let _ = socket.write_all(&ReplyMessage::refused(why));
}

fn socket_error(doing: &'static str, address: SocketAddr, error: io::Error) -> ConnectError {
    ConnectError::Socket { doing, address, error }
}
