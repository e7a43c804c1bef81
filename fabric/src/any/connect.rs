//! Listening and connecting for any transport: the common part of their handshakes.

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

/// The ports of one end, as its handshakes see them.
#[derive(Clone, Debug)]
pub struct Group {
    shm: Arc<shm::Group>,
    verbs: Option<Arc<verbs::Group>>,
    tcp: tcp::Options,
}

impl Group {
    /// Sets the options for TCP. Only TCP has frames: shared memory moves no bytes, and a NIC checks the bytes that it moves.
    pub fn with_tcp(self, tcp: tcp::Options) -> Self {
        Group { tcp, ..self }
    }

    /// Returns the reason why nobody can connect by shared memory, if nobody can: this process may not make shareable memory.
    pub fn unshared(&self) -> Option<String> {
        self.shm.unshared()
    }

    /// Returns the group's RDMA ports, if there are any.
    pub fn rdma(&self) -> Option<&verbs::Group> {
        self.verbs.as_deref()
    }
}

/// Makes `ports` ports that connect together: one for each core of a hub, or one for a worker. With `rdma`, a group of as
/// many RDMA ports, they also use RDMA.
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

/// The RDMA part of a group, as [`verbs::group`] makes it for a hub.
pub type Rdma = (Arc<verbs::Group>, Vec<verbs::Port>);

/// A handshake failed.
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
    /// Whether another transport may reach the hub. Either this transport did not reach the hub at all, or no NIC of one end
    /// reaches a NIC of the other end. A failure of shared memory concerns only this machine.
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
    /// Shared memory, by the name of an abstract Unix socket.
    Shm(String),
    /// TCP: where each of the hub's ports listens.
    Tcp(Vec<SocketAddr>),
    /// RDMA: the address of its handshake, over TCP.
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

    /// Ends `accept` in any thread that waits in it.
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

    /// Reads the peer's hello. Calls `heard` once there is something to read or no more to wait for, before anything is
    /// closed that the peer sent.
    pub fn hello_then(self, timeout: Duration, heard: impl FnOnce()) -> Result<Hello, ConnectError> {
        Ok(match self {
            Accepted::Shm(accepted) => Hello::Shm(accepted.hello_then(timeout, heard)?),
            Accepted::Tcp(accepted) => {
                let hello = accepted.hello(timeout);
                heard();
                Hello::Tcp(hello?)
            }
            Accepted::Verbs(accepted) => {
                let hello = accepted.hello(timeout);
                heard();
                Hello::Verbs(hello?)
            }
        })
    }
}

/// The socket.
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
    /// Connections of the peer are missing. With the first connection comes the duty to wait for the rest.
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

    /// Takes the descriptors that arrived with the hello, or adds this connection to the peer's other connections, once the
    /// token is known. Closes wrong descriptors, which may block: no thread may wait for the caller.
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

    /// Admits the peer. `ours` is sent to the peer, and the peer's bytes arrive in a window of `recv_bytes`. The links are
    /// those of `plan`, which the hello must name, too. If the window is this end's own memory, `place` gets it before any
    /// bytes arrive, so that the owners of its pages can touch them. `no_path` is called if no NIC of the peer reaches a NIC of
    /// this end, or memory cannot be shared. Then the peer may connect by another transport, and is notified after the call.
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

/// Connects to a hub. `ours` is sent to the hub, and the links are those of `plan`.
///
/// # Panics
/// Panics if the hub is on shared memory, and its window is to be received [into](Receive::Into) memory of this
/// end.
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
