//! The common part of all handshakes: their result, and the parts of their messages.
//!
//! The bytes come from outside: memory is allocated only for bytes that have arrived. This module does no
//! input or output.

use std::fmt;
use std::ops::RangeInclusive;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::memory::{RecvWindow, WindowError};
use crate::plan::{LinkPorts, MAX_PORTS};

/// The window that receives what the hub of a connection posts.
#[derive(Clone, Debug)]
pub enum Receive {
    /// A new window of this many bytes: the hub's own pages if memory is shared, otherwise new memory.
    New(usize),
    /// An existing window: a window that other peers read, or the window of an earlier connection, whose
    /// addresses must stay. If the window is a view of a peer's pages, it becomes a view of the hub's pages.
    Into(Arc<RecvWindow>),
}

impl From<usize> for Receive {
    /// Creates a new window of `bytes` bytes.
    fn from(bytes: usize) -> Self {
        Receive::New(bytes)
    }
}

impl Receive {
    /// Returns the size of the window.
    pub fn bytes(&self) -> usize {
        match self {
            Receive::New(bytes) => *bytes,
            Receive::Into(window) => window.bytes(),
        }
    }

    /// Returns the window as a view of the pages of this file.
    pub(crate) fn view(self, fd: BorrowedFd) -> Result<Arc<RecvWindow>, WindowError> {
        match self {
            Receive::New(bytes) => Ok(Arc::new(RecvWindow::open(fd, bytes)?)),
            Receive::Into(window) => window.reopen(fd).map(|()| window),
        }
    }

    /// Returns the window as memory of this end.
    pub(crate) fn local(self) -> Result<Arc<RecvWindow>, WindowError> {
        match self {
            Receive::New(bytes) => Ok(Arc::new(RecvWindow::local(bytes)?)),
            Receive::Into(window) => Ok(window),
        }
    }
}

/// The NICs of a link. Logs show `words`.
#[derive(Clone, PartialEq, Eq)]
pub struct NicPair {
    /// The device at the hub.
    pub hub: String,
    /// The device at the other end.
    pub joiner: String,
    /// The names of the NICs, and the reason for the choice.
    pub words: String,
}

impl fmt::Debug for NicPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.words, f)
    }
}

/// The result of a handshake: the window that the peer writes, and the links.
#[derive(Debug)]
pub struct Joined<E> {
    /// The window that the peer writes.
    pub recv: Arc<RecvWindow>,
    /// The links in the order of the plan.
    pub endpoints: Vec<E>,
    /// The NICs that the links use. Empty if there is no choice.
    pub paths: Vec<NicPair>,
    /// The pairs of NICs between which the handshake's trial write failed, in words. Empty without RDMA.
    pub dead: Vec<String>,
    /// The congestion control for the bytes that this end sends. Set only over TCP, at the end that connects.
    pub congestion: Option<String>,
}

impl<E> Joined<E> {
    pub(crate) fn new(recv: Arc<RecvWindow>, endpoints: Vec<E>) -> Self {
        Joined { recv, endpoints, paths: Vec::new(), dead: Vec::new(), congestion: None }
    }

    pub(crate) fn map<T>(self, endpoint: impl Fn(E) -> T) -> Joined<T> {
        let Joined { recv, endpoints, paths, dead, congestion } = self;
        let endpoints = endpoints.into_iter().map(endpoint).collect();
        Joined { recv, endpoints, paths, dead, congestion }
    }
}

/// Returns the body of a message: all that follows the first bytes, which name the handshake and its version.
pub(crate) fn body<'a>(bytes: &'a [u8], magic: &[u8; 8]) -> Result<&'a [u8], String> {
    bytes.strip_prefix(magic).ok_or_else(|| {
        let (expected, seen) = (magic.escape_ascii(), bytes[..bytes.len().min(magic.len())].escape_ascii());
        format!(
            "expected the handshake \"{expected}\", saw \"{seen}\": install the same version at both ends"
        )
    })
}

/// Returns the next bytes of a body.
pub(crate) fn take<const N: usize>(body: &mut &[u8]) -> Result<[u8; N], String> {
    let (head, rest) = body.split_first_chunk().ok_or("the handshake message is too short")?;
    *body = rest;
    Ok(*head)
}

/// Returns the number of items that follow.
pub(crate) fn count(body: &mut &[u8], what: &str, allowed: RangeInclusive<usize>) -> Result<usize, String> {
    let count = u32::from_le_bytes(take(body)?) as usize;
    if !allowed.contains(&count) {
        return Err(format!(
            "the message has {count} {what}; expected {} to {}",
            allowed.start(),
            allowed.end()
        ));
    }
    Ok(count)
}

/// Decodes the number of links, and then the links.
pub(crate) fn links(body: &mut &[u8]) -> Result<Vec<LinkPorts>, String> {
    let count = count(body, "links", 1..=MAX_PORTS)?;
    (0..count).map(|_| Ok(LinkPorts::decode(take(body)?))).collect()
}

/// Encodes links: the reverse of [`links`].
pub(crate) fn encode_links(bytes: &mut Vec<u8>, links: &[LinkPorts]) {
    bytes.extend((links.len() as u32).to_le_bytes());
    bytes.extend(links.iter().flat_map(|link| link.encode()));
}

/// Checks that nothing is left at the end of a message.
pub(crate) fn nothing_left(body: &[u8]) -> Result<(), String> {
    if body.is_empty() {
        Ok(())
    } else {
        Err(format!("the handshake message has {} bytes too many", body.len()))
    }
}
