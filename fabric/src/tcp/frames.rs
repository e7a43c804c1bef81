//! The frame format of a link: plain frames, or frames with checksums.
//!
//! Both ends agree on the format in the handshake, and it is fixed from then on. If one end asks for
//! checksums, both directions have them.

use twox_hash::XxHash3_64;

use super::message::{HEADER, PLAIN_HEADER};

/// The frame format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Frames {
    /// Plain frames. TCP's checksum of 16 bits protects them.
    #[default]
    Plain,
    /// Each frame has a checksum of its header and a checksum of its bytes, 64 bits each.
    Summed,
}

impl Frames {
    /// Returns frames with checksums if `asked`.
    pub fn summed_if(asked: bool) -> Self {
        if asked { Frames::Summed } else { Frames::Plain }
    }

    /// Returns the frame format of the link: with checksums if either end asks for them.
    pub(super) fn agreed(self, other: Self) -> Self {
        Self::summed_if(self == Frames::Summed || other == Frames::Summed)
    }

    pub(super) fn header_bytes(self) -> usize {
        match self {
            Frames::Plain => PLAIN_HEADER,
            Frames::Summed => HEADER,
        }
    }
}

/// Computes the checksum: XXH3 with 64 bits (decision 37).
pub(super) fn checksum(bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot(bytes)
}
