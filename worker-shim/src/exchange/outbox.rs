//! The posts that wait for one link.

use std::collections::VecDeque;
use std::ops::Range;

use fabric::{CloseReason, LinkId, Port, Posted, Span};
use pbox_core::{ChunkId, Immediate, KeyId, Round, SendQueue, Slices};

use super::error::ExchangeError;

/// The span of a control message, which is an immediate without bytes.
const NO_BYTES: Span = Span { offset: 0, bytes: 0 };

/// The posts that wait for the link to one of the hub's cores. A slice that is begun is finished before the next one.
/// Urgent posts pass all slices. Allocates nothing after [`Outbox::new`].
#[derive(Debug)]
pub(super) struct Outbox {
    core: usize,
    pub link: LinkId,
    pub urgent: VecDeque<Urgent>,
    /// Numbers of slices.
    queue: SendQueue<u32>,
    /// The slice that is begun, and those of its chunks that are not posted.
    begun: Option<(u32, Range<usize>)>,
    /// Bytes that the link took so far.
    pub posted_bytes: u64,
}

/// A post that passes all slices.
#[derive(Clone, Copy, Debug)]
pub(super) enum Urgent {
    /// An immediate without bytes.
    Control(Immediate),
    /// A chunk to post again, because the hub could not read it.
    Again(KeyId, ChunkId),
}

impl Outbox {
    /// For the link to a core that owns so many slices.
    pub fn new(core: usize, link: LinkId, slices: usize) -> Self {
        let urgent = VecDeque::with_capacity(slices);
        Outbox { core, link, urgent, queue: SendQueue::new(slices), begun: None, posted_bytes: 0 }
    }

    /// Queues a slice; false when the queue is full.
    #[must_use]
    pub fn push(&mut self, priority: u32, slice: u32) -> bool {
        self.queue.push(priority, slice)
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.begun.is_none() && self.queue.is_empty() && self.urgent.is_empty()
    }

    /// Posts what the link takes. Returns whether it took anything. `outgoing` gives the span of a chunk that is posted,
    /// and its round.
    ///
    /// # Errors
    /// When the link is closed.
    pub fn post_queued<P: Port>(
        &mut self,
        port: &mut P,
        slices: &Slices,
        mut outgoing: impl FnMut(KeyId, ChunkId) -> (Span, Round),
    ) -> Result<bool, ExchangeError> {
        let mut posted = false;
        while let Some(&urgent) = self.urgent.front() {
            let (span, message) = match urgent {
                Urgent::Control(message) => (NO_BYTES, message),
                Urgent::Again(key, chunk) => {
                    let (span, round) = outgoing(key, chunk);
                    (span, Immediate::new(chunk, round))
                }
            };
            if !self.post(port, span, message)? {
                return Ok(posted);
            }
            posted = true;
            self.urgent.pop_front();
        }
        while let Some((number, rest)) = self.next(slices) {
            let key = slices.slice(number).key;
            for at in rest.clone() {
                let chunk: ChunkId = slices.chunks(number)[at];
                let (span, round) = outgoing(key, chunk);
                if !self.post(port, span, Immediate::new(chunk, round))? {
                    self.begun = Some((number, at..rest.end)).filter(|_| at > 0);
                    return Ok(posted);
                }
                posted = true;
                if at == 0 {
                    self.queue.pop();
                }
            }
            self.begun = None;
        }
        Ok(posted)
    }

    /// Whether the link takes a post; it does not while it is full.
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

    /// The chunks that leave next: the rest of the slice that is begun, else the first slice in the queue.
    fn next(&self, slices: &Slices) -> Option<(u32, Range<usize>)> {
        let first = || self.queue.first().map(|number| (number, 0..slices.chunks(number).len()));
        self.begun.clone().or_else(first)
    }
}
