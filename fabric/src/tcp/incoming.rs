//! The receiving half of a link: frames as they come, in whatever pieces.
//!
//! Owned by the port. The bytes of a large frame go straight from the socket into the window. The same call reads the
//! next header. Small frames come many at once, through a buffer.
//!
//! ```text
//!   socket:  ...rest of a span | header | span... |        one readv:  [window][beyond]
//! ```

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rustix::io::Errno;
use zerocopy::FromBytes;

use super::io;
use super::message::{HEADER, Header};
use crate::ids::{Imm, Span};
use crate::memory::RecvWindow;
use crate::port::FrameRule;

/// Room for small frames. They are copied once, which costs less than a system call for each.
const BUFFER: usize = 16 << 10;
/// A frame from this size on is followed by a read of one header alone.
const LARGE: usize = 8 << 10;

/// What a look at the socket gave.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Received {
    /// A frame is whole: its immediate.
    Frame(Imm),
    /// Nothing more for now.
    Nothing,
    /// The peer sends nothing more.
    End,
}

/// Why a connection can no longer be used.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Broken {
    /// The bytes are no frame of this window.
    Frame(String),
    /// The socket failed.
    Socket(Errno),
}

#[derive(Debug)]
pub(super) struct Incoming {
    window: Arc<RecvWindow>,
    /// What may come, if the layer above says that.
    rule: Option<Box<dyn FrameRule>>,
    /// The frame under way: where its missing bytes go, and what to show then.
    frame: Option<(Span, Imm)>,
    buffer: Box<[u8]>,
    /// The bytes of `buffer` that are not yet looked at.
    start: usize,
    end: usize,
    /// How much is read beyond a span.
    beyond: usize,
    /// There may be something to read.
    pub readable: bool,
    /// The kernel reported the end of the stream. It reports it once.
    pub ended: bool,
}

impl Incoming {
    pub fn new(window: Arc<RecvWindow>) -> Self {
        let buffer = vec![0; BUFFER].into_boxed_slice();
        Incoming {
            window,
            rule: None,
            frame: None,
            buffer,
            start: 0,
            end: 0,
            beyond: HEADER,
            readable: true,
            ended: false,
        }
    }

    /// From now on a frame that the rule refuses is an error.
    pub fn obey(&mut self, rule: Box<dyn FrameRule>) {
        self.rule = Some(rule);
    }

    /// This end posted.
    pub fn note_post(&mut self, span: Span, imm: Imm) {
        if let Some(rule) = self.rule.as_mut().filter(|_| span.bytes == 0) {
            rule.posted_empty(imm);
        }
    }

    /// Whether a look may find something.
    pub fn is_promising(&self) -> bool {
        self.readable || self.end - self.start >= HEADER
    }

    /// The next whole frame, if it is there.
    pub fn next(&mut self, socket: BorrowedFd) -> Result<Received, Broken> {
        loop {
            match self.frame {
                Some((Span { bytes: 0, .. }, imm)) => {
                    self.frame = None;
                    return Ok(Received::Frame(imm));
                }
                Some((rest, imm)) if self.start < self.end => {
                    let bytes = rest.bytes.min(self.end - self.start);
                    io::fill(&self.window, rest, &self.buffer[self.start..self.start + bytes]);
                    self.start += bytes;
                    self.frame = Some((after(rest, bytes), imm));
                }
                None if self.end - self.start >= HEADER => {
                    let (header, _) = Header::read_from_prefix(&self.buffer[self.start..self.end])
                        .expect("there are enough bytes");
                    self.start += HEADER;
                    let (span, imm) = header.check(self.window.bytes()).map_err(Broken::Frame)?;
                    if self.window.place(span).is_none() {
                        let Span { offset, bytes } = span;
                        let why = format!(
                            "a frame of {bytes} bytes for offset {offset}, which this end writes itself"
                        );
                        return Err(Broken::Frame(why));
                    }
                    if let Some(rule) = &mut self.rule {
                        rule.check(span, imm).map_err(Broken::Frame)?;
                    }
                    self.beyond = if span.bytes >= LARGE { HEADER } else { BUFFER };
                    self.frame = Some((span, imm));
                }
                _ => match self.receive(socket)? {
                    Some(0) => return Ok(Received::End),
                    Some(_) => {}
                    None => return Ok(Received::Nothing),
                },
            }
        }
    }

    /// Reads once; `None` when nothing is there. The buffer is empty now, except for part of a header.
    fn receive(&mut self, socket: BorrowedFd) -> Result<Option<usize>, Broken> {
        if !self.readable {
            return Ok(None);
        }
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        let (rest, imm) = self.frame.unwrap_or((Span { offset: 0, bytes: 0 }, Imm(0)));
        let room = self.end..self.beyond.max(HEADER);
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
        // The socket gave all that it had. Another edge will come, unless this was the end of the stream.
        self.readable = bytes == asked || self.ended;
        let direct = bytes.min(rest.bytes);
        if rest.bytes > 0 {
            self.frame = Some((after(rest, direct), imm));
        }
        self.end += bytes - direct;
        Ok(Some(bytes))
    }
}

/// What is left of a span after its first bytes.
fn after(span: Span, bytes: usize) -> Span {
    Span { offset: span.offset + bytes, bytes: span.bytes - bytes }
}
