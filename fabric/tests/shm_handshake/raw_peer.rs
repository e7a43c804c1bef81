//! A peer of the shared-memory handshake that can send any bytes and offer any memory. It acts as a worker to
//! a real hub, or as a hub to a real worker.

use std::io::Write;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use fabric::Joined;
use fabric::shm::{ConnectError, Endpoint, connect, fuzzing, group};
use fabric::{LinkPorts, PlannedLink, PortId, SendWindow};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::{IoSlice, IoSliceMut};
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

pub const WINDOW: usize = 4096;
pub const TOKEN: [u8; 16] = *b"a worker's token";
/// The name of the socket that wakes the ports of a worker.
pub const NAME: [u8; 16] = *b"the name of ours";
/// The timeout for events that must come in time. The watchdog waits longer.
pub const LONG: Duration = Duration::from_secs(30);
/// The timeout for waits that must time out.
pub const SHORT: Duration = Duration::from_millis(30);
/// The size of a bell: two cache lines. A ring takes three times as much, plus its slots.
pub const BELL_BYTES: u64 = 128;
pub const RINGS_BYTES: u64 = 2 * (3 * 128 + 128);

/// Runs a real worker's attempt to connect.
pub fn join(address: &str, token: [u8; 16], timeout: Duration) -> Result<Joined<Endpoint>, ConnectError> {
    let (group, _ports) = group(1).unwrap();
    connect(
        address,
        token,
        &group,
        &SendWindow::new(WINDOW).unwrap(),
        WINDOW,
        &PlannedLink::of_one_port(&[8]),
        timeout,
    )
}

pub fn new_address() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("phub-handshake-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// The seal that a receiver requires.
pub const GOOD: SealFlags = SealFlags::SHRINK;

pub fn memfd(bytes: u64, seals: SealFlags) -> OwnedFd {
    let fd = memfd_create("phub-test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&fd, bytes).unwrap();
    fcntl_add_seals(&fd, seals).unwrap();
    fd
}

/// Returns an eventfd like that of a hub's port.
pub fn event() -> OwnedFd {
    eventfd(0, EventfdFlags::NONBLOCK).unwrap()
}

/// Returns a hello with one link, of ports 0.
pub fn hello_bytes(send_bytes: u64, ports: u32) -> Vec<u8> {
    fuzzing::hello(TOKEN, send_bytes, ports, vec![LinkPorts { joiner: PortId(0), hub: PortId(0) }])
}

pub fn welcome_bytes(ports: u32) -> Vec<u8> {
    [b"phubshm4\0".as_slice(), &(WINDOW as u64).to_le_bytes(), &ports.to_le_bytes(), &NAME].concat()
}

/// Returns a TCP socket that lingers: it has bytes for a peer that reads nothing, so closing it waits for an
/// hour.
pub fn lingering() -> (OwnedFd, impl Sized) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut socket = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let peer = listener.accept().unwrap();
    socket.set_nonblocking(true).unwrap();
    while socket.write(&[0; 1 << 16]).is_ok() {}
    net::sockopt::set_socket_linger(&socket, Some(Duration::from_secs(3600))).unwrap();
    (socket.into(), (listener, peer))
}

/// A socket of the kind that the handshake uses. It can send any bytes.
pub struct RawPeer(OwnedFd);

impl RawPeer {
    fn new() -> Self {
        RawPeer(
            net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap(),
        )
    }

    pub fn connect(address: &str) -> Self {
        let peer = RawPeer::new();
        net::connect(&peer.0, &SocketAddrUnix::new_abstract_name(address.as_bytes()).unwrap()).unwrap();
        peer
    }

    pub fn listen(address: &str, backlog: i32) -> Self {
        let peer = RawPeer::new();
        net::bind(&peer.0, &SocketAddrUnix::new_abstract_name(address.as_bytes()).unwrap()).unwrap();
        net::listen(&peer.0, backlog).unwrap();
        peer
    }

    pub fn accept(&self) -> Self {
        RawPeer(net::accept_with(&self.0, SocketFlags::CLOEXEC).unwrap())
    }

    pub fn send(&self, bytes: &[u8], fds: &[BorrowedFd]) {
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
        let mut control = net::SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(control.push(net::SendAncillaryMessage::ScmRights(fds)));
        }
        net::sendmsg(&self.0, &[IoSlice::new(bytes)], &mut control, net::SendFlags::NOSIGNAL).unwrap();
    }

    /// Works like [`send`](Self::send), but returns the error if the hub receives no more.
    pub fn try_send(&self, bytes: &[u8], fds: &[BorrowedFd]) -> Result<(), rustix::io::Errno> {
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
        let mut control = net::SendAncillaryBuffer::new(&mut space);
        assert!(control.push(net::SendAncillaryMessage::ScmRights(fds)));
        net::sendmsg(&self.0, &[IoSlice::new(bytes)], &mut control, net::SendFlags::NOSIGNAL).map(drop)
    }

    /// Returns the next message. Closes the descriptors that came with it.
    pub fn receive(&self) -> Vec<u8> {
        let mut bytes = vec![0; 2048];
        let mut control = net::RecvAncillaryBuffer::default();
        let received =
            net::recvmsg(&self.0, &mut [IoSliceMut::new(&mut bytes)], &mut control, net::RecvFlags::empty());
        bytes.truncate(received.unwrap().bytes);
        bytes
    }
}
