//! A link over TCP: one connection, with its sending half and its receiving half, and the end of the link.
//!
//! The port's thread owns it. A link does not depend on how the port sleeps.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, Shutdown, getsockname, recv, shutdown};

use super::frames::Frames;
use super::incoming::{Broken, Incoming, Received};
use super::io::{UNSENT_BYTES, limit_unsent};
use super::outgoing::Outgoing;
use crate::ids::{Imm, Span};
use crate::links::{Attached, LinkState};
use crate::memory::{RecvWindow, SendWindow};
use crate::port::{CloseReason, Crossed, FrameRule};

/// The time limit for sending the posts that were made before a detach.
pub(super) const LINGER: Duration = Duration::from_secs(2);

/// The lowest limit for the unsent bytes that the kernel may hold. With a lower limit, the link would be idle
/// while this thread does other work.
const LEAST_UNSENT: u32 = 16 << 10;

/// A connected link that no port polls yet. If it is dropped before it is attached, the peer sees that this
/// end left.
#[derive(Debug)]
pub struct Endpoint {
    pub(super) socket: OwnedFd,
    outgoing: Outgoing,
    incoming: Incoming,
}

impl Endpoint {
    pub(super) fn new(
        socket: OwnedFd,
        send: Arc<SendWindow>,
        recv: Arc<RecvWindow>,
        capacity: u32,
        frames: Frames,
    ) -> Self {
        let (outgoing, incoming) = (Outgoing::new(send, capacity, frames), Incoming::new(recv, frames));
        Endpoint { socket, outgoing, incoming }
    }

    /// Whether frames have checksums.
    pub fn is_summed(&self) -> bool {
        self.outgoing.shape == Frames::Summed
    }

    /// Returns the address of this end.
    pub fn local_address(&self) -> Option<IpAddr> {
        let address = SocketAddr::try_from(getsockname(&self.socket).ok()?).ok()?;
        Some(address.ip().to_canonical())
    }

    /// Sets the rule that closes the link when it refuses a frame.
    pub fn obey(&mut self, rule: Box<dyn FrameRule>) {
        self.incoming.obey(rule);
    }
}

#[derive(Debug)]
pub(super) struct Link {
    pub socket: OwnedFd,
    pub outgoing: Outgoing,
    pub incoming: Incoming,
    /// A number that distinguishes the events of this link from those of an earlier link that had the same
    /// id.
    pub generation: u32,
    /// Whether the socket accepts no more bytes. Bytes that arrived before are still read.
    pub broken: bool,
}

impl Link {
    pub fn new(endpoint: Endpoint, generation: u32) -> Self {
        let Endpoint { socket, outgoing, incoming } = endpoint;
        Link { socket, outgoing, incoming, generation, broken: false }
    }

    /// Limits the bytes that this end holds of the link, and the unsent bytes that the kernel holds.
    pub fn set_credit(&mut self, bytes: Option<usize>) {
        self.outgoing.credit.limit_to(bytes);
        let bytes = bytes.and_then(|bytes| u32::try_from(bytes).ok()).unwrap_or(UNSENT_BYTES);
        let unsent = bytes.clamp(LEAST_UNSENT, UNSENT_BYTES);
        // If the kernel refuses, it holds more bytes than it should, but all bytes are still correct.
        let _ = limit_unsent(self.socket.as_fd(), unsent);
    }

    /// Returns the bytes that crossed the link, including the frames' headers.
    pub fn crossed(&self) -> Crossed {
        Crossed { sent: self.outgoing.total, received: self.incoming.total }
    }

    /// Queues a post. Returns false if there is no room.
    pub fn push(&mut self, span: Span, imm: Imm) -> bool {
        let is_queued = self.outgoing.push(span, imm);
        if is_queued {
            self.incoming.note_post(span, imm);
        }
        is_queued
    }

    /// Sends as many bytes as the socket takes.
    pub fn pump(&mut self) {
        if !self.broken && self.outgoing.pump(self.socket.as_fd()).is_err() {
            // The receiving half finds the reason, after it has read all that the peer sent before.
            self.broken = true;
            (self.incoming.readable, self.incoming.ended) = (true, true);
        }
    }
}

impl Attached<Link> {
    /// Whether a post can be accepted.
    pub fn takes_posts(&self) -> bool {
        self.is_open() && !self.link.broken
    }

    /// Whether a read from the link may find a frame or the link's end.
    pub fn is_promising(&self) -> bool {
        if self.is_open() { self.link.incoming.is_promising() } else { self.is_closing() }
    }

    /// Returns the next immediate that has arrived.
    pub fn next(&mut self) -> Option<Imm> {
        if !self.is_open() {
            return None;
        }
        let reason = match self.link.incoming.next(self.link.socket.as_fd()) {
            Ok(Received::Frame(imm)) => return Some(imm),
            Ok(Received::Nothing) => return None,
            Ok(Received::End) => CloseReason::PeerGone,
            Err(Broken::Frame(what)) => CloseReason::Corrupt(what),
            Err(Broken::Altered(what)) => CloseReason::Failed(what),
            Err(Broken::Socket(Errno::CONNRESET | Errno::PIPE)) => CloseReason::PeerGone,
            Err(Broken::Socket(errno)) => {
                CloseReason::Failed(format!("{errno}; are the peer's machine and the network to it up?"))
            }
        };
        let _ = shutdown(&self.link.socket, Shutdown::Both);
        self.state = LinkState::Closing(reason);
        None
    }
}

/// A detached link that still has posts to send.
#[derive(Debug)]
pub(super) struct Lingering {
    link: Link,
    until: Instant,
    said: bool,
}

impl Lingering {
    /// Keeps a link that was just detached until its posts are sent. Returns `None` if the link can no longer
    /// send.
    pub fn new(attached: Attached<Link>) -> Option<Self> {
        let until = Instant::now() + LINGER;
        attached.takes_posts().then(|| Lingering { link: attached.link, until, said: false })
    }

    /// Sends more bytes. Returns true when the link can be closed: the peer's stream has ended, or the time
    /// is over. A close with unread bytes would make the kernels of both ends discard the bytes in flight.
    pub fn advance(&mut self) -> bool {
        self.link.outgoing.writable = true; // the port no longer reads the link's events
        self.link.pump();
        if self.link.outgoing.is_empty() && !std::mem::replace(&mut self.said, true) {
            let _ = shutdown(&self.link.socket, Shutdown::Write);
        }
        let mut scrap = [0u8; 4096];
        let ended = loop {
            match recv(&self.link.socket, &mut scrap, RecvFlags::DONTWAIT) {
                Ok((0, _)) => break true,
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break false,
                Err(_) => break true,
            }
        };
        ended || Instant::now() >= self.until
    }

    pub fn socket(&self) -> &OwnedFd {
        &self.link.socket
    }

    /// Whether all posts have been sent.
    pub fn has_sent(&self) -> bool {
        self.link.outgoing.is_empty()
    }
}
