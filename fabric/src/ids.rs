//! The small values that cross every transport: spans, immediates, link numbers.
//!
//! This module has only data. It does not depend on what a span holds, or on what an immediate means.

/// A byte range of a window. The same span names the same bytes at both ends of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    /// First byte, counted from the start of the window.
    pub offset: usize,
    /// Length in bytes.
    pub bytes: usize,
}

impl Span {
    /// Returns the offset after the last byte, or `None` if it does not fit in a `usize`.
    pub fn end(self) -> Option<usize> {
        self.offset.checked_add(self.bytes)
    }

    /// Returns the span from this span's first byte to the last byte of a later span.
    pub fn to(self, last: Span) -> Span {
        Span { offset: self.offset, bytes: last.offset + last.bytes - self.offset }
    }
}

/// The 32 bits that a post shows to the peer; RDMA's immediate data. The layer above defines their meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Imm(pub u32);

/// The id of a link at one port. The port of a transport gives a new link its lowest free id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u32);

impl LinkId {
    /// Returns the number as an index into per-link tables.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}
