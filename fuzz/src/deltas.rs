//! The fuzz target of deltas: applies the bytes, as frames of one and of several deltas, to the values of a checkpoint file.

use checkpoint_file::{MAX_DELTAS, ValuesFrom, decode, decode_as};
use pbox_core::Dtype;

/// The file with the values.
const FILE: &[u8] = include_bytes!("../corpus/checkpoint/adam");

/// Applies the bytes as 1, 2 and [`MAX_DELTAS`] deltas, and as one delta too many. Zeros after the bytes stand for a
/// block without a change.
pub fn run(bytes: &[u8]) {
    let base = decode(FILE, FILE.len() as u64).expect("a valid file").base();
    let header = &FILE[..8 + u64::from_le_bytes(*FILE.first_chunk().expect("eight bytes")) as usize];
    for (count, zeros) in [(1, 0), (2, 4), (MAX_DELTAS, 4 * MAX_DELTAS), (MAX_DELTAS + 1, 0)] {
        let answer = [header, bytes, &vec![0; zeros]].concat();
        let values = ValuesFrom::Deltas(base.clone(), count);
        match decode_as(&answer[..], FILE.len() as u64, Dtype::F32, values) {
            // The header has the digest of the old values, so no frame has changed a value.
            Ok(decoded) => {
                assert!(decoded.elements().eq(decode(FILE, FILE.len() as u64).expect("valid").elements()))
            }
            Err(error) => assert!(error.to_string().len() < 1000, "an error that repeats its input"),
        }
    }
}
