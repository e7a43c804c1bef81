//! A peer of the shared-memory handshake that says anything and offers any memory, over a socket pair.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::{IoSlice, IoSliceMut};
use rustix::net::{self, AddressFamily, SocketFlags, SocketType};

/// Bytes of the windows of these targets.
pub const WINDOW: usize = 4096;
/// Room of the one ring pair.
pub const CAPACITY: u32 = 8;

/// The end under test, and the peer's.
pub fn socket_pair() -> (OwnedFd, RawPeer) {
    let (ours, theirs) =
        net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .expect("a socket pair");
    (ours, RawPeer(theirs))
}

/// Memory to offer.
pub fn memfd(bytes: u64, seals: SealFlags) -> OwnedFd {
    let fd = memfd_create("phub-fuzz", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("a memfd");
    ftruncate(&fd, bytes).expect("its size");
    fcntl_add_seals(&fd, seals).expect("its seals");
    fd
}

/// The peer's end.
pub struct RawPeer(OwnedFd);

impl RawPeer {
    /// Says anything, with any descriptors.
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

    /// What the end under test said, and what it handed over.
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
        .expect("an answer");
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

/// A hello as a worker says it.
pub fn hello(send_bytes: u64, ports: u32) -> Vec<u8> {
    [b"phubshm1".as_slice(), &[7; 16], &send_bytes.to_le_bytes(), &ports.to_le_bytes()].concat()
}

/// A welcome as a hub says it.
pub fn welcome(send_bytes: u64, ports: u32) -> Vec<u8> {
    [b"phubshm1\0".as_slice(), &send_bytes.to_le_bytes(), &ports.to_le_bytes()].concat()
}
