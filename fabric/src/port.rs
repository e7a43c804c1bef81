//! The port: what one thread polls, and the contract that every transport keeps.
//!
//! Exactly one thread at a time owns a port. Each bullet of the contract on [`Port`] is a test of the same
//! name in `conformance`, run over every transport.

use std::fmt;
use std::task::Waker;
use std::time::Duration;

use crate::ids::{Imm, LinkId, Span};

/// A port holds links and sees what arrives over all of them.
///
/// ```text
///   my window           link            peer's window
///   [....####....]  --post(span,imm)-->  [....####....]   then the peer's poll shows imm
/// ```
///
/// The contract:
///
/// - `bytes_before_immediate`: when [`poll`](Port::poll) shows an immediate, the bytes of its span
///   are in the local window.
/// - `each_post_arrives_once`: every accepted post arrives exactly once, as long as the link lives.
/// - `full_is_not_an_error`: a link holds at least its capacity of posts that the peer has not yet polled. Beyond that
///   `post` answers [`Posted::Full`]. Nothing is lost, and the same post is accepted after the peer polled.
/// - `full_ends`: [`set_credit`](Port::set_credit) limits the bytes that the transport holds of a link: accepted and
///   not yet handed to the wire. Beyond the limit, `post` answers `Full`. A link that holds nothing takes one post of
///   any size, and a post without bytes is not limited. Once the link has room again, `wait` returns, without any
///   arrival.
/// - `links_do_not_mix`: an arrival names the link it came over.
/// - `flush_makes_visible`: a post may be held back until [`flush`](Port::flush), and not longer. A transport that has
///   to wait for room sends the rest in later polls and waits. Nothing else is held back.
/// - `wait_returns_on_arrival`: [`wait`](Port::wait) never sleeps past an arrival that it waits for,
///   and may return early for no reason.
/// - `wait_times_out`: `wait` returns after its timeout if nothing happens.
/// - `waker_ends_wait`: using the [`waker`](Port::waker) ends the current `wait`, or the next one.
/// - `closed_after_arrivals`: when the peer detaches or dies, all its earlier posts are still shown. Then
///   [`closed`](Port::closed) names the link once, and `wait` does not sleep past the end of the link.
/// - `detached_is_silent`: after [`detach`](Port::detach) nothing more is shown of a link, and its
///   id may be given to the next link.
/// - `post_on_closed_link`: `post` on a link that is not open answers [`Posted::Closed`].
pub trait Port: Send {
    /// A connected link that no port polls yet.
    type Endpoint: Send;

    /// Adds a connected link. The port shows its arrivals from now on.
    fn attach(&mut self, endpoint: Self::Endpoint) -> LinkId;

    /// Closes a link and forgets it. The peer sees it closed.
    fn detach(&mut self, link: LinkId);

    /// Makes the bytes of `span` in this end's window appear in the peer's window, and then shows the peer `imm`.
    /// The bytes must not change until the layer above knows that the peer has seen them.
    fn post(&mut self, link: LinkId, span: Span, imm: Imm) -> Posted;

    /// Limits the bytes that the transport may hold of a link from now on. A new link has no such limit. The
    /// transport sends the bytes that it holds in the order of their posts, so a later, urgent post cannot
    /// overtake them.
    fn set_credit(&mut self, link: LinkId, bytes: Option<usize>);

    /// Hands over the posts that `post` held back. A transport that lacks room sends the rest in later polls and
    /// waits, so the caller polls or waits until the peer has answered.
    fn flush(&mut self);

    /// Hands over the posts that `post` held back, before a [`flush`](Port::flush) that follows soon. Over NICs
    /// it does nothing, because handing one post to a NIC costs as much as handing over many.
    fn flush_early(&mut self) {
        self.flush();
    }

    /// Writes arrivals to the front of `into`, with an equal share for each link. Returns their number.
    fn poll(&mut self, into: &mut [Arrival]) -> usize;

    /// Returns a link that closed since the last call. The link stays attached, and shows nothing, until
    /// [`detach`](Port::detach).
    fn closed(&mut self) -> Option<Closed>;

    /// Sleeps until `until` may be true, a link closed, the waker woke, or `timeout` passed.
    fn wait(&mut self, until: Until, timeout: Duration);

    /// Returns a handle by which any thread can end [`wait`](Port::wait).
    fn waker(&self) -> Waker;
}

/// A rule for the frames that one end of a link accepts from the other, over a transport that moves bytes. The layer above
/// has one rule for each link. The port's thread applies it before a frame's bytes are written. If a NIC writes the bytes,
/// the thread applies it before the immediate is shown.
pub trait FrameRule: Send + fmt::Debug {
    /// Notes that this end posted this immediate without bytes.
    fn posted_empty(&mut self, imm: Imm);

    /// Checks that a frame of this span may arrive with this immediate.
    ///
    /// # Errors
    /// Returns the reason, in words: the link closes as [`Corrupt`](CloseReason::Corrupt).
    fn check(&mut self, span: Span, imm: Imm) -> Result<(), String>;

    /// Checks that `bytes` bytes may arrive with this immediate, over a transport that does not report their span.
    ///
    /// # Errors
    /// Returns the errors of [`check`](Self::check).
    fn check_length(&mut self, bytes: usize, imm: Imm) -> Result<(), String>;

    /// Returns the meaning of an immediate, for errors.
    fn named(&self, imm: Imm) -> String {
        format!("immediate {:#x}", imm.0)
    }
}

/// The result of a post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Posted {
    /// The post is on its way.
    Accepted,
    /// The link has no room: try again after the peer polled, or when [`Port::wait`] returns. A full link is backpressure, not
    /// an error.
    Full,
    /// The link is closed or unknown.
    Closed,
}

/// The event that a sleeper waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// Any unread arrival on any link ends the wait.
    Any,
    /// `count` unread arrivals on one link. A transport that cannot count may wake earlier. The count works like
    /// interrupt moderation: a worker that needs 1600 chunks is woken once.
    Arrivals {
        /// The link.
        link: LinkId,
        /// The number of unread arrivals that end the wait; at most the link's capacity.
        count: u32,
    },
}

/// An immediate that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The link it came over.
    pub link: LinkId,
    /// The immediate that the peer posted.
    pub imm: Imm,
}

impl Default for Arrival {
    fn default() -> Self {
        Arrival { link: LinkId(0), imm: Imm(0) }
    }
}

/// The bytes that crossed a link since it was attached, as counted at this end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Crossed {
    /// The bytes that were handed to the socket or the NIC.
    pub sent: u64,
    /// The bytes that have arrived from the peer.
    pub received: u64,
}

/// A link that closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Closed {
    /// The link that closed.
    pub link: LinkId,
    /// The reason why it closed.
    pub reason: CloseReason,
}

/// The reason why a link closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// The peer detached, exited or was killed.
    PeerGone,
    /// The peer's side of the link holds values that no correct peer writes.
    Corrupt(String),
    /// The transport below the link failed, with this error of the kernel or the NIC.
    Failed(String),
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CloseReason::PeerGone => write!(f, "the peer closed the link, exited or was killed"),
            CloseReason::Corrupt(what) => write!(f, "the peer corrupted the link: {what}"),
            CloseReason::Failed(what) => write!(f, "the link failed: {what}"),
        }
    }
}
