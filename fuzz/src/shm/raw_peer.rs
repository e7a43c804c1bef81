//! A peer of the shared-memory handshake that sends any message and offers any memory, over a socket pair.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use fabric::shm::fuzzing;
use fabric::{LinkPorts, PortId};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::{IoSlice, IoSliceMut};
use rustix::net::{self, AddressFamily, SocketFlags, SocketType};

/// The size of the windows of these targets, in bytes.
pub const WINDOW: usize = 4096;
/// The capacity of both rings.
pub const CAPACITY: u32 = 8;
/// The name of the socket that wakes a worker's ports.
const NAME: [u8; 16] = [9; 16];

/// Returns the socket of the end under test, and the peer.
pub fn socket_pair() -> (OwnedFd, RawPeer) {
    let (ours, theirs) =
        net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .expect("a socket pair");
    (ours, RawPeer(theirs))
}

/// Returns a memfd that the peer can offer.
pub fn memfd(bytes: u64, seals: SealFlags) -> OwnedFd {
    let fd = memfd_create("phub-fuzz", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("a memfd");
    ftruncate(&fd, bytes).expect("its size");
    fcntl_add_seals(&fd, seals).expect("its seals");
    fd
}

/// Returns an eventfd that wakes a port of a hub.
pub fn event() -> OwnedFd {
    eventfd(0, EventfdFlags::NONBLOCK).expect("an eventfd")
}

/// The peer's end of the socket.
pub struct RawPeer(OwnedFd);

impl RawPeer {
    /// Sends a message with these descriptors.
    pub fn send(&self, bytes: &[u8], fds: &[OwnedFd]) {
        let fds: Vec<BorrowedFd> = fds.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = net::SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(control.push(net::SendAncillaryMessage::ScmRights(&fds)), "at most 8 descriptors");
        }
        net::sendmsg(&self.0, &[IoSlice::new(bytes)], &mut control, net::SendFlags::NOSIGNAL)
            .expect("an empty socket takes a message");
    }

    /// Returns the message that the end under test sent, and its descriptors.
    pub fn receive(&self) -> (Vec<u8>, Vec<OwnedFd>) {
        let mut bytes = vec![0; 2048];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = net::RecvAncillaryBuffer::new(&mut space);
        let received = net::recvmsg(
            &self.0,
            &mut [IoSliceMut::new(&mut bytes)],
            &mut control,
            net::RecvFlags::CMSG_CLOEXEC | net::RecvFlags::DONTWAIT,
        )
        .expect("a message");
        let fds = control
            .drain()
            .filter_map(|message| match message {
                net::RecvAncillaryMessage::ScmRights(fds) => Some(fds),
                _ => None,
            })
            .flatten()
            .collect();
        bytes.truncate(received.bytes);
        (bytes, fds)
    }
}

/// Returns a worker's hello, with one link of ports 0.
pub fn hello(send_bytes: u64, ports: u32) -> Vec<u8> {
    fuzzing::hello([7; 16], send_bytes, ports, vec![LinkPorts { joiner: PortId(0), hub: PortId(0) }])
}

/// Returns a hub's welcome.
pub fn welcome(send_bytes: u64, ports: u32) -> Vec<u8> {
    [b"phubshm4\0".as_slice(), &send_bytes.to_le_bytes(), &ports.to_le_bytes(), &NAME].concat()
}
