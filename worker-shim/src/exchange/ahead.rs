//! Bytes ahead: a key's gradient that is sent before its push. The push is then only an immediate, without bytes.
//!
//! ```text
//!   Here --send_ahead--> Queued --link takes the bytes--> Sent --push--> Pushed
//!     |                    |                               |               ^
//!     |                    +--push: with its bytes---------|---------------+
//!     +----push: with its bytes----------------------------|---------------+
//!     ^                                                    |
//!     +----------------------- rewritten ------------------+
//! ```
//!
//! Bytes ahead have no effect until the push, and may be sent again. The hub may answer bytes ahead
//! (`JobTerms::answers_ahead`): it may then write the chunk's weights before the push. These weights are valid only
//! when the answer to the push arrives. Bytes ahead are sent only between the answer of a round and the next push, when
//! the hub no longer reads the old gradient. In three cases nothing is sent ahead. On shared memory both windows are
//! the same pages, so sending ahead would save nothing. Frames with checksums must not be rewritten while they are
//! sent. A codec encodes only once per push.
//!
//! Part of the exchange, on the worker's thread. Does not depend on the transport.

use fabric::{LinkId, Port, Span};
use pbox_core::{ChunkId, Content, Immediate, KeyId, Round};

use super::error::ExchangeError;
use super::exchange::{Awaited, Exchange, KeyState};
use super::outbox::{NO_BYTES, Post, Urgent};
use super::windows::Windows;

/// The chunks of keys that are sent ahead.
#[derive(Debug)]
pub(super) struct Ahead {
    /// Whether sending ahead saves time, by core. Empty if it saves time on no link.
    over: Vec<bool>,
    /// Whether the hub may answer bytes ahead.
    pub are_answered: bool,
    /// The state of each chunk.
    chunks: Vec<Left>,
}

/// The progress of sending a chunk: for the push in flight or, if there is none, for its key's next push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    /// Nothing is sent.
    Here,
    /// Nothing is sent. In the first chunk of a slice, this state says that the whole slice is queued.
    Queued,
    /// The bytes are sent ahead.
    Sent,
    /// The push is sent.
    Pushed,
}

impl Ahead {
    pub fn new(chunks: usize) -> Self {
        Ahead { over: Vec::new(), are_answered: false, chunks: vec![Left::Here; chunks] }
    }

    /// Returns the post of a chunk whose key is sent ahead; `None` if there is nothing to post.
    fn post(&self, windows: &mut Windows, state: &KeyState, chunk: ChunkId) -> Option<(Span, Content)> {
        let whole = |windows: &mut Windows| windows.outgoing(chunk, state.round, state.content);
        if state.outstanding == 0 {
            return Some((whole(windows), Content::Ahead));
        }
        match (self.chunks[chunk.index()], state.content) {
            (Left::Pushed, _) => None,
            (Left::Sent, Content::Gradient) | (_, Content::Nothing) => Some((NO_BYTES, state.content)),
            (_, content) => Some((whole(windows), content)),
        }
    }

    /// Notes that a chunk was posted.
    #[cold]
    pub fn note(&mut self, chunk: ChunkId, content: Content) {
        self.chunks[chunk.index()] = if content == Content::Ahead { Left::Sent } else { Left::Pushed };
    }

    /// Resets the state of all chunks, because the links are new.
    pub fn forget_all(&mut self) {
        self.chunks.fill(Left::Here);
    }
}

/// Returns the post of a chunk or a group, if its push is not a plain gradient; `None` if there is nothing to
/// post.
#[cold]
pub(super) fn post_other(
    windows: &mut Windows,
    ahead: &Ahead,
    state: &KeyState,
    chunk: ChunkId,
) -> Option<Post> {
    let (span, content) = match (state.ahead, state.content) {
        (true, _) => ahead.post(windows, state, chunk)?,
        (false, Content::Nothing) => (NO_BYTES, Content::Nothing),
        (false, content) => (windows.outgoing(chunk, state.round, content), content),
    };
    let immediate = Immediate::new(chunk, state.round).with(content);
    Some(Post { span, immediate, is_noted: state.ahead })
}

impl<P: Port> Exchange<P> {
    /// Allows gradients to be sent before their pushes, over the links to the cores for which `over` is true.
    /// `are_answered` says whether the hub may answer bytes ahead.
    pub fn let_ahead(&mut self, over: Vec<bool>, are_answered: bool) {
        self.ahead.are_answered = are_answered;
        self.ahead.over = if over.contains(&true) { over } else { Vec::new() };
    }

    /// Whether sending a key's gradient before its push saves time.
    pub fn leaves_ahead(&self, key: KeyId) -> bool {
        let is_plain = self.first_awaited == Awaited::Answer && self.windows.coder().is_none();
        !self.ahead.over.is_empty() && is_plain && self.slices.group(key).is_none()
    }

    /// Whether bytes of a key were sent, or queued to be sent, ahead of its next push or of the push in flight.
    pub(crate) fn has_left(&self, key: KeyId) -> bool {
        self.keys.get(key.index()).is_some_and(|state| state.ahead)
    }

    /// Sends the bytes of a key's gradient before its push, if that saves time. May be called again. If the link
    /// takes the bytes before the push, and the gradient is not [rewritten](Self::rewritten), the push has no
    /// bytes. The [`flush`](Self::flush) must follow soon.
    ///
    /// # Errors
    /// Returns an error while the key is in flight.
    pub fn send_ahead(&mut self, key: KeyId) -> Result<(), ExchangeError> {
        self.check_idle(key, "sending its gradient ahead")?;
        let is_first = self.keys[key.index()].round == Round(0) && self.broadcasts;
        if is_first || !self.leaves_ahead(key) {
            return Ok(());
        }
        let was_ahead = std::mem::replace(&mut self.keys[key.index()].ahead, true);
        for slice in self.slices.of_key(key) {
            let chunks = self.slices.chunks(slice);
            let is_queued = was_ahead && self.ahead.chunks[chunks[0].index()] == Left::Queued;
            let leaves = self.ahead.over[self.slices.slice(slice).core];
            let left = if leaves { Left::Queued } else { Left::Here };
            chunks.iter().for_each(|chunk| self.ahead.chunks[chunk.index()] = left);
            if leaves && !is_queued {
                self.queue(slice);
            }
        }
        self.post_put()
    }

    /// Whether an arrival may be weights that the hub sends before the push, because the key's gradient was sent ahead in this
    /// round. Such weights count only when the answer arrives.
    pub(super) fn may_come_ahead(&self, link: LinkId, arrival: Immediate) -> bool {
        if arrival.chunk.index() >= self.awaited.len() {
            return false;
        }
        let core = self.slices.core_of(arrival.chunk);
        let KeyState { round, ahead, .. } = self.keys[self.layout.chunk(arrival.chunk).key.index()];
        let is_of = arrival == Immediate::new(arrival.chunk, round).with(Content::Ahead);
        ahead && is_of && link == self.outboxes[core].link
    }

    /// Notes that a key's gradient differs from the bytes that were sent ahead. The next push then sends all
    /// bytes.
    pub fn rewritten(&mut self, key: KeyId) {
        if !self.keys.get(key.index()).is_some_and(|state| state.ahead && state.outstanding == 0) {
            return;
        }
        for chunk in self.layout.key_chunks(key) {
            let left = &mut self.ahead.chunks[chunk as usize];
            if *left == Left::Sent {
                *left = Left::Here;
            }
        }
    }

    /// Queues the slices of a key that was sent ahead, except slices that are queued already. If all bytes of a slice
    /// are at the hub, the slice's push overtakes all other posts. So the slice's answer can arrive while other bytes
    /// are being sent.
    #[cold]
    pub(super) fn queue_rest(&mut self, key: KeyId) {
        let KeyState { round, content, .. } = self.keys[key.index()];
        for number in self.slices.of_key(key) {
            let chunks = self.slices.chunks(number);
            let is_sent = |chunk: &ChunkId| self.ahead.chunks[chunk.index()] == Left::Sent;
            if content == Content::Gradient && chunks.iter().all(is_sent) {
                let core = self.slices.slice(number).core;
                for &chunk in chunks {
                    self.ahead.chunks[chunk.index()] = Left::Pushed;
                    self.outboxes[core]
                        .urgent
                        .push_back(Urgent::Post(NO_BYTES, Immediate::new(chunk, round)));
                }
            } else if self.ahead.chunks[chunks[0].index()] != Left::Queued {
                self.queue(number);
            }
        }
    }

    /// Resets the state of the bytes that were sent ahead: they were lost with the links.
    pub(super) fn forget_ahead(&mut self) {
        self.keys.iter_mut().for_each(|state| state.ahead = false);
        self.ahead.forget_all();
    }
}
