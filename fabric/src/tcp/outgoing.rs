//! The sending half of a link: frames that wait for the socket, in the order of their posts.
//!
//! Owned by the port. Bounded by the link's capacity and credit; allocates nothing after it is made.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rustix::io::Errno;
use zerocopy::IntoBytes;

use super::io::Gather;
use super::message::{HEADER, Header};
use crate::credit::Credit;
use crate::ids::{Imm, Span};
use crate::memory::SendWindow;

#[derive(Debug)]
struct Frame {
    header: Header,
    span: Span,
    /// Bytes of the link's credit.
    counted: usize,
}

#[derive(Debug)]
pub(super) struct Outgoing {
    window: Arc<SendWindow>,
    frames: VecDeque<Frame>,
    capacity: usize,
    pub credit: Credit,
    /// Bytes of the first frame that the socket has.
    sent: usize,
    /// A post found no room.
    refused: bool,
    /// A frame left the queue after that.
    pub relieved: bool,
    /// The socket may take more.
    pub writable: bool,
}

impl Outgoing {
    pub fn new(window: Arc<SendWindow>, capacity: u32) -> Self {
        let capacity = capacity as usize;
        let frames = VecDeque::with_capacity(capacity);
        Outgoing {
            window,
            frames,
            capacity,
            credit: Credit::default(),
            sent: 0,
            refused: false,
            relieved: false,
            writable: true,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Queues a post; false when there is no room.
    ///
    /// # Panics
    /// When the span does not lie in the window.
    pub fn push(&mut self, span: Span, imm: Imm) -> bool {
        assert!(
            self.window.bytes_of(span).is_some(),
            "{span:?} in a window of {} bytes",
            self.window.bytes()
        );
        let room = self.frames.len() < self.capacity;
        let Some(counted) = room.then(|| self.credit.take(span.bytes)).flatten() else {
            self.refused = true;
            return false;
        };
        self.frames.push_back(Frame { header: Header::new(span, imm), span, counted });
        true
    }

    /// Hands over what the socket takes now.
    pub fn pump(&mut self, socket: BorrowedFd) -> Result<(), Errno> {
        while self.writable && !self.frames.is_empty() {
            let mut gather = Gather::new();
            let mut skip = self.sent;
            for Frame { header, span, .. } in &self.frames {
                if !gather.has_room() {
                    break;
                }
                gather.header(header.as_bytes(), skip);
                gather.span(&self.window, *span, skip.saturating_sub(HEADER));
                skip = 0;
            }
            match gather.send(socket) {
                Ok(bytes) => self.advance(bytes),
                // An event comes when there is room again.
                Err(Errno::AGAIN) => self.writable = false,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    fn advance(&mut self, bytes: usize) {
        self.sent += bytes;
        while let Some(first) = self.frames.front()
            && self.sent >= HEADER + first.span.bytes
        {
            self.sent -= HEADER + first.span.bytes;
            self.credit.give(first.counted);
            self.frames.pop_front();
            self.relieved |= std::mem::take(&mut self.refused);
        }
    }
}
