//! Listening, connecting, and the handshake that passes windows, bells and rings.
//!
//! ```text
//!   worker                          hub
//!   connect -----------------------------> accept
//!   Hello{proof} + window, bells --------> Hello         message read, descriptors left in the socket
//!                                          gather        token known: descriptors taken and checked
//!           <--- Welcome + window, bells, rings, eventfds, or Refused{why}
//! ```
//!
//! Closing a descriptor may block. So descriptors of a stranger, who has no token, are never passed on. They
//! are closed where no other thread waits: in [`Hello::refuse`], `gather`, or a failing `hello`. The layer
//! above holds no lock during these calls. Once `gather` has taken the descriptors, the socket receives
//! nothing more.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::fcntl_get_seals;
use rustix::io::retry_on_intr;
use rustix::net::{
    AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind,
    connect as connect_socket, listen, shutdown, socket_with, sockopt,
};

use super::bells::PeerBells;
use super::cells::{Words, rings, rings_bytes};
use super::group::Group;
use super::message::{HelloMessage, ReplyMessage, discard, dispose, drain, peek, receive, refuse, send};
use super::port::Endpoint;
use super::waking::{Name, Sender, Waker, WokenBy, events};
use crate::connection::{Alarm, Connection};
use crate::handshake::{Joined, Receive};
use crate::memory::{RecvWindow, SendWindow, WindowError};
use crate::plan::{LinkPorts, PlannedLink, PortId, check_ports, ports_of, ports_with_links};

/// The number of connections that may wait to be accepted: one for each worker of a job.
const BACKLOG: i32 = 4096;

/// The error of a handshake over shared memory.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The socket failed.
    #[error("{doing} at shared-memory address {address:?}: {error}{}", advice(doing))]
    Socket {
        /// The action that was tried.
        doing: &'static str,
        /// The address.
        address: String,
        /// The kernel's answer.
        error: io::Error,
    },
    /// The other end refused the connection.
    #[error("the hub refused the shared-memory connection: {0}")]
    Refused(String),
    /// The other end sent bytes that are not a message of the handshake.
    #[error("the shared-memory handshake failed: {0}")]
    Nonsense(String),
    /// A window could not be opened.
    #[error(transparent)]
    Window(#[from] WindowError),
    /// This end cannot make shareable memory.
    #[error("{0}: allow memfd_create (a container's seccomp profile refuses it), or use TCP alone")]
    Unshared(String),
}

/// Returns advice about a socket that failed. The advice to check the hub is only for a socket that talks to
/// a hub.
fn advice(doing: &str) -> &'static str {
    match doing {
        "connecting" | "sending the hello" | "waiting for the welcome" => {
            "; is the hub alive, on this machine and in this network namespace?"
        }
        _ => "",
    }
}

/// The hub's socket. Its name is abstract: the name is free again when the last process has closed the
/// socket.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    address: String,
}

impl Listener {
    /// Listens at `address`, which may be any string that no other process of this network namespace uses.
    pub fn bind(address: &str) -> Result<Self, ConnectError> {
        let fail = |error: rustix::io::Errno| socket_error("listening", address, error);
        let socket = new_socket().map_err(fail)?;
        let name = SocketAddrUnix::new_abstract_name(address.as_bytes()).map_err(fail)?;
        bind(&socket, &name).map_err(fail)?;
        listen(&socket, BACKLOG).map_err(fail)?;
        Ok(Listener { socket, address: address.to_owned() })
    }

    /// Returns a new address that nobody can guess.
    ///
    /// # Errors
    /// Returns an error if the kernel has no random numbers.
    pub fn new_address() -> Result<String, ConnectError> {
        let random = Name::random().map_err(|errno| socket_error("naming the hub", "phub-", errno))?;
        Ok(format!("phub-{:032x}", u128::from_be_bytes(random.0)))
    }

    /// Returns the address to connect to.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Waits for the next connection; `Ok(None)` once [`stop`](Self::stop) was called.
    pub fn accept(&self) -> Result<Option<Accepted>, ConnectError> {
        match retry_on_intr(|| accept_with(&self.socket, SocketFlags::CLOEXEC)) {
            Ok(socket) => Ok(Some(Accepted { socket: Guest::new(socket) })),
            Err(rustix::io::Errno::INVAL) => Ok(None),
            Err(errno) => Err(socket_error("accepting", &self.address, errno)),
        }
    }

    /// Ends `accept` in each thread that waits in it.
    pub fn stop(&self) {
        let _ = shutdown(&self.socket, Shutdown::Both);
    }
}

/// The socket of a connected client. Until the client is [admitted](Self::let_in), dropping the `Guest` also
/// closes the descriptors that the client has sent.
#[derive(Debug)]
pub(super) struct Guest(Option<OwnedFd>);

impl Guest {
    pub fn new(socket: OwnedFd) -> Self {
        Guest(Some(socket))
    }

    fn let_in(mut self) -> OwnedFd {
        self.0.take().expect("a guest is admitted once")
    }
}

impl AsFd for Guest {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_ref().expect("the guest is not admitted yet").as_fd()
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(dispose);
    }
}

/// A connection before its handshake.
#[derive(Debug)]
pub struct Accepted {
    pub(super) socket: Guest,
}

impl Accepted {
    /// Reads the peer's hello, within `timeout`. The peer may run as any user: the layer above checks its
    /// token.
    pub fn hello(self, timeout: Duration) -> Result<Hello, ConnectError> {
        self.hello_then(timeout, || ())
    }

    /// Reads the peer's hello. Calls `on_hello` once the hello can be read, or the wait for it is over.
    pub fn hello_then(self, timeout: Duration, on_hello: impl FnOnce()) -> Result<Hello, ConnectError> {
        let read = peek(self.socket.as_fd(), timeout).map_err(|error| error.to_string());
        let message = read.and_then(|bytes| HelloMessage::decode(&bytes));
        on_hello();
        match message {
            Ok(message) => Ok(Hello { socket: self.socket, token: message.token, message, given: None }),
            Err(why) => {
                refuse(self.socket.as_fd(), &why);
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

/// A peer that asks for admission.
#[derive(Debug)]
pub struct Hello {
    socket: Guest,
    /// The name of the token until the peer is [identified](Self::identify), and the token after that.
    token: [u8; 16],
    message: HelloMessage,
    /// The descriptors of the peer's window and bells, once they are taken.
    given: Option<[OwnedFd; 2]>,
}

impl Hello {
    /// Returns the token that identifies the peer.
    pub fn token(&self) -> [u8; 16] {
        self.token
    }

    /// Checks the proof of the peer's token. `token_of` finds the token by the name that the hello shows.
    pub fn identify(&mut self, token_of: impl FnOnce([u8; 16]) -> Option<[u8; 16]>) {
        if let Some(token) = token_of(self.message.token).filter(|&token| self.message.is_proven_by(token)) {
            self.token = token;
        }
    }

    /// Refuses the peer, with a reason.
    pub fn refuse(self, why: &str) {
        refuse(self.socket.as_fd(), why);
    }

    /// Takes the descriptors of the hello. The caller must know the token. No other thread may wait for the calling thread,
    /// because closing a received descriptor may block.
    pub fn gather(mut self) -> Result<Self, ConnectError> {
        let taken = self.take();
        taken.inspect_err(|why| refuse(self.socket.as_fd(), why)).map_err(ConnectError::Nonsense)?;
        Ok(self)
    }

    fn take(&mut self) -> Result<(), String> {
        if self.given.is_some() {
            return Ok(());
        }
        // Descriptors that came after the hello are closed here. No more descriptors can arrive, so a core
        // can later close this socket without blocking.
        let (bytes, fds) =
            receive(self.socket.as_fd(), Duration::from_secs(1)).map_err(|error| error.to_string())?;
        let _ = shutdown(&self.socket, Shutdown::Read);
        drain(self.socket.as_fd());
        let fds = offered(fds, 2)?;
        if HelloMessage::decode(&bytes).as_ref() != Ok(&self.message) {
            discard(fds);
            return Err("the peer changed its hello while this end read the hello".into());
        }
        // Closing a memfd never blocks.
        if let Some(why) = fds.iter().find_map(|fd| fcntl_get_seals(fd).err()) {
            discard(fds);
            return Err(format!("expected two memfds: reading seals: {}", io::Error::from(why)));
        }
        self.given = Some(fds.try_into().expect("their number was checked"));
        Ok(())
    }

    /// Admits the peer. The peer gets `ours` read-only, and its own window must have at least `recv_bytes`.
    /// The links are those of `plan`, and the peer's hello must name the same links.
    pub fn welcome(
        self,
        group: &Arc<Group>,
        ours: &SendWindow,
        recv_bytes: usize,
        plan: &[PlannedLink],
    ) -> Result<Joined<Endpoint>, ConnectError> {
        self.welcome_or(group, ours, recv_bytes, plan, || ())
    }

    /// Admits the peer as [`welcome`](Self::welcome) does. On failure, `refused` is called before the peer is notified. The
    /// peer may then connect by another transport.
    pub fn welcome_or(
        mut self,
        group: &Arc<Group>,
        ours: &SendWindow,
        recv_bytes: usize,
        plan: &[PlannedLink],
        refused: impl FnOnce(),
    ) -> Result<Joined<Endpoint>, ConnectError> {
        let taken = self.take().map_err(ConnectError::Nonsense);
        match taken.and_then(|()| self.let_in(group, ours, recv_bytes, plan)) {
            Ok(joined) => {
                self.socket.let_in();
                Ok(joined)
            }
            Err(error) => {
                refused();
                refuse(self.socket.as_fd(), &error.to_string());
                Err(error)
            }
        }
    }

    fn let_in(
        &mut self,
        group: &Arc<Group>,
        ours: &SendWindow,
        recv_bytes: usize,
        plan: &[PlannedLink],
    ) -> Result<Joined<Endpoint>, ConnectError> {
        let (window, own_bells) = (shared(ours.fd())?, shared(group.bells())?);
        let [their_window, bells] = self.given.take().expect("they were taken before");
        let HelloMessage { send_bytes, ports, name, links, .. } = &self.message;
        check_ports(links, plan).map_err(ConnectError::Nonsense)?;
        if *send_bytes < recv_bytes as u64 {
            return Err(WindowError::TooSmall { expected: recv_bytes, seen: *send_bytes }.into());
        }
        let recv = RecvWindow::open(their_window.as_fd(), recv_bytes)?;
        let bells =
            PeerBells::open("the worker's bells", *ports as usize, bells).map_err(ConnectError::Nonsense)?;
        let words = Words::new("rings", rings_bytes(plan)).map_err(WindowError::Map)?;
        let used = ports_with_links(plan, |ports| ports.hub);
        let sender = Sender::new().map_err(waking)?;
        let woken_by: Vec<Arc<WokenBy>> = (0..events(used.len()))
            .map(|_| WokenBy::event().map(Arc::new))
            .collect::<Result<_, _>>()
            .map_err(waking)?;
        let connection = watched(group, self.socket.as_fd(), &used)?;
        let endpoint = |((up, down), ports): (_, &LinkPorts)| {
            let port = Arc::clone(&group.ports[ports.hub.index()]);
            let bell = bells.of(ports.joiner, sender.waker(*name, ports.joiner.index()));
            let woken_by = Arc::clone(&woken_by[place(&used, ports.hub) % woken_by.len()]);
            Endpoint::new(Arc::clone(&connection), port, down, up, bell, woken_by)
        };
        let endpoints = rings(&words, plan).into_iter().zip(links).map(endpoint).collect();
        let (send_bytes, ports) = (ours.bytes() as u64, group.ports.len() as u32);
        let reply = ReplyMessage::Welcome { send_bytes, ports, name: sender.name };
        let rings = shared(words.fd())?;
        let fds = [window, own_bells, rings].into_iter().chain(woken_by.iter().map(|event| event.as_fd()));
        send(self.socket.as_fd(), &reply.encode(), &fds.collect::<Vec<_>>())
            .map_err(|error| ConnectError::Nonsense(format!("sending the welcome: {error}")))?;
        Ok(Joined::new(Arc::new(recv), endpoints))
    }
}

/// Connects to a hub's [`Listener`]. The hub gets `ours` read-only, and the links are those of `plan`.
/// `receive_into` becomes a view of the hub's window.
pub fn connect(
    address: &str,
    token: [u8; 16],
    group: &Arc<Group>,
    ours: &SendWindow,
    receive_into: impl Into<Receive>,
    plan: &[PlannedLink],
    timeout: Duration,
) -> Result<Joined<Endpoint>, ConnectError> {
    let fds = [shared(ours.fd())?, shared(group.bells())?];
    let socket = dial(address, timeout)?;
    let name = Name::random().map_err(waking)?;
    let (send_bytes, ports) = (ours.bytes() as u64, group.ports.len() as u32);
    let hello = HelloMessage::new(token, send_bytes, ports, name, ports_of(plan));
    let talk = |doing| move |error| ConnectError::Socket { doing, address: address.into(), error };
    send(socket.as_fd(), &hello.encode(), &fds).map_err(talk("sending the hello"))?;
    let answer = receive(socket.as_fd(), timeout).map_err(talk("waiting for the welcome"))?;
    welcomed(answer, &socket, group, name, receive_into, plan)
}

pub(crate) fn dial(address: &str, timeout: Duration) -> Result<OwnedFd, ConnectError> {
    let fail = |doing| move |error: rustix::io::Errno| socket_error(doing, address, error);
    let socket = new_socket().map_err(fail("opening a socket"))?;
    let name = SocketAddrUnix::new_abstract_name(address.as_bytes()).map_err(fail("naming the hub"))?;
    // If a hub stops accepting connections, its queue fills up, and `connect` waits. So `connect` needs a
    // timeout, too.
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(timeout))
        .map_err(fail("setting a timeout"))?;
    connect_socket(&socket, &name).map_err(|errno| match errno {
        rustix::io::Errno::AGAIN => {
            let what = format!("the hub accepted no connection for {timeout:?}");
            let error = io::Error::new(io::ErrorKind::TimedOut, what);
            ConnectError::Socket { doing: "connecting", address: address.into(), error }
        }
        errno => fail("connecting")(errno),
    })?;
    Ok(socket)
}

/// Returns the worker's half of a connection, from the hub's answer to the hello. `own` is the name of the
/// sockets on which the worker's ports receive wake-ups.
pub(super) fn welcomed(
    (bytes, fds): (Vec<u8>, Vec<OwnedFd>),
    socket: &OwnedFd,
    group: &Arc<Group>,
    own: Name,
    receive_into: impl Into<Receive>,
    plan: &[PlannedLink],
) -> Result<Joined<Endpoint>, ConnectError> {
    let (ports, name) = match ReplyMessage::decode(&bytes).map_err(ConnectError::Nonsense)? {
        ReplyMessage::Refused(why) => return Err(ConnectError::Refused(why)),
        ReplyMessage::Welcome { ports, name, .. } => (ports as usize, name),
    };
    let of_hub = ports_with_links(plan, |ports| ports.hub);
    if of_hub.last().is_some_and(|last| last.index() >= ports) {
        return Err(ConnectError::Nonsense(format!(
            "the hub offers {ports} ports, and this end expects {of_hub:?}; install the same version at both ends"
        )));
    }
    let mut fds = offered(fds, 3 + events(of_hub.len())).map_err(ConnectError::Nonsense)?;
    let events: Vec<Arc<OwnedFd>> = fds.split_off(3).into_iter().map(Arc::new).collect();
    let [window, bells, words] = fds.try_into().expect("their number was checked");
    let recv = receive_into.into().view(window.as_fd())?;
    let bells = PeerBells::open("the hub's bells", ports, bells).map_err(ConnectError::Nonsense)?;
    let words = Words::open("rings", words, rings_bytes(plan)).map_err(ConnectError::Nonsense)?;
    let used = ports_with_links(plan, |ports| ports.joiner);
    let receiver = |port: &PortId| WokenBy::receiver(own, name, port.index()).map(Arc::new);
    let woken_by: Vec<Arc<WokenBy>> = used.iter().map(receiver).collect::<Result<_, _>>().map_err(waking)?;
    let connection = watched(group, socket.as_fd(), &used)?;
    let endpoint = |((up, down), link): (_, &PlannedLink)| {
        let port = Arc::clone(&group.ports[link.ports.joiner.index()]);
        let event = Arc::clone(&events[place(&of_hub, link.ports.hub) % events.len()]);
        let bell = bells.of(link.ports.hub, Waker::Event(event));
        let woken_by = Arc::clone(&woken_by[place(&used, link.ports.joiner)]);
        Endpoint::new(Arc::clone(&connection), port, up, down, bell, woken_by)
    };
    let endpoints = rings(&words, plan).into_iter().zip(plan).map(endpoint).collect();
    Ok(Joined::new(recv, endpoints))
}

/// Returns the index of a port among the sorted ports of a connection.
fn place(ports: &[PortId], port: PortId) -> usize {
    ports.binary_search(&port).expect("the ports of a plan are those of its links")
}

/// Returns the descriptors that a peer handed over. Returns an error if their number differs from `expected`.
fn offered(fds: Vec<OwnedFd>, expected: usize) -> Result<Vec<OwnedFd>, String> {
    if fds.len() != expected {
        let why = format!("expected {expected} descriptors, got {}", fds.len());
        discard(fds);
        return Err(why);
    }
    Ok(fds)
}

fn shared<T>(memory: Result<T, String>) -> Result<T, ConnectError> {
    memory.map_err(ConnectError::Unshared)
}

fn waking(errno: rustix::io::Errno) -> ConnectError {
    let why = io::Error::from(errno);
    ConnectError::Nonsense(format!("making the sockets that wake the ports: {why}"))
}

/// Returns the connection of these ports of the group. The group's thread `phub-watch` observes it.
fn watched(
    group: &Arc<Group>,
    socket: BorrowedFd<'_>,
    ports: &[PortId],
) -> Result<Arc<Connection>, ConnectError> {
    let nonsense = |error: io::Error| ConnectError::Nonsense(format!("watching the socket: {error}"));
    let ports = ports.iter().map(|port| Arc::clone(&group.ports[port.index()]) as Arc<dyn Alarm>).collect();
    let socket = socket.try_clone_to_owned().map_err(nonsense)?;
    Connection::watched_to_its_end(&group.watch, socket, ports).map_err(nonsense)
}

fn new_socket() -> Result<OwnedFd, rustix::io::Errno> {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
}

fn socket_error(doing: &'static str, address: &str, errno: rustix::io::Errno) -> ConnectError {
    ConnectError::Socket { doing, address: address.to_owned(), error: errno.into() }
}
