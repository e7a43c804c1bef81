//! The posts that wait for one link.

use std::collections::VecDeque;
use std::ops::Range;

use fabric::{CloseReason, LinkId, Port, Posted, Span};
use pbox_core::{ChunkId, Immediate, KeyId, SendQueue, Slices};

use super::error::ExchangeError;

/// The span of a post that is only an immediate.
pub(super) const NO_BYTES: Span = Span { offset: 0, bytes: 0 };

/// The posts that wait for the link to one of the hub's cores. A slice that is begun is finished before the next slice
/// begins. Urgent posts overtake all slices. Allocates nothing after [`Outbox::new`].
#[derive(Debug)]
pub(super) struct Outbox {
    core: usize,
    pub link: LinkId,
    pub urgent: VecDeque<Urgent>,
    /// The queued slices, by number.
    queue: SendQueue<u32>,
    /// The slice that is begun, and its chunks that are not posted yet.
    begun: Option<(u32, Range<usize>)>,
    /// The number of bytes that the link has accepted so far.
    pub posted_bytes: u64,
}

/// A post of a chunk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Post {
    pub span: Span,
    pub immediate: Immediate,
    /// Whether the source is notified when the link accepts the post.
    pub is_noted: bool,
}

/// A source of posts.
pub(super) trait Source {
    /// Returns the post of a chunk or group; `None` if there is nothing to post.
    fn post(&mut self, key: KeyId, chunk: ChunkId) -> Option<Post>;

    /// Notes that a link has accepted a post with `is_noted`.
    fn note(&mut self, immediate: Immediate);
}

/// A post that overtakes all slices.
#[derive(Clone, Copy, Debug)]
pub(super) enum Urgent {
    /// A post that belongs to no push.
    Post(Span, Immediate),
    /// A chunk that is posted again.
    Resend(KeyId, ChunkId),
}

impl Outbox {
    /// Creates the outbox of the link to a core that owns `slices` slices.
    pub fn new(core: usize, link: LinkId, slices: usize) -> Self {
        let urgent = VecDeque::with_capacity(slices);
        Outbox { core, link, urgent, queue: SendQueue::new(slices), begun: None, posted_bytes: 0 }
    }

    /// Queues a slice. Returns false if the queue is full.
    #[must_use]
    pub fn push(&mut self, priority: u32, slice: u32) -> bool {
        self.queue.push(priority, slice)
    }

    /// Whether no post waits.
    pub fn is_empty(&self) -> bool {
        self.begun.is_none() && self.queue.is_empty() && self.urgent.is_empty()
    }

    /// Posts as much as the link accepts. Returns whether the link accepted a post.
    ///
    /// # Errors
    /// Returns an error if the link is closed.
    pub fn post_queued<P: Port>(
        &mut self,
        port: &mut P,
        slices: &Slices,
        source: &mut impl Source,
    ) -> Result<bool, ExchangeError> {
        let mut posted = false;
        while let Some(&urgent) = self.urgent.front() {
            let post = match urgent {
                Urgent::Post(span, immediate) => Some(Post { span, immediate, is_noted: false }),
                Urgent::Resend(key, chunk) => source.post(key, chunk),
            };
            if let Some(Post { span, immediate, .. }) = post {
                if !self.post(port, span, immediate)? {
                    return Ok(posted);
                }
                posted = true;
            }
            self.urgent.pop_front();
        }
        while let Some((number, rest)) = self.next(slices) {
            let key = slices.slice(number).key;
            for at in rest.clone() {
                let chunk: ChunkId = slices.chunks(number)[at];
                if let Some(Post { span, immediate, is_noted }) = source.post(key, chunk) {
                    if !self.post(port, span, immediate)? {
                        self.begun = Some((number, at..rest.end)).filter(|_| at > 0);
                        return Ok(posted);
                    }
                    posted = true;
                    if is_noted {
                        source.note(immediate);
                    }
                }
                if at == 0 {
                    self.queue.pop();
                }
            }
            self.begun = None;
        }
        Ok(posted)
    }

    /// Posts a message. Returns false if the link is full.
    #[inline]
    fn post<P: Port>(&mut self, port: &mut P, span: Span, message: Immediate) -> Result<bool, ExchangeError> {
        match port.post(self.link, span, message.encode()) {
            Posted::Accepted => {
                self.posted_bytes += span.bytes as u64;
                Ok(true)
            }
            Posted::Full => Ok(false),
            Posted::Closed => Err(ExchangeError::closed(self.core, &CloseReason::PeerGone)),
        }
    }

    /// Returns the chunks that are posted next: the rest of the slice that is begun or, if there is none, the first
    /// slice in the queue.
    fn next(&self, slices: &Slices) -> Option<(u32, Range<usize>)> {
        let first = || self.queue.first().map(|number| (number, 0..slices.chunks(number).len()));
        self.begun.clone().or_else(first)
    }
}
