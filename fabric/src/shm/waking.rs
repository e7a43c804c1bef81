//! Waking a port that sleeps at descriptors, by a datagram. `crate::ring::bell` says when; `futex` wakes other sleepers.
//!
//! ```text
//!   the sleeper's process                                       its peers
//!   receiver of port 0  <--connected--> sender --(descriptor)-> sendto(sender, "phub-bell-NAME-0")
//!   receiver of port 1  <--connected-/
//! ```
//!
//! A receiver never leaves its process. It is connected to its sender, so the kernel takes datagrams for it from that
//! socket alone, which only peers have. What a hostile peer can do with a sender: wake the ports, and fill or shut the
//! sender, so that others wake nobody. A sleep has a time-out.
//!
//! Waking never blocks, whatever descriptor a peer has handed over: each call says so by itself (`MSG_DONTWAIT`). An
//! eventfd has no such call. Whoever has a descriptor of it can make it blocking for everybody, and fill it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, connect, recv,
    sendto, socket_with, sockopt,
};
use rustix::rand::{GetRandomFlags, getrandom};

/// Ports that share a sender. The kernel counts what they have not taken yet against the sender's buffer, and a default
/// one has room for some 270 datagrams. Each port has one at a time.
const PORTS_PER_SENDER: usize = 128;

/// How many senders a group of so many ports has.
pub const fn senders(ports: usize) -> usize {
    ports.div_ceil(PORTS_PER_SENDER)
}

/// What the sockets of a group are named after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name(pub [u8; 16]);

impl Name {
    fn random() -> Result<Self, Errno> {
        let mut name = [0; 16];
        getrandom(&mut name, GetRandomFlags::empty())?;
        Ok(Name(name))
    }

    /// The address of what this name has of a kind: a receiver for each port, or a sender.
    fn address(self, kind: &str, number: usize) -> Result<SocketAddrUnix, Errno> {
        let name = u128::from_be_bytes(self.0);
        SocketAddrUnix::new_abstract_name(format!("phub-{kind}-{name:032x}-{number}").as_bytes())
    }

    fn receiver(self, port: usize) -> Result<SocketAddrUnix, Errno> {
        self.address("bell", port)
    }
}

/// A port's socket, readable when a peer woke the port.
#[derive(Debug)]
pub struct Receiver(OwnedFd);

impl Receiver {
    /// Takes one datagram, if there is one.
    pub fn quieten(&self) {
        let _ = recv(&self.0, &mut [0; 1], RecvFlags::DONTWAIT);
    }
}

impl AsFd for Receiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The sockets of a group of so many ports: their name, the senders to hand over, and each port's receiver.
pub fn sockets(ports: usize) -> Result<(Name, Vec<OwnedFd>, Vec<Receiver>), Errno> {
    let name = Name::random()?;
    let bound = |address: &SocketAddrUnix| {
        let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        bind(&socket, address)?;
        Ok(socket)
    };
    let addresses = (0..senders(ports)).map(|number| name.address("ring", number));
    let addresses = addresses.collect::<Result<Vec<_>, _>>()?;
    let senders = addresses.iter().map(bound).collect::<Result<_, _>>()?;
    let receiver = |port| {
        let socket = bound(&name.receiver(port)?)?;
        connect(&socket, &addresses[port / PORTS_PER_SENDER])?;
        Ok(Receiver(socket))
    };
    Ok((name, senders, (0..ports).map(receiver).collect::<Result<_, _>>()?))
}

/// The senders that a peer handed over.
#[derive(Debug)]
pub struct Senders {
    name: Name,
    sockets: Vec<Arc<OwnedFd>>,
}

impl Senders {
    /// Those of a peer with so many ports.
    pub fn open(what: &str, name: Name, ports: usize, sockets: Vec<OwnedFd>) -> Result<Self, String> {
        assert_eq!(sockets.len(), senders(ports), "the caller has counted them");
        for socket in &sockets {
            let kind = sockopt::socket_domain(socket)
                .and_then(|domain| Ok((domain, sockopt::socket_type(socket)?)))
                .map_err(|errno| format!("{what}: expected a Unix socket for datagrams: {errno}"))?;
            if kind != (AddressFamily::UNIX, SocketType::DGRAM) {
                let (family, kind) = (kind.0.as_raw(), kind.1.as_raw());
                return Err(format!(
                    "{what}: expected a Unix socket for datagrams, got family {family} of type {kind}"
                ));
            }
        }
        Ok(Senders { name, sockets: sockets.into_iter().map(Arc::new).collect() })
    }

    /// What wakes this port.
    pub fn waker(&self, port: usize) -> Waker {
        let address = self.name.receiver(port).expect("a name of 50 bytes is short enough");
        Waker { sender: Arc::clone(&self.sockets[port / PORTS_PER_SENDER]), address }
    }
}

/// Wakes one port of a peer.
#[derive(Debug)]
pub struct Waker {
    sender: Arc<OwnedFd>,
    address: SocketAddrUnix,
}

impl Waker {
    /// Never blocks. If it fails, the peer is gone, or has so many datagrams that it is awake.
    pub fn wake(&self) {
        let _ = sendto(&self.sender, &[0], SendFlags::DONTWAIT | SendFlags::NOSIGNAL, &self.address);
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::net::{Shutdown, shutdown};

    use super::*;
    use crate::conformance::Watchdog;

    const MANY: usize = 10_000;

    /// Of a peer with so many ports: what it keeps, and what it hands over.
    fn peer(ports: usize) -> (Vec<OwnedFd>, Vec<Receiver>, Senders) {
        let (name, sockets, receivers) = sockets(ports).unwrap();
        let handed = sockets.iter().map(|socket| socket.try_clone().unwrap()).collect();
        (sockets, receivers, Senders::open("a peer's bells", name, ports, handed).unwrap())
    }

    fn rang(receiver: &Receiver) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(receiver, PollFlags::IN)], Some(&now)).unwrap() > 0
    }

    #[test]
    fn all_ports_of_a_peer_can_be_woken_before_one_of_them_looks() {
        let (_sockets, receivers, senders) = peer(2 * PORTS_PER_SENDER + 1);
        for (port, receiver) in receivers.iter().enumerate() {
            assert!(!rang(receiver), "port {port} is woken for another one");
            senders.waker(port).wake();
            assert!(rang(receiver), "port {port} sleeps on");
        }
        for receiver in &receivers {
            receiver.quieten();
            assert!(!rang(receiver));
            receiver.quieten(); // does not wait for a datagram
        }
    }

    #[test]
    fn waking_never_blocks_whatever_a_peer_does_with_its_sockets() {
        let _watchdog = Watchdog::start();
        let (sockets, receivers, senders) = peer(1);
        let waker = senders.waker(0);
        // These sockets block by themselves, and the peer takes nothing.
        (0..MANY).for_each(|_| waker.wake());
        assert!(rang(&receivers[0]));
        shutdown(&sockets[0], Shutdown::Both).unwrap();
        waker.wake();
        drop(receivers);
        waker.wake();
    }

    #[test]
    fn the_kernel_takes_no_datagram_of_a_stranger() {
        let (_sockets, receivers, senders) = peer(1);
        let address = senders.waker(0).address;
        let stranger = sockets(1).unwrap().1.remove(0);
        assert_eq!(sendto(&stranger, &[0], SendFlags::DONTWAIT, &address), Err(Errno::PERM));
        assert_eq!(connect(&stranger, &address), Err(Errno::PERM));
        assert!(!rang(&receivers[0]));
    }
}
