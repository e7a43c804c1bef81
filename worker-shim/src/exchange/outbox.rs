//! An outbox: posts that a worker has queued for the link to one of the hub's cores.
//!
//! Owned by the exchange. A slice that is begun is finished before the next one. Urgent posts pass all slices.
//! Allocates nothing after [`Outbox::new`].
//!
//! ```text
//!   push -> [slices, by priority] -> [the one begun] --+--> post, as long as the link takes it
//!           [urgent: pulls, chunks that are repeated] -+
//! ```

use std::collections::VecDeque;
use std::ops::Range;

use fabric::{LinkId, Port, Posted, Span};
use pbox_core::{ChunkId, Immediate, KeyId, Round, SendQueue, Slices};

/// The span of a control message, which is an immediate without bytes.
const NO_BYTES: Span = Span { offset: 0, bytes: 0 };

/// A post that passes all slices.
#[derive(Clone, Copy, Debug)]
enum Urgent {
    Control(Immediate),
    /// A chunk to post again, because the hub could not read it.
    Again(KeyId, ChunkId),
}

/// The posts that wait for one link.
#[derive(Debug)]
pub(crate) struct Outbox {
    link: LinkId,
    urgent: VecDeque<Urgent>,
    /// Numbers of slices.
    queue: SendQueue<u32>,
    /// The slice that is begun, and those of its chunks that are not posted.
    begun: Option<(u32, Range<usize>)>,
    posted_bytes: u64,
}

impl Outbox {
    /// For the link to a core that owns so many slices.
    pub fn new(link: LinkId, slices: usize) -> Self {
        let urgent = VecDeque::with_capacity(slices);
        Outbox { link, urgent, queue: SendQueue::new(slices), begun: None, posted_bytes: 0 }
    }

    /// The link that it posts to.
    pub fn link(&self) -> LinkId {
        self.link
    }

    /// Takes in a slice of a key that was pushed.
    pub fn push(&mut self, slices: &Slices, number: u32) {
        assert!(
            self.queue.push(slices.slice(number).priority, number),
            "a key is pushed once until it is answered"
        );
    }

    /// Takes in a control message.
    pub fn control(&mut self, message: Immediate) {
        self.urgent.push_back(Urgent::Control(message));
    }

    /// Takes in a chunk that is to be posted again, before all slices.
    pub fn push_again(&mut self, key: KeyId, chunk: ChunkId) {
        self.urgent.push_back(Urgent::Again(key, chunk));
    }

    /// Bytes that the link took so far.
    pub fn posted_bytes(&self) -> u64 {
        self.posted_bytes
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
    ) -> Result<bool, LinkClosed> {
        let mut posted = false;
        while let Some(&urgent) = self.urgent.front() {
            let (span, message) = match urgent {
                Urgent::Control(message) => (NO_BYTES, message),
                Urgent::Again(key, chunk) => {
                    let (span, round) = outgoing(key, chunk);
                    (span, Immediate::new(chunk, round))
                }
            };
            match port.post(self.link, span, message.encode()) {
                Posted::Accepted => posted = true,
                Posted::Full => return Ok(posted),
                Posted::Closed => return Err(LinkClosed),
            }
            self.posted_bytes += span.bytes as u64;
            self.urgent.pop_front();
        }
        while let Some((number, rest)) = self.next(slices) {
            let key = slices.slice(number).key;
            for at in rest.clone() {
                let chunk: ChunkId = slices.chunks(number)[at];
                let (span, round) = outgoing(key, chunk);
                match port.post(self.link, span, Immediate::new(chunk, round).encode()) {
                    Posted::Accepted => {
                        posted = true;
                        self.posted_bytes += span.bytes as u64;
                    }
                    Posted::Full => {
                        self.begun = Some((number, at..rest.end)).filter(|_| at > 0);
                        return Ok(posted);
                    }
                    Posted::Closed => return Err(LinkClosed),
                }
                if at == 0 {
                    self.queue.pop();
                }
            }
            self.begun = None;
        }
        Ok(posted)
    }

    /// The chunks that leave next: the rest of the slice that is begun, else the first slice in the queue.
    fn next(&self, slices: &Slices) -> Option<(u32, Range<usize>)> {
        let first = || self.queue.first().map(|number| (number, 0..slices.chunks(number).len()));
        self.begun.clone().or_else(first)
    }
}

/// The link is closed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinkClosed;
