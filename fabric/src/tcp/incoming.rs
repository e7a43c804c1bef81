//! The receiving half of a link: frames that arrive in pieces of any size.
//!
//! The port's thread owns it. The bytes of a large frame go from the socket directly into the window, and the
//! same call reads the next header. Small frames are read many at once, through a buffer.
//!
//! ```text
//!   socket:  ...rest of a span | header | span... |        one readv:  [window][beyond]
//! ```

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rustix::io::Errno;

use super::frames::Frames;
use super::io;
use super::message::Header;
use crate::ids::{Imm, Span};
use crate::memory::RecvWindow;
use crate::port::FrameRule;

/// The size of the buffer for small frames. Copying a small frame once costs less than a system call.
const BUFFER: usize = 16 << 10;
/// The smallest size of a large frame. With the rest of a large frame, a read takes at most the next header. With the
/// rest of a smaller frame, a read takes as many further bytes as the buffer holds.
const LARGE: usize = 8 << 10;

/// The result of a read from the socket.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Received {
    /// A complete frame, with this immediate.
    Frame(Imm),
    /// Nothing more has arrived.
    Nothing,
    /// The peer sends nothing more.
    End,
}

/// The reason why a connection can no longer be used.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Broken {
    /// The bytes are not a frame of this window.
    Frame(String),
    /// The bytes differ from those that the sender sent.
    Altered(String),
    /// The socket failed.
    Socket(Errno),
}

/// A frame that has arrived in part.
#[derive(Clone, Copy, Debug)]
struct PartialFrame {
    span: Span,
    /// The part of the span that has not arrived yet.
    rest: Span,
    imm: Imm,
    /// The checksum that the sender computed for the span.
    sum: u64,
}

#[derive(Debug)]
pub(super) struct Incoming {
    window: Arc<RecvWindow>,
    /// The rule for frames, if the layer above has one.
    rule: Option<Box<dyn FrameRule>>,
    frame: Option<PartialFrame>,
    shape: Frames,
    buffer: Box<[u8]>,
    /// The index of the first byte in `buffer` that was not processed.
    start: usize,
    end: usize,
    /// The number of bytes that a read may put into the buffer after the rest of a span.
    beyond: usize,
    /// The bytes that have arrived, including the frames' headers.
    pub total: u64,
    /// Whether the socket may have something to read.
    pub readable: bool,
    /// Whether the kernel reported the end of the stream. The kernel reports it only once.
    pub ended: bool,
}

impl Incoming {
    pub fn new(window: Arc<RecvWindow>, shape: Frames) -> Self {
        let buffer = vec![0; BUFFER].into_boxed_slice();
        Incoming {
            window,
            rule: None,
            frame: None,
            shape,
            buffer,
            start: 0,
            end: 0,
            beyond: shape.header_bytes(),
            total: 0,
            readable: true,
            ended: false,
        }
    }

    /// Sets the rule for frames. A frame that the rule refuses is an error from then on.
    pub fn obey(&mut self, rule: Box<dyn FrameRule>) {
        self.rule = Some(rule);
    }

    /// Tells the rule about a post of this end, if the post has no bytes.
    pub fn note_post(&mut self, span: Span, imm: Imm) {
        if let Some(rule) = self.rule.as_mut().filter(|_| span.bytes == 0) {
            rule.posted_empty(imm);
        }
    }

    /// Whether `next` may find a frame.
    pub fn is_promising(&self) -> bool {
        self.readable || self.end - self.start >= self.shape.header_bytes()
    }

    /// Returns the next whole frame, if it has arrived.
    pub fn next(&mut self, socket: BorrowedFd) -> Result<Received, Broken> {
        let header_bytes = self.shape.header_bytes();
        loop {
            match self.frame {
                Some(whole @ PartialFrame { rest: Span { bytes: 0, .. }, imm, .. }) => {
                    self.frame = None;
                    if self.shape == Frames::Summed {
                        self.compare(whole)?;
                    }
                    return Ok(Received::Frame(imm));
                }
                Some(PartialFrame { rest, .. }) if self.start < self.end => {
                    let bytes = rest.bytes.min(self.end - self.start);
                    io::fill(&self.window, rest, &self.buffer[self.start..self.start + bytes]);
                    self.start += bytes;
                    self.came(bytes);
                }
                None if self.end - self.start >= header_bytes => {
                    let header = Header::read(&self.buffer[self.start..self.end], self.shape);
                    self.start += header_bytes;
                    let sum = match self.shape {
                        Frames::Plain => 0,
                        Frames::Summed => header.sealed().map_err(altered)?,
                    };
                    let (span, imm) = header.check(self.window.bytes()).map_err(Broken::Frame)?;
                    if self.window.place(span).is_none() {
                        let Span { offset, bytes } = span;
                        let why = format!(
                            "a frame of {bytes} bytes for offset {offset}, where only this end may write"
                        );
                        return Err(Broken::Frame(why));
                    }
                    if let Some(rule) = &mut self.rule {
                        rule.check(span, imm).map_err(Broken::Frame)?;
                    }
                    self.beyond = if span.bytes >= LARGE { header_bytes } else { BUFFER };
                    self.frame = Some(PartialFrame { span, rest: span, imm, sum });
                }
                _ => match self.receive(socket)? {
                    Some(0) => return Ok(Received::End),
                    Some(_) => {}
                    None => return Ok(Received::Nothing),
                },
            }
        }
    }

    /// Reads from the socket once. Returns `None` if no bytes have arrived. The buffer must be empty, except
    /// for part of a header.
    fn receive(&mut self, socket: BorrowedFd) -> Result<Option<usize>, Broken> {
        if !self.readable {
            return Ok(None);
        }
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        let rest = self.frame.map_or(Span { offset: 0, bytes: 0 }, |frame| frame.rest);
        let room = self.end..self.beyond;
        let asked = rest.bytes + room.len();
        let bytes = match io::receive(socket, &self.window, rest, &mut self.buffer[room]) {
            Ok(bytes) => bytes,
            Err(Errno::AGAIN) => {
                self.readable = false;
                return Ok(None);
            }
            Err(Errno::INTR) => return self.receive(socket),
            Err(errno) => return Err(Broken::Socket(errno)),
        };
        // A short read means that the socket has no more bytes now. Another event will follow, unless the
        // stream has ended.
        self.readable = bytes == asked || self.ended;
        self.total += bytes as u64;
        let direct = bytes.min(rest.bytes);
        self.came(direct);
        self.end += bytes - direct;
        Ok(Some(bytes))
    }

    /// Notes that the next `bytes` bytes of the incomplete frame are in the window.
    fn came(&mut self, bytes: usize) {
        if let Some(PartialFrame { rest, .. }) = &mut self.frame {
            *rest = Span { offset: rest.offset + bytes, bytes: rest.bytes - bytes };
        }
    }

    /// Checks that the bytes of a complete frame are those that the peer sent.
    fn compare(&self, PartialFrame { span, imm, sum, .. }: PartialFrame) -> Result<(), Broken> {
        let (seen, Span { offset, bytes }) = (io::sum_of_arrival(&self.window, span), span);
        if seen == sum {
            return Ok(());
        }
        let named =
            self.rule.as_ref().map_or_else(|| format!("immediate {:#x}", imm.0), |rule| rule.named(imm));
        let what = format!(
            "a frame of {bytes} bytes for offset {offset} with {named} has checksum {seen:016x}, expected {sum:016x}"
        );
        Err(altered(what))
    }
}

fn altered(what: String) -> Broken {
    Broken::Altered(format!(
        "{what}: the network, a NIC or a machine's memory alters bytes, and TCP's checksum of 16 bits does not notice it; look at the \
         error counters of both NICs (`ethtool -S`) and of the switches between them, or take another path"
    ))
}
