//! The bytes that cross a link: the handshake's two messages, and the header of a frame.
//!
//! The bytes come from outside: every decoder checks what it reads. This module does no input or output.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::frames::{Frames, checksum};
use crate::handshake::body;
use crate::ids::{Imm, Span};
use crate::plan::{LinkPorts, MAX_PORTS, PlannedLink};
use crate::proof::{PROOF, name_of, proof, proves};

/// First bytes of a hello; the digit is the version.
pub(super) const MAGIC: [u8; 8] = *b"phubtcp4";
/// The largest text of a refusal, in bytes.
pub(super) const MAX_WORDS: usize = 1024;

/// The header before a span's bytes. A plain frame has only the fields before the checksums.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Header {
    offset: U64,
    bytes: U32,
    imm: U32,
    /// The checksum of the span's bytes.
    span_sum: U64,
    /// The checksum of the fields above.
    sum: U64,
}

/// The size of the header of a frame with checksums.
pub(super) const HEADER: usize = size_of::<Header>();
pub(super) const PLAIN_HEADER: usize = std::mem::offset_of!(Header, span_sum);
/// The part of a header that its own checksum covers.
const SUMMED_PART: usize = std::mem::offset_of!(Header, sum);

impl Header {
    /// Creates the header of a post. A post is at most one chunk, which is smaller than 4 GiB.
    pub fn new(span: Span, imm: Imm) -> Self {
        let bytes = u32::try_from(span.bytes).expect("a chunk is smaller than 4 GiB");
        let (offset, none) = ((span.offset as u64).into(), 0.into());
        Header { offset, bytes: bytes.into(), imm: imm.0.into(), span_sum: none, sum: none }
    }

    /// Reads a header of the format `frames` from the beginning of `bytes`.
    pub fn read(bytes: &[u8], frames: Frames) -> Self {
        let mut header = Header::new_zeroed();
        let part = frames.header_bytes();
        header.as_mut_bytes()[..part].copy_from_slice(&bytes[..part]);
        header
    }

    /// Adds the checksums.
    pub fn seal(&mut self, span_sum: u64) {
        self.span_sum = span_sum.into();
        self.sum = checksum(&self.as_bytes()[..SUMMED_PART]).into();
    }

    /// Returns the sender's checksum of the span's bytes. Returns an error if the header differs from what
    /// the sender sent, since then nothing in it can be trusted.
    pub fn sealed(&self) -> Result<u64, String> {
        let (expected, seen) = (self.sum.get(), checksum(&self.as_bytes()[..SUMMED_PART]));
        if expected == seen {
            return Ok(self.span_sum.get());
        }
        let (offset, bytes, imm) = (self.offset.get(), self.bytes.get(), self.imm.get());
        Err(format!(
            "the header of a frame (it says {bytes} bytes for offset {offset} with immediate {imm:#x}) has checksum \
             {seen:016x}; expected {expected:016x}"
        ))
    }

    /// Returns the span and the immediate of the frame. Returns an error if the span does not fit in the
    /// window.
    pub fn check(&self, window_bytes: usize) -> Result<(Span, Imm), String> {
        let (offset, bytes) = (self.offset.get(), self.bytes.get());
        match offset.checked_add(u64::from(bytes)) {
            Some(end) if end <= window_bytes as u64 => {
                Ok((Span { offset: offset as usize, bytes: bytes as usize }, Imm(self.imm.get())))
            }
            _ => Err(format!(
                "a frame of {bytes} bytes for offset {offset}, where the window has {window_bytes} bytes"
            )),
        }
    }
}

/// A worker's first message on each connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct HelloMessage {
    magic: [u8; 8],
    /// The name of the worker's token. It is the same on all connections of the worker.
    pub name: [u8; 16],
    link: U32,
    links: U32,
    /// The worker's port and then the hub's port.
    ports: [u8; 4],
    window_bytes: U64,
    /// 1 if the worker wants checksums.
    frames: U32,
    /// The proof that the worker has the token and sent this hello.
    proof: [u8; PROOF],
}

impl HelloMessage {
    pub fn new(
        token: [u8; 16],
        link: usize,
        plan: &[PlannedLink],
        window_bytes: usize,
        frames: Frames,
    ) -> Self {
        let mut hello = HelloMessage {
            magic: MAGIC,
            name: name_of(token),
            link: (link as u32).into(),
            links: (plan.len() as u32).into(),
            ports: plan[link].ports.encode(),
            window_bytes: (window_bytes as u64).into(),
            frames: u32::from(frames == Frames::Summed).into(),
            proof: [0; PROOF],
        };
        hello.proof = proof(token, hello.said());
        hello
    }

    /// Returns the bytes that the proof covers.
    fn said(&self) -> &[u8] {
        self.as_bytes().strip_suffix(&self.proof).expect("it ends with its proof")
    }

    /// Checks that a sender with this token sent the hello.
    pub fn is_proven_by(&self, token: [u8; 16]) -> bool {
        self.name == name_of(token) && proves(token, self.said(), &self.proof)
    }

    pub fn check(self) -> Result<Self, String> {
        let (link, links) = (self.link.get(), self.links.get());
        body(&self.magic, &MAGIC)?;
        if links == 0 || links as usize > MAX_PORTS || link >= links {
            return Err(format!(
                "link {link} of {links}: expected 1 to {MAX_PORTS} links, and a link number below their count"
            ));
        }
        Ok(self)
    }

    /// Whether two hellos can be from one worker.
    pub fn is_of_the_same_worker(&self, other: &Self) -> bool {
        let said = |hello: &Self| (hello.name, hello.links, hello.window_bytes, hello.frames);
        said(self) == said(other)
    }

    /// Returns this link's number among the worker's links.
    pub fn link(&self) -> usize {
        self.link.get() as usize
    }

    /// Returns the number of the worker's links.
    pub fn links(&self) -> usize {
        self.links.get() as usize
    }

    /// Returns the ports that this link joins.
    pub fn ports(&self) -> LinkPorts {
        LinkPorts::decode(self.ports)
    }

    /// Returns the frame format that the worker asks for.
    pub fn frames(&self) -> Frames {
        if self.frames.get() == 0 { Frames::Plain } else { Frames::Summed }
    }

    /// Returns the size of the window from which the worker sends.
    pub fn window_bytes(&self) -> u64 {
        self.window_bytes.get()
    }
}

/// The hub's answer to a hello. In a refusal, a text follows this structure.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct ReplyMessage {
    verdict: U32,
    words: U32,
    window_bytes: U64,
}

const WELCOME: u32 = 1;
const REFUSED: u32 = 2;
/// The code of a welcome with checksums. Any two of the three codes differ in more than one bit.
const WELCOME_SUMMED: u32 = 4;

/// The decoded content of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The worker is admitted. The hub's window has this many bytes, and both ends send frames of this format.
    Welcome { window_bytes: u64, frames: Frames },
    /// The worker is refused. A text of this many bytes follows.
    Refused { words: usize },
}

impl ReplyMessage {
    pub fn welcome(window_bytes: usize, frames: Frames) -> Self {
        let verdict = match frames {
            Frames::Plain => WELCOME,
            Frames::Summed => WELCOME_SUMMED,
        };
        ReplyMessage { verdict: verdict.into(), words: 0.into(), window_bytes: (window_bytes as u64).into() }
    }

    /// Returns a refusal, with its text.
    pub fn refused(why: &str) -> Vec<u8> {
        let end = (0..=MAX_WORDS.min(why.len())).rev().find(|&end| why.is_char_boundary(end));
        let words = &why.as_bytes()[..end.unwrap_or(0)];
        let head = ReplyMessage {
            verdict: REFUSED.into(),
            words: (words.len() as u32).into(),
            window_bytes: 0.into(),
        };
        [head.as_bytes(), words].concat()
    }

    pub fn check(&self) -> Result<Verdict, String> {
        let welcome = |frames| Verdict::Welcome { window_bytes: self.window_bytes.get(), frames };
        match (self.verdict.get(), self.words.get() as usize) {
            (WELCOME, 0) => Ok(welcome(Frames::Plain)),
            (WELCOME_SUMMED, 0) => Ok(welcome(Frames::Summed)),
            (REFUSED, words) if words <= MAX_WORDS => Ok(Verdict::Refused { words }),
            (verdict, words) => Err(format!(
                "the hub answered with the unknown verdict {verdict} and {words} bytes of text; install the same version at both ends"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_stays_in_the_window() {
        let span = |offset, bytes| Span { offset, bytes };
        let check = |span| Header::new(span, Imm(7)).check(1000);
        assert_eq!(check(span(0, 1000)), Ok((span(0, 1000), Imm(7))));
        assert_eq!(check(span(1000, 0)), Ok((span(1000, 0), Imm(7))));
        for bad in [span(0, 1001), span(999, 2), span(usize::MAX, 1), span(1001, 0)] {
            let error = check(bad).unwrap_err();
            assert!(error.contains("the window has 1000 bytes"), "{error}");
        }
    }

    #[test]
    fn no_bit_of_a_sealed_header_changes_unseen() {
        let mut header = Header::new(Span { offset: 64, bytes: 128 }, Imm(7));
        header.seal(99);
        assert_eq!(header.sealed(), Ok(99));
        for bit in 0..8 * HEADER {
            let mut bytes = header.as_bytes().to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let error = Header::read(&bytes, Frames::Summed).sealed().unwrap_err();
            assert!(error.contains("the header of a frame"), "bit {bit}: {error}");
        }
    }

    #[test]
    fn a_hello_of_others_is_refused() {
        let good = HelloMessage::new([1; 16], 2, &PlannedLink::of_one_port(&[8; 3]), 4096, Frames::Summed);
        assert_eq!(good.frames(), Frames::Summed);
        assert_eq!(good.check(), Ok(good));
        assert!(good.is_proven_by([1; 16]) && !good.is_proven_by([2; 16]));
        assert!(!HelloMessage { link: 1.into(), ..good }.is_proven_by([1; 16]), "a proof is for one link");
        assert!(!good.as_bytes().windows(16).any(|part| part == [1; 16]), "the token is not in it");
        assert!(HelloMessage { magic: *b"GET / HT", ..good }.check().unwrap_err().contains("GET / HT"));
        for (link, links) in [(3, 3), (0, 0), (0, 5000)] {
            let bad = HelloMessage { link: link.into(), links: u32::into(links), ..good };
            assert!(bad.check().unwrap_err().contains("expected 1 to"), "{link} of {links}");
        }
    }

    #[test]
    fn refusals_are_cut_to_their_bound() {
        let long = "ü".repeat(MAX_WORDS);
        let bytes = ReplyMessage::refused(&long);
        let (head, words) = ReplyMessage::read_from_prefix(&bytes).unwrap();
        assert_eq!(head.check(), Ok(Verdict::Refused { words: words.len() }));
        assert_eq!(std::str::from_utf8(words).unwrap(), "ü".repeat(MAX_WORDS / 2));
        let huge = ReplyMessage { words: u32::MAX.into(), ..head };
        assert!(huge.check().unwrap_err().contains("install the same version"));
    }
}
