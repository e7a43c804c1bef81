//! The sending half of a link: frames that wait for the socket, in the order of their posts.
//!
//! The port's thread owns it. The link's capacity and credit bound the queue, which allocates no memory after
//! its creation.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rustix::io::Errno;
use zerocopy::IntoBytes;

use super::frames::Frames;
use super::io::{self, Gather, UNSENT_BYTES};
use super::message::Header;
use crate::credit::Credit;
use crate::ids::{Imm, Span};
use crate::memory::SendWindow;

#[derive(Debug)]
struct Frame {
    header: Header,
    span: Span,
    /// The number of bytes that the frame counts against the link's credit.
    counted: usize,
}

#[derive(Debug)]
pub(super) struct Outgoing {
    window: Arc<SendWindow>,
    frames: VecDeque<Frame>,
    capacity: usize,
    pub shape: Frames,
    /// The number of frames at the front of the queue that have their checksums.
    summed: usize,
    pub credit: Credit,
    /// The number of bytes that the socket accepted, including the frames' headers.
    pub total: u64,
    /// The number of bytes of the first frame that the socket has accepted.
    sent: usize,
    /// Whether a post found no room.
    refused: bool,
    /// Whether a frame was sent from the queue since a post found no room.
    pub relieved: bool,
    /// Whether the socket may accept more bytes.
    pub writable: bool,
}

impl Outgoing {
    pub fn new(window: Arc<SendWindow>, capacity: u32, shape: Frames) -> Self {
        let capacity = capacity as usize;
        let frames = VecDeque::with_capacity(capacity);
        Outgoing {
            window,
            frames,
            capacity,
            shape,
            summed: 0,
            credit: Credit::default(),
            total: 0,
            sent: 0,
            refused: false,
            relieved: false,
            writable: true,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Queues a post. Returns false if there is no room.
    ///
    /// # Panics
    /// Panics if the span does not lie in the window.
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

    /// Hands over as many frames as the socket takes now.
    pub fn pump(&mut self, socket: BorrowedFd) -> Result<(), Errno> {
        while self.writable && !self.frames.is_empty() {
            let ready = match self.shape {
                Frames::Plain => self.frames.len(),
                Frames::Summed => self.sum_the_next(),
            };
            let header_bytes = self.shape.header_bytes();
            let mut gather = Gather::new();
            let mut skip = self.sent;
            for Frame { header, span, .. } in self.frames.iter().take(ready) {
                if !gather.has_room() {
                    break;
                }
                gather.header(&header.as_bytes()[..header_bytes], skip);
                gather.span(&self.window, *span, skip.saturating_sub(header_bytes));
                skip = 0;
            }
            match gather.send(socket) {
                Ok(bytes) => self.advance(bytes),
                // The kernel reports an event when the socket has room again.
                Err(Errno::AGAIN) => self.writable = false,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Computes the checksums of the frames that the socket may accept now, just before the kernel copies
    /// their bytes. Returns how many frames at the front of the queue may be sent.
    fn sum_the_next(&mut self) -> usize {
        let (mut frames, mut bytes) = (0, 0);
        for Frame { header, span, .. } in self.frames.iter_mut().take(io::FRAMES) {
            if bytes >= UNSENT_BYTES as usize {
                break;
            }
            if frames >= self.summed {
                header.seal(io::sum_of_post(&self.window, *span));
            }
            (frames, bytes) = (frames + 1, bytes + span.bytes);
        }
        self.summed = self.summed.max(frames);
        frames
    }

    fn advance(&mut self, bytes: usize) {
        let header_bytes = self.shape.header_bytes();
        self.sent += bytes;
        self.total += bytes as u64;
        while let Some(first) = self.frames.front()
            && self.sent >= header_bytes + first.span.bytes
        {
            self.sent -= header_bytes + first.span.bytes;
            self.credit.give(first.counted);
            self.frames.pop_front();
            self.summed = self.summed.saturating_sub(1);
            self.relieved |= std::mem::take(&mut self.refused);
        }
    }
}
