//! The handshake's messages: fixed little-endian headers, with file descriptors.
//!
//! All bytes come from outside: each field is checked before it is used, and every wait has a timeout. A
//! stranger's descriptors are taken only after its proof was checked, and they are closed where no other
//! thread waits. See `docs/protocol/data-path.md`.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, recv, recvmsg, sendmsg, shutdown, sockopt,
};

use super::waking::Name;
use crate::handshake::{body, count, encode_links, links, nothing_left, take};
use crate::plan::{LinkPorts, MAX_PORTS};
use crate::proof::{PROOF, name_of, proof, proves};

/// First bytes of every message; the digit is the version of this handshake.
const MAGIC: [u8; 8] = *b"phubshm4";
/// The most descriptors that the kernel allows in one message (SCM_MAX_FD).
const MAX_FDS: usize = 253;
/// The longest message: a hello with all its links.
const MAX_BYTES: usize = 56 + 4 * MAX_PORTS + PROOF;
/// The most messages that a stranger may have left in its socket.
const MOST_MESSAGES: usize = 1024;
/// The longest refusal, including the header before its text.
const MAX_REFUSAL: usize = 1024;

/// The message from a worker to a hub, with the descriptors of [gradient window, bells].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HelloMessage {
    /// The name of the worker's token. The token itself is not shown.
    pub token: [u8; 16],
    pub send_bytes: u64,
    /// The number of the worker's ports, each with a bell.
    pub ports: u32,
    /// The common name of the sockets by which the hub wakes these ports.
    pub name: Name,
    /// The ports that the links join, in the order of the links' rings.
    pub links: Vec<LinkPorts>,
    /// The proof that the sender of the hello has the token.
    pub proof: [u8; PROOF],
}

/// The answer from a hub to a worker. It admits the worker, with the descriptors of [weights window, bells,
/// rings, eventfds], or refuses it with a reason. `name` is the name of the socket from which the hub wakes
/// the worker.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ReplyMessage {
    Welcome { send_bytes: u64, ports: u32, name: Name },
    Refused(String),
}

impl HelloMessage {
    /// Creates the hello of a sender that has the token.
    pub fn new(token: [u8; 16], send_bytes: u64, ports: u32, name: Name, links: Vec<LinkPorts>) -> Self {
        let hello = HelloMessage { token: name_of(token), send_bytes, ports, name, links, proof: [0; PROOF] };
        HelloMessage { proof: proof(token, &hello.said()), ..hello }
    }

    pub fn is_proven_by(&self, token: [u8; 16]) -> bool {
        self.token == name_of(token) && proves(token, &self.said(), &self.proof)
    }

    pub fn encode(&self) -> Vec<u8> {
        [&self.said()[..], &self.proof].concat()
    }

    /// Returns the bytes that the proof covers.
    fn said(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(self.token);
        bytes.extend(self.send_bytes.to_le_bytes());
        bytes.extend(self.ports.to_le_bytes());
        bytes.extend(self.name.0);
        encode_links(&mut bytes, &self.links);
        bytes
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        let mut body = body(bytes, &MAGIC)?;
        let token = take(&mut body)?;
        let send_bytes = u64::from_le_bytes(take(&mut body)?);
        let ports = count(&mut body, "ports", 1..=MAX_PORTS)? as u32;
        let name = Name(take(&mut body)?);
        let links = links(&mut body)?;
        let proof = take(&mut body)?;
        nothing_left(body)?;
        if let Some(link) = links.iter().find(|link| link.joiner.index() >= ports as usize) {
            return Err(format!(
                "a link ends at the peer's port {}, and the peer has {ports} ports",
                link.joiner.0
            ));
        }
        Ok(HelloMessage { token, send_bytes, ports, name, links, proof })
    }
}

impl ReplyMessage {
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        match self {
            ReplyMessage::Welcome { send_bytes, ports, name } => {
                bytes.push(0);
                bytes.extend(send_bytes.to_le_bytes());
                bytes.extend(ports.to_le_bytes());
                bytes.extend(name.0);
            }
            ReplyMessage::Refused(why) => {
                bytes.push(1);
                bytes.extend(why.bytes().take(MAX_REFUSAL - bytes.len()));
            }
        }
        bytes
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        let mut body = body(bytes, &MAGIC)?;
        match take::<1>(&mut body)? {
            [0] => {
                let send_bytes = u64::from_le_bytes(take(&mut body)?);
                let ports = count(&mut body, "ports", 1..=MAX_PORTS)? as u32;
                let name = Name(take(&mut body)?);
                nothing_left(body)?;
                Ok(ReplyMessage::Welcome { send_bytes, ports, name })
            }
            [1] => Ok(ReplyMessage::Refused(String::from_utf8_lossy(body).into_owned())),
            [kind] => Err(format!("unknown reply kind {kind}")),
        }
    }
}

/// Sends one message. The socket keeps the boundaries of messages.
pub(crate) fn send(socket: BorrowedFd, bytes: &[u8], fds: &[BorrowedFd]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(fds)), "at most {MAX_FDS} descriptors");
    }
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Tells a peer why it is refused, without waiting for the peer.
pub(super) fn refuse(socket: BorrowedFd, why: &str) {
    let bytes = ReplyMessage::Refused(why.to_owned()).encode();
    let _ = rustix::net::send(socket, &bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
}

/// Reads the next message within `timeout`. The message and its descriptors stay in the socket.
pub(super) fn peek(socket: BorrowedFd, timeout: Duration) -> io::Result<Vec<u8>> {
    sockopt::set_socket_timeout(socket, sockopt::Timeout::Recv, Some(timeout))?;
    let mut bytes = vec![0; MAX_BYTES];
    // The call has no buffer for descriptors. So the descriptors stay in the socket, and none is closed here.
    let read = retry_on_intr(|| recv(socket, &mut bytes, RecvFlags::PEEK)).map_err(silent_for(timeout))?;
    come(bytes, read.0)
}

/// Receives one message and its descriptors, within `timeout`.
pub(crate) fn receive(socket: BorrowedFd, timeout: Duration) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    sockopt::set_socket_timeout(socket, sockopt::Timeout::Recv, Some(timeout))?;
    let (bytes, count, fds, cut) = take_message(socket, RecvFlags::empty()).map_err(silent_for(timeout))?;
    // Descriptors are missing although the buffer had room for them: this process is not allowed to open more
    // descriptors.
    if cut && fds.len() < MAX_FDS {
        return Err(io::Error::other(
            "the receiving process may not open the descriptors that arrived: raise its number of open files (ulimit -n)",
        ));
    }
    Ok((come(bytes, count)?, fds))
}

/// Ends the conversation with a stranger, and closes the descriptors that the stranger has sent. Closing a
/// descriptor may block. The function turns off the linger option of TCP sockets, but other descriptors may
/// still block. So the caller must hold no lock for which other threads wait.
pub(super) fn dispose(socket: OwnedFd) {
    let _ = shutdown(&socket, Shutdown::Both); // no further message can arrive
    drain(socket.as_fd());
}

/// Closes the descriptors in a socket that receives no more messages. May block, like [`dispose`].
pub(super) fn drain(socket: BorrowedFd) {
    for _ in 0..MOST_MESSAGES {
        match take_message(socket, RecvFlags::DONTWAIT) {
            Ok((_, 0, fds, _)) if fds.is_empty() => break,
            Ok((.., fds, _)) => discard(fds),
            Err(_) => break,
        }
    }
}

/// Closes descriptors of a stranger. May block, like [`dispose`].
pub(crate) fn discard(fds: Vec<OwnedFd>) {
    for fd in &fds {
        let _ = sockopt::set_socket_linger(fd, None);
    }
}

/// A received message: bytes, their number, descriptors, and whether descriptors are missing for lack of
/// room.
type Taken = (Vec<u8>, usize, Vec<OwnedFd>, bool);

fn take_message(socket: BorrowedFd, flags: RecvFlags) -> Result<Taken, Errno> {
    let mut bytes = vec![0; MAX_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = retry_on_intr(|| {
        recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags | RecvFlags::CMSG_CLOEXEC)
    })?;
    let fds = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    let fds = fds.flatten().collect();
    Ok((bytes, received.bytes, fds, received.flags.contains(ReturnFlags::CTRUNC)))
}

fn silent_for(timeout: Duration) -> impl Fn(Errno) -> io::Error {
    move |errno| match errno {
        Errno::AGAIN => {
            let what = format!("the other end said nothing for {timeout:?}");
            io::Error::new(io::ErrorKind::TimedOut, what)
        }
        errno => errno.into(),
    }
}

fn come(mut bytes: Vec<u8>, count: usize) -> io::Result<Vec<u8>> {
    if count == 0 {
        return Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            "the other end hung up during the handshake",
        ));
    }
    bytes.truncate(count);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::PortId;
    use proptest::prelude::*;

    #[test]
    fn messages_survive_the_wire() {
        let hello = hello(2, vec![LinkPorts { joiner: PortId(1), hub: PortId(300) }; MAX_PORTS]);
        assert!(hello.encode().len() <= MAX_BYTES);
        assert_eq!(HelloMessage::decode(&hello.encode()), Ok(hello));
        let welcome = ReplyMessage::Welcome { send_bytes: 12, ports: 16, name: Name([9; 16]) };
        assert_eq!(ReplyMessage::decode(&welcome.encode()), Ok(welcome));
        let refused = ReplyMessage::Refused("no such token".into());
        assert_eq!(ReplyMessage::decode(&refused.encode()), Ok(refused));
    }

    fn hello(ports: u32, links: Vec<LinkPorts>) -> HelloMessage {
        HelloMessage::new([7; 16], 1 << 40, ports, Name([8; 16]), links)
    }

    #[test]
    fn a_proof_is_of_one_token_and_of_all_that_was_said() {
        let said = hello(1, vec![LinkPorts { joiner: PortId(0), hub: PortId(0) }]);
        assert!(said.is_proven_by([7; 16]) && !said.is_proven_by([8; 16]));
        assert!(!said.encode().windows(16).any(|bytes| bytes == [7; 16]), "the token is not shown");
        for other in [
            HelloMessage { send_bytes: 1, ..said.clone() },
            HelloMessage { name: Name([9; 16]), ..said.clone() },
            HelloMessage { token: [0; 16], ..said.clone() },
            HelloMessage { proof: [0; PROOF], ..said.clone() },
        ] {
            assert!(!other.is_proven_by([7; 16]), "{other:?}");
        }
    }

    #[test]
    fn links_of_ports_that_are_not_there_are_refused() {
        let link = LinkPorts { joiner: PortId(1), hub: PortId(0) };
        let refused = |ports, links| HelloMessage::decode(&hello(ports, links).encode()).unwrap_err();
        assert_eq!(refused(1, vec![link]), "a link ends at the peer's port 1, and the peer has 1 ports");
        assert_eq!(refused(1, vec![]), "the message has 0 links; expected 1 to 4096");
        assert_eq!(refused(4097, vec![link]), "the message has 4097 ports; expected 1 to 4096");
    }

    #[test]
    fn another_version_is_named() {
        let error = HelloMessage::decode(b"phubshm9........").unwrap_err();
        assert!(error.contains("phubshm4") && error.contains("phubshm9"), "{error}");
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_fail(mut bytes in proptest::collection::vec(any::<u8>(), 0..64), ours: bool) {
            if ours {
                bytes.splice(0..0, MAGIC);
            }
            let _ = HelloMessage::decode(&bytes);
            let _ = ReplyMessage::decode(&bytes);
        }
    }
}
