//! The result of encoding a chunk.

/// The result of encoding a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encoded {
    /// The number of bytes to send, from the start of the payload.
    pub bytes: usize,
    /// The number of values that were NaN or infinite.
    pub not_finite: u32,
}
