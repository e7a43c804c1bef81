//! The exact difference of two tensors: new XOR old, as one zstd frame.
//!
//! Bits that did not change become zeros, which compress to almost nothing. The frame has the length of its content. Both
//! directions work block by block, so that a block is read, changed and digested while it is in the cache.
//!
//! Plain functions, for any thread. Must not depend on files.

use std::io::{self, Read, Write};

use xxhash_rust::xxh3::Xxh3;
use zstd::stream::raw::CParameter;

/// The number of bytes that are processed at a time.
const BLOCK_BYTES: usize = 256 << 10;

/// The level of compression. Level 3 saves little more on zeros, and takes longer.
const LEVEL: i32 = 1;

/// Returns the checksum of a tensor's bytes: 128-bit xxh3, as hexadecimal digits.
pub(crate) fn checksum(bytes: &[u8]) -> String {
    hex(&{
        let mut hash = Xxh3::new();
        hash.update(bytes);
        hash
    })
}

fn hex(hash: &Xxh3) -> String {
    format!("{:032x}", hash.digest128())
}

/// Returns the frame that leads from `old` to `new`, which must have the same length. `None` if they are equal.
///
/// # Errors
/// Returns an error if the library has no memory for the compression.
pub(crate) fn encode(old: &[u8], new: &[u8]) -> io::Result<Option<Vec<u8>>> {
    assert_eq!(old.len(), new.len(), "tensors of one shape");
    if old == new {
        return Ok(None);
    }
    let mut frame = zstd::Encoder::new(Vec::new(), LEVEL)?;
    frame.set_parameter(CParameter::ContentSizeFlag(true))?;
    frame.set_pledged_src_size(Some(new.len() as u64))?;
    let mut block = vec![0; BLOCK_BYTES.min(new.len())];
    for (old, new) in old.chunks(BLOCK_BYTES).zip(new.chunks(BLOCK_BYTES)) {
        let block = &mut block[..new.len()];
        block.copy_from_slice(new);
        xor(block, old);
        frame.write_all(block)?;
    }
    frame.finish().map(Some)
}

/// Applies a frame to the bytes from which it was made. Returns the checksum of the result.
///
/// # Errors
/// Returns an error unless the frame is exactly one frame for this number of bytes. After an error, the bytes are those of
/// no version.
pub(crate) fn apply(frame: &[u8], bytes: &mut [u8]) -> io::Result<String> {
    let mut contents = zstd::Decoder::with_buffer(frame)?.single_frame();
    let mut block = vec![0; BLOCK_BYTES.min(bytes.len())];
    let mut hash = Xxh3::new();
    for bytes in bytes.chunks_mut(BLOCK_BYTES) {
        let block = &mut block[..bytes.len()];
        contents.read_exact(block)?;
        xor(bytes, block);
        hash.update(bytes);
    }
    // Bytes after the last byte of the tensor are an error, however many follow.
    if contents.read(&mut [0])? > 0 {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the change is longer than its tensor"));
    }
    if !contents.finish().is_empty() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "bytes follow the frame of the change"));
    }
    Ok(hex(&hash))
}

fn xor(bytes: &mut [u8], with: &[u8]) {
    for (byte, with) in bytes.iter_mut().zip(with) {
        *byte ^= with;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn equal_tensors_have_no_delta() {
        assert!(encode(&[7; 9], &[7; 9]).unwrap().is_none());
        assert!(encode(&[], &[]).unwrap().is_none());
    }

    #[test]
    fn what_did_not_change_costs_almost_nothing() {
        let old = vec![0x5a; 1 << 20];
        let mut new = old.clone();
        new[12345] ^= 1;
        assert!(encode(&old, &new).unwrap().unwrap().len() < 200);
    }

    #[test]
    fn a_frame_that_is_shorter_longer_or_no_frame_is_an_error() {
        let frame = encode(&[0; 8], &[1; 8]).unwrap().unwrap();
        assert!(apply(&frame, &mut [0; 9]).is_err());
        assert!(apply(&frame, &mut [0; 7]).is_err());
        assert!(apply(&frame[..frame.len() - 1], &mut [0; 8]).is_err());
        assert!(apply(&[frame.clone(), frame.clone()].concat(), &mut [0; 8]).is_err());
        assert!(apply(b"no frame", &mut [0; 8]).is_err());
        assert_eq!(apply(&frame, &mut [0; 8]).unwrap(), checksum(&[1; 8]));
    }

    proptest! {
        #[test]
        fn a_delta_leads_from_old_to_new(
            pairs in prop::collection::vec((any::<u8>(), any::<u8>()), 1..2000),
            repeated in 1usize..400,
        ) {
            let (old, new): (Vec<u8>, Vec<u8>) = pairs.into_iter().unzip();
            let (old, new) = (old.repeat(repeated), new.repeat(repeated));
            match encode(&old, &new).unwrap() {
                None => prop_assert_eq!(old, new),
                Some(frame) => {
                    let mut bytes = old;
                    let seen = apply(&frame, &mut bytes).unwrap();
                    prop_assert_eq!(seen, checksum(&new));
                    prop_assert_eq!(bytes, new);
                }
            }
        }
    }
}
