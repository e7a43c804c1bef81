//! Wake-ups for a port that sleeps at descriptors. `crate::ring::bell` says when to wake; `futex` wakes a
//! port that sleeps on a futex.
//!
//! ```text
//!   hub, for each connection                                    worker
//!   eventfd of port i  ----------- (descriptor) --------------> writes it, and so wakes port i
//!   its own sender  ---- sendto(sender, "phub-bell-NAME-0") --> receiver of port 0
//! ```
//!
//! All sockets belong to one connection, so no connection disturbs another. A worker wakes the hub's ports by
//! writing to eventfds of the hub. The hub never reads an eventfd: a peer could make the eventfd blocking,
//! and the read would then stop the hub. Instead the hub's epoll reports each write once (edge-triggered).
//! The hub does not write to a worker's descriptors either. It sends from its own sender, which never leaves
//! the hub's process, and each send is non-blocking.
//!
//! A receiver never leaves the worker's process. It is connected to the hub's sender before it is bound to a
//! name, so the kernel accepts datagrams only from that sender. So a stranger cannot send descriptors to the
//! receiver. Closing a stranger's descriptors could block.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType, bind, connect,
    recv, sendto, shutdown, socket_with,
};
use rustix::rand::{GetRandomFlags, getrandom};

/// The most eventfds of a connection. If the hub has more ports, ports share eventfds: a message has room for
/// 253 descriptors.
const MAX_EVENTS: usize = 240;

/// Returns the number of eventfds of a connection to `ports` ports of the hub.
pub const fn events(ports: usize) -> usize {
    if ports < MAX_EVENTS { ports } else { MAX_EVENTS }
}

/// The common name of the sockets that one end has for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name(pub [u8; 16]);

impl Name {
    pub fn random() -> Result<Self, Errno> {
        let mut name = [0; 16];
        getrandom(&mut name, GetRandomFlags::empty())?;
        Ok(Name(name))
    }

    /// Returns the address of one socket of this name: a receiver for each port, or a sender.
    fn address(self, kind: &str, number: usize) -> Result<SocketAddrUnix, Errno> {
        let name = u128::from_be_bytes(self.0);
        SocketAddrUnix::new_abstract_name(format!("phub-{kind}-{name:032x}-{number}").as_bytes())
    }

    fn receiver(self, port: usize) -> Result<SocketAddrUnix, Errno> {
        self.address("bell", port)
    }
}

/// The descriptor by which a peer ends a sleep of a port of this end.
#[derive(Debug)]
pub enum WokenBy {
    /// The hub's eventfd, which a worker writes and nobody reads.
    Event(OwnedFd),
    /// The worker's socket, which receives the hub's datagrams.
    Receiver(OwnedFd),
}

impl WokenBy {
    /// Creates the eventfd of a port of the hub, for one connection.
    pub fn event() -> Result<Self, Errno> {
        Ok(WokenBy::Event(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Creates the receiver of a worker's port. It accepts datagrams only from the hub's socket with the name
    /// `sender`.
    pub fn receiver(own: Name, sender: Name, port: usize) -> Result<Self, Errno> {
        let socket = socket()?;
        // The order matters: a socket that is bound but not connected would accept datagrams from everybody.
        connect(&socket, &sender.address("ring", 0)?)?;
        bind(&socket, &own.receiver(port)?)?;
        Ok(WokenBy::Receiver(socket))
    }

    /// Reads the datagrams that have arrived, so that the queue has room for more.
    pub fn quieten(&self) {
        /// The most datagrams of one call, more than a socket's queue holds.
        const MOST: usize = 1024;
        if let WokenBy::Receiver(socket) = self {
            let more = |_: &usize| recv(socket, &mut [0; 1], RecvFlags::DONTWAIT).is_ok();
            let _ = (0..MOST).take_while(more).count();
        }
    }
}

impl AsFd for WokenBy {
    fn as_fd(&self) -> BorrowedFd<'_> {
        let (WokenBy::Event(fd) | WokenBy::Receiver(fd)) = self;
        fd.as_fd()
    }
}

/// The hub's socket that wakes the worker of one connection.
#[derive(Debug)]
pub struct Sender {
    pub name: Name,
    socket: Arc<OwnedFd>,
}

impl Sender {
    pub fn new() -> Result<Self, Errno> {
        let (name, socket) = (Name::random()?, socket()?);
        // The sender's name is public. Without the shutdown, strangers could send descriptors to the socket,
        // and a core would close them together with the socket.
        shutdown(&socket, Shutdown::Read)?;
        bind(&socket, &name.address("ring", 0)?)?;
        Ok(Sender { name, socket: Arc::new(socket) })
    }

    /// Makes the waker for a port of the worker whose receivers have this name.
    pub fn waker(&self, worker: Name, port: usize) -> Waker {
        let address = worker.receiver(port).expect("a name of 50 bytes is short enough");
        Waker::Datagram { sender: Arc::clone(&self.socket), address }
    }
}

fn socket() -> Result<OwnedFd, Errno> {
    socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
}

/// A waker of one port of a peer.
#[derive(Debug)]
pub enum Waker {
    /// An eventfd of the hub.
    Event(Arc<OwnedFd>),
    /// A socket of a worker.
    Datagram { sender: Arc<OwnedFd>, address: SocketAddrUnix },
}

impl Waker {
    /// Wakes the peer. A failed call needs no retry: the peer has ended, or its queue is full of wake-ups.
    /// The call never blocks the hub.
    pub fn wake(&self) {
        match self {
            Waker::Event(event) => {
                let _ = rustix::io::write(event, &1u64.to_ne_bytes());
            }
            Waker::Datagram { sender, address } => {
                let _ = sendto(sender, &[0], SendFlags::DONTWAIT | SendFlags::NOSIGNAL, address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::mem::MaybeUninit;

    use rustix::event::{Timespec, epoll};

    use super::*;
    use crate::conformance::Watchdog;

    const MANY: usize = 10_000;

    /// An epoll that holds a port's descriptor in the same way as a real port does.
    struct Port(OwnedFd, WokenBy);

    impl Port {
        fn new(woken_by: WokenBy) -> Self {
            let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
            let edges = epoll::EventFlags::IN | epoll::EventFlags::ET;
            epoll::add(&epoll, &woken_by, epoll::EventData::new_u64(0), edges).unwrap();
            Port(epoll, woken_by)
        }

        fn rang(&self) -> bool {
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            let mut events = [const { MaybeUninit::uninit() }; 1];
            let rang = !epoll::wait(&self.0, &mut events, Some(&now)).unwrap().0.is_empty();
            self.1.quieten();
            rang
        }
    }

    #[test]
    fn a_port_is_woken_each_time_and_no_other_is() {
        let _watchdog = Watchdog::start();
        let (sender, name) = (Sender::new().unwrap(), Name::random().unwrap());
        let ports = [0, 1].map(|port| Port::new(WokenBy::receiver(name, sender.name, port).unwrap()));
        let wakers = [0, 1].map(|port| sender.waker(name, port));
        let event = WokenBy::event().unwrap();
        let handed = Waker::Event(Arc::new(event.as_fd().try_clone_to_owned().unwrap()));
        let hub = Port::new(event);
        for _ in 0..3 {
            assert!(!ports[0].rang() && !ports[1].rang() && !hub.rang());
            wakers[1].wake();
            assert!(!ports[0].rang() && ports[1].rang());
            handed.wake();
            assert!(hub.rang());
        }
    }

    #[test]
    fn a_worker_that_takes_nothing_holds_up_neither_the_hub_nor_other_workers() {
        let _watchdog = Watchdog::start();
        let (deaf, name) = (Sender::new().unwrap(), Name::random().unwrap());
        let receiver = WokenBy::receiver(name, deaf.name, 0).unwrap();
        (0..MANY).for_each(|_| deaf.waker(name, 0).wake());
        let (sender, other) = (Sender::new().unwrap(), Name::random().unwrap());
        let port = Port::new(WokenBy::receiver(other, sender.name, 0).unwrap());
        sender.waker(other, 0).wake();
        assert!(port.rang());
        // After the port has taken the datagrams, a new datagram can wake it again.
        let deaf_port = Port::new(receiver);
        assert!(deaf_port.rang() && !deaf_port.rang());
        deaf.waker(name, 0).wake();
        assert!(deaf_port.rang());
    }

    #[test]
    fn a_worker_that_fills_its_eventfd_disturbs_itself_alone() {
        let _watchdog = Watchdog::start();
        let [own, other] = [(); 2].map(|()| WokenBy::event().unwrap());
        rustix::io::write(&own, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        let waker = Waker::Event(Arc::new(other.as_fd().try_clone_to_owned().unwrap()));
        let port = Port::new(other);
        own.quieten(); // must not block
        waker.wake();
        assert!(port.rang());
    }

    #[test]
    fn the_kernel_takes_no_datagram_of_a_stranger() {
        let (sender, name) = (Sender::new().unwrap(), Name::random().unwrap());
        let port = Port::new(WokenBy::receiver(name, sender.name, 0).unwrap());
        let address = name.receiver(0).unwrap();
        let stranger = socket().unwrap();
        assert_eq!(sendto(&stranger, &[0], SendFlags::DONTWAIT, &address), Err(Errno::PERM));
        assert_eq!(connect(&stranger, &address), Err(Errno::PERM));
        let to_the_hub = sender.name.address("ring", 0).unwrap();
        assert_eq!(
            sendto(&stranger, &[0], SendFlags::DONTWAIT | SendFlags::NOSIGNAL, &to_the_hub),
            Err(Errno::PIPE)
        );
        assert!(!port.rang());
    }
}
