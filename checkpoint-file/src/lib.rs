//! The bytes of a checkpoint: a job's weights and optimizer state, or some of them, as a safetensors file. A hub writes such a file
//! to its disk, and sends it to readers of weights. `docs/formats.md` has the format.
//!
//! | file | content |
//! | --- | --- |
//! | `format.rs` | the order and the names in a file, and the plan of a new file |
//! | `read.rs` | a parser that trusts nothing in a file |
//! | `decoded.rs` | a checkpoint in memory, and whether it belongs to a job |
//! | `delta.rs` | the differences between the values of two files |
//! | `error.rs` | bytes that are no checkpoint, and checkpoints of other jobs |
//!
//! Any thread that may wait may call this crate. The crate must not depend on directories, hubs, or the
//! network.

#![forbid(unsafe_code)]

mod decoded;
mod delta;
mod error;
mod format;
mod read;

pub use decoded::{Base, Decoded};
pub use delta::{Delta, MAX_DELTAS};
pub use error::{DecodeError, Mismatch, UnusableKeys};
pub use format::{
    DIGEST_AT, DIGEST_BYTES, Entry, FileShare, Plan, check_keys, digest_text, entries, is_state, of_piece,
    whole,
};
pub use read::{About, ValuesFrom, about, check_digest, decode, decode_as};

/// The number of bytes that are read, written and digested at a time. This number is large enough for the
/// full speed of any disk. Besides such a piece, a save needs only the memory of the snapshot and the header.
pub const PIECE_BYTES: usize = 4 << 20;
