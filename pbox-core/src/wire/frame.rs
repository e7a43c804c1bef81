//! Frames. In a compressed job, links carry frames instead of a chunk's bare values. A frame has a header, then the payload.
//!
//! ```text
//!   0          1                4                 8
//!   [ kind: u8 ][ gradients: u24 ][ payload bytes: u32 ][ payload ... ]      little endian
//! ```
//!
//! A worker's frame has 0 in `gradients`. A hub's frame has the number of gradients in its sum.
//!
//! Pure functions of bytes, used at both ends. The codec or the key's type defines the payload. Every function accepts any
//! bytes, because the bytes belong to another process and may change during a read.

use super::counted::MAX_GRADIENTS;
use crate::codec::PayloadError;
use crate::slim;

/// The length of the header, in bytes. With eight, payload values of four bytes stay aligned.
pub const HEADER_BYTES: usize = 8;

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The chunk's unchanged values, in the key's type.
    Raw = 1,
    /// The chunk's values as a codec wrote them.
    Coded = 2,
}

impl Kind {
    fn name(of: u8) -> &'static str {
        match of {
            1 => "raw",
            2 => "coded",
            _ => "neither raw nor coded",
        }
    }
}

/// The difference between a frame and the expected frame.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[allow(missing_docs)] // each variant is its message; the message prints the fields
pub enum FrameError {
    #[error("its frame is {} (kind {seen}); expected {}", Kind::name(*.seen), Kind::name(*.expected as u8))]
    Kind { expected: Kind, seen: u8 },

    #[error("its frame says {seen} bytes of payload, where the chunk has {expected}")]
    Raw { expected: usize, seen: u32 },

    #[error("its frame says {seen} bytes of payload, where there is room for {room}")]
    Room { room: usize, seen: u32 },

    #[error("its frame is invalid: {0}")]
    Payload(#[from] PayloadError),

    #[error("its frame is invalid: {0}")]
    Slim(#[from] slim::SlimPayloadError),

    #[error("its sum says that {seen} gradients are in it; expected 1 to {MAX_GRADIENTS}")]
    Count { seen: u32 },
}

/// Writes the header of a frame.
///
/// # Panics
/// Panics if the frame has no room for a header.
pub fn write_header(frame: &mut [u8], kind: Kind, payload_bytes: usize) {
    let bytes =
        u32::try_from(payload_bytes).expect("a chunk has at most 1 GiB, and its payload 4 times that");
    frame[..4].copy_from_slice(&[kind as u8, 0, 0, 0]);
    frame[4..HEADER_BYTES].copy_from_slice(&bytes.to_le_bytes());
}

/// Writes the number of gradients in the values into a frame's header.
///
/// # Panics
/// Panics if the number is not possible for a sum.
pub fn write_count(frame: &mut [u8], gradients: u32) {
    assert!((1..=MAX_GRADIENTS).contains(&gradients), "{gradients} gradients in a sum");
    frame[1..4].copy_from_slice(&gradients.to_le_bytes()[..3]);
}

/// Reads the number of gradients from a frame's header.
pub fn count(frame: &[u8]) -> u32 {
    u32::from_le_bytes([frame[1], frame[2], frame[3], 0])
}

/// Returns the payload of a frame. The frame lies at the beginning of `room`.
///
/// # Errors
/// Returns an error if the frame is of another kind, or if its header gives a length that is larger than the room.
pub fn payload(room: &[u8], expected: Kind) -> Result<&[u8], FrameError> {
    let (header, room) = room.split_at(HEADER_BYTES);
    let kind = header[0];
    if kind != expected as u8 {
        return Err(FrameError::Kind { expected, seen: kind });
    }
    let seen = u32::from_le_bytes([header[4], header[5], header[6], header[7]]);
    room.get(..seen as usize).ok_or(FrameError::Room { room: room.len(), seen })
}

/// Returns the values of a raw frame, as [`payload`] does, for a chunk of this many bytes.
pub fn raw(room: &[u8], bytes: usize) -> Result<&[u8], FrameError> {
    let payload = payload(room, Kind::Raw)?;
    if payload.len() != bytes {
        return Err(FrameError::Raw { expected: bytes, seen: payload.len() as u32 });
    }
    Ok(payload)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_says_what_it_holds() {
        let mut frame = [7; 20];
        write_header(&mut frame, Kind::Coded, 5);
        assert_eq!(payload(&frame, Kind::Coded), Ok(&[7; 5][..]));
        assert_eq!(count(&frame), 0);
        write_header(&mut frame, Kind::Raw, 12);
        write_count(&mut frame, MAX_GRADIENTS);
        assert_eq!((raw(&frame, 12), count(&frame)), (Ok(&[7; 12][..]), MAX_GRADIENTS));
    }

    #[test]
    fn a_frame_that_lies_is_told_what_was_expected() {
        let says = |frame: &[u8], kind| payload(frame, kind).unwrap_err().to_string();
        let mut frame = [0; 20];
        assert_eq!(says(&frame, Kind::Raw), "its frame is neither raw nor coded (kind 0); expected raw");
        write_header(&mut frame, Kind::Raw, 12);
        assert_eq!(says(&frame, Kind::Coded), "its frame is raw (kind 1); expected coded");
        assert_eq!(raw(&frame, 8), Err(FrameError::Raw { expected: 8, seen: 12 }));
        write_header(&mut frame, Kind::Coded, 13);
        assert_eq!(
            says(&frame, Kind::Coded),
            "its frame says 13 bytes of payload, where there is room for 12"
        );
        frame[4..8].fill(0xff);
        assert_eq!(payload(&frame, Kind::Coded), Err(FrameError::Room { room: 12, seen: u32::MAX }));
    }
}
