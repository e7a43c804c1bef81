//! The interface for listening and connecting over any transport.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use super::port::{Endpoint, Port};
use super::sleeping::sleep_together;
use crate::handshake::{Joined, Receive};
use crate::memory::{RecvWindow, SendWindow};
use crate::plan::PlannedLink;
use crate::{shm, tcp, verbs};

/// The state of one end's ports that its handshakes need. The end is a hub or a worker.
#[derive(Clone, Debug)]
pub struct Group {
    shm: Arc<shm::Group>,
    verbs: Option<Arc<verbs::Group>>,
    tcp: tcp::Options,
}

impl Group {
    /// Sets the options for TCP. Only TCP needs a frame format: shared memory moves no bytes, and a NIC
    /// checks the bytes that it moves.
    pub fn with_tcp(self, tcp: tcp::Options) -> Self {
        Group { tcp, ..self }
    }

    /// Returns the reason why nobody can connect by shared memory: this process is not allowed to make
    /// shareable memory. Returns `None` if peers can connect.
    pub fn unshared(&self) -> Option<String> {
        self.shm.unshared()
    }

    /// Returns the group's RDMA ports, if there are any.
    pub fn rdma(&self) -> Option<&verbs::Group> {
        self.verbs.as_deref()
    }
}

/// Makes a group of `ports` ports: one for each core of a hub, or one for a worker. With `rdma`, which has
/// the same number of RDMA ports, the ports also use RDMA.
///
/// # Errors
/// Returns an error if memory, descriptors or threads run out.
pub fn group(ports: usize, rdma: Option<Rdma>) -> std::io::Result<(Group, Vec<Port>)> {
    let (verbs, rdma) = rdma.map_or((None, Vec::new()), |(group, ports)| (Some(group), ports));
    assert!(verbs.is_none() || rdma.len() == ports, "one RDMA port a port");
    let (shm, ports) = shm::group(ports)?;
    let rdma = rdma.into_iter().map(Some).chain(std::iter::repeat_with(|| None));
    let ports = ports.into_iter().zip(rdma).map(|(port, rdma)| {
        let tcp = tcp::Port::new()?;
        sleep_together(&port, &tcp, rdma.as_ref())?;
        Ok(Port::new(port, tcp, rdma))
    });
    let ports = ports.collect::<std::io::Result<_>>()?;
    Ok((Group { shm, verbs, tcp: tcp::Options::default() }, ports))
}

/// The RDMA part of a group. [`verbs::group`] makes it for a hub.
pub type Rdma = (Arc<verbs::Group>, Vec<verbs::Port>);

/// The error of a handshake.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The error of a connection by shared memory.
    #[error(transparent)]
    Shm(#[from] shm::ConnectError),
    /// The error of a connection by TCP.
    #[error(transparent)]
    Tcp(#[from] tcp::ConnectError),
    /// The error of a connection by RDMA.
    #[error(transparent)]
    Verbs(#[from] verbs::ConnectError),
}

impl ConnectError {
    /// Whether another transport may reach the hub. True if this transport did not reach the hub at all, or
    /// if no NIC of this end reaches a NIC of the hub. Also true after any failure of shared memory, which
    /// works only within this machine.
    pub fn is_unreachable(&self) -> bool {
        matches!(
            self,
            ConnectError::Shm(_)
                | ConnectError::Tcp(tcp::ConnectError::Socket { doing: "connecting to", .. })
                | ConnectError::Verbs(verbs::ConnectError::Socket { doing: "connecting", .. })
                | ConnectError::Verbs(verbs::ConnectError::NoPath(_))
        )
    }
}

/// The address of a hub's data path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// An address for shared memory: the name of an abstract Unix socket.
    Shm(String),
    /// TCP: the address at which each of the hub's ports listens.
    Tcp(Vec<SocketAddr>),
    /// An address for RDMA: the TCP address of the hub's handshake.
    Verbs(SocketAddr),
}

/// A hub's socket for one transport.
#[derive(Debug)]
pub enum Listener {
    /// Shared memory.
    Shm(shm::Listener),
    /// TCP.
    Tcp(tcp::Listener),
    /// RDMA.
    Verbs(verbs::Listener),
}

impl Listener {
    /// Waits for the next connection. Returns `Ok(None)` once [`stop`](Self::stop) was called.
    pub fn accept(&self) -> Result<Option<Accepted>, ConnectError> {
        Ok(match self {
            Listener::Shm(listener) => listener.accept()?.map(Accepted::Shm),
            Listener::Tcp(listener) => listener.accept()?.map(Accepted::Tcp),
            Listener::Verbs(listener) => listener.accept()?.map(Accepted::Verbs),
        })
    }

    /// Ends `accept` in each thread that waits in it.
    pub fn stop(&self) {
        match self {
            Listener::Shm(listener) => listener.stop(),
            Listener::Tcp(listener) => listener.stop(),
            Listener::Verbs(listener) => listener.stop(),
        }
    }
}

/// A connection before its handshake.
#[derive(Debug)]
pub enum Accepted {
    /// A connection by shared memory.
    Shm(shm::Accepted),
    /// A connection by TCP.
    Tcp(tcp::Accepted),
    /// A connection by RDMA.
    Verbs(verbs::Accepted),
}

impl Accepted {
    /// Reads the peer's hello, within `timeout`.
    pub fn hello(self, timeout: Duration) -> Result<Hello, ConnectError> {
        self.hello_then(timeout, || ())
    }

    /// Reads the peer's hello. Calls `on_hello` once the hello can be read, or the wait for it is over.
    /// Descriptors that the peer sent are closed only after that call.
    pub fn hello_then(self, timeout: Duration, on_hello: impl FnOnce()) -> Result<Hello, ConnectError> {
        Ok(match self {
            Accepted::Shm(accepted) => Hello::Shm(accepted.hello_then(timeout, on_hello)?),
            Accepted::Tcp(accepted) => {
                let hello = accepted.hello(timeout);
                on_hello();
                Hello::Tcp(hello?)
            }
            Accepted::Verbs(accepted) => {
                let hello = accepted.hello(timeout);
                on_hello();
                Hello::Verbs(hello?)
            }
        })
    }
}

/// Borrows the socket.
impl AsFd for Accepted {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Accepted::Shm(accepted) => accepted.as_fd(),
            Accepted::Tcp(accepted) => accepted.as_fd(),
            Accepted::Verbs(accepted) => accepted.as_fd(),
        }
    }
}

/// The result of adding a connection to a peer.
#[derive(Debug)]
pub enum Gathered {
    /// All connections of the peer have arrived.
    Whole(Hello),
    /// Connections of the peer are missing. The caller that added the first connection gets a `Pending`, with
    /// which it must wait for the missing connections.
    Waits(Option<tcp::Pending>),
}

/// A peer that asks for admission.
#[derive(Debug)]
pub enum Hello {
    /// The hello of a peer on shared memory.
    Shm(shm::Hello),
    /// The hello of a peer over TCP.
    Tcp(tcp::Hello),
    /// The hello of a peer over RDMA.
    Verbs(verbs::Hello),
}

impl Hello {
    /// Returns the token that identifies the peer.
    pub fn token(&self) -> [u8; 16] {
        match self {
            Hello::Shm(hello) => hello.token(),
            Hello::Tcp(hello) => hello.token(),
            Hello::Verbs(hello) => hello.token(),
        }
    }

    /// Checks the proof of the peer's token. `token_of` finds the token by the name that the hello shows.
    pub fn identify(&mut self, token_of: impl FnOnce([u8; 16]) -> Option<[u8; 16]>) {
        match self {
            Hello::Shm(hello) => hello.identify(token_of),
            Hello::Tcp(hello) => hello.identify(token_of),
            Hello::Verbs(hello) => hello.identify(token_of),
        }
    }

    /// Completes the hello, once the token is known. Over shared memory, takes the descriptors that arrived
    /// with the hello. Over TCP, adds this connection to the peer's other connections. The call may block,
    /// because it closes wrong descriptors. So no other thread may wait for the caller.
    pub fn gather(self) -> Result<Gathered, ConnectError> {
        Ok(match self {
            Hello::Tcp(hello) => match hello.gather()? {
                tcp::Gathered::Whole(hello) => Gathered::Whole(Hello::Tcp(hello)),
                tcp::Gathered::Waits(pending) => Gathered::Waits(pending),
            },
            Hello::Shm(hello) => Gathered::Whole(Hello::Shm(hello.gather()?)),
            whole @ Hello::Verbs(_) => Gathered::Whole(whole),
        })
    }

    /// Refuses the peer, with a reason.
    pub fn refuse(self, why: &str) {
        match self {
            Hello::Shm(hello) => hello.refuse(why),
            Hello::Tcp(hello) => hello.refuse(why),
            Hello::Verbs(hello) => hello.refuse(why),
        }
    }

    /// Admits the peer. The hub's posts come from `ours`, and the peer's posts arrive in a window of
    /// `recv_bytes`. The links are those of `plan`, and the hello must name the same links. If the receiving
    /// window is memory of this end, `place` gets the window before any bytes arrive. So the owners of its
    /// pages can touch the pages first. If no NIC of the peer reaches a NIC of this end, or memory cannot be
    /// shared, `no_path` is called. After that call the peer is notified, and may connect by another
    /// transport.
    pub fn welcome(
        self,
        group: &Group,
        ours: &Arc<SendWindow>,
        recv_bytes: usize,
        plan: &[PlannedLink],
        place: impl FnOnce(&RecvWindow),
        no_path: impl FnOnce(),
    ) -> Result<Joined<Endpoint>, ConnectError> {
        Ok(match self {
            Hello::Shm(hello) => {
                hello.welcome_or(&group.shm, ours, recv_bytes, plan, no_path)?.map(Endpoint::Shm)
            }
            Hello::Tcp(hello) => {
                hello.welcome(group.tcp.frames, ours, recv_bytes, plan, place)?.map(Endpoint::Tcp)
            }
            Hello::Verbs(hello) => {
                let group = group.verbs.as_ref().expect("a listener for RDMA has a group with RDMA");
                hello.welcome(group, ours, recv_bytes, plan, place, no_path)?.map(Endpoint::Verbs)
            }
        })
    }
}

/// Connects to a hub. This end's posts come from `ours`, and the links are those of `plan`.
///
/// # Panics
/// Panics if `address` is RDMA and `group` has no RDMA ports. Also panics if `address` is shared memory and
/// `receive` is a window [into](Receive::Into) memory of this end.
pub fn connect(
    address: &Address,
    token: [u8; 16],
    group: &Group,
    ours: &Arc<SendWindow>,
    receive: Receive,
    plan: &[PlannedLink],
    timeout: Duration,
) -> Result<Joined<Endpoint>, ConnectError> {
    Ok(match address {
        Address::Shm(name) => {
            shm::connect(name, token, &group.shm, ours, receive, plan, timeout)?.map(Endpoint::Shm)
        }
        Address::Tcp(addresses) => {
            tcp::connect(addresses, token, &group.tcp, ours, receive, plan, timeout)?.map(Endpoint::Tcp)
        }
        Address::Verbs(address) => {
            let group = group.verbs.as_ref().expect("a connection by RDMA needs a group with RDMA");
            verbs::connect(*address, token, group, ours, receive, plan, timeout)?.map(Endpoint::Verbs)
        }
    })
}
