//! The exact difference of two tensors, as one zstd frame.
//!
//! ```text
//!   xor         new XOR old: bits that did not change become zeros, which compress to almost nothing
//!   overwrite   the number of changed bytes (u32), their positions (u32 each), and their new values
//! ```
//!
//! The frame has the length of its content. XOR works block by block in both directions, so that a block is read, changed and
//! digested while it is in the cache.
//!
//! Plain functions, for any thread. This module must not depend on files.

use std::fmt;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::str::FromStr;

use xxhash_rust::xxh3::Xxh3;
use zstd::stream::raw::CParameter;

/// The number of bytes that are processed at a time.
const BLOCK_BYTES: usize = 256 << 10;

/// The level of compression. Level 3 saves little more on zeros, and takes longer.
const LEVEL: i32 = 1;

/// The form of the differences in a delta.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// The new bytes XOR the old ones.
    Xor,
    /// The positions and the new values of the bytes that changed. Only a tensor of less than 4 GiB can have
    /// this form.
    Overwrite,
}

impl Encoding {
    /// Both encodings.
    pub const ALL: [Encoding; 2] = [Encoding::Xor, Encoding::Overwrite];

    /// Whether a tensor with this number of bytes can have this encoding.
    pub(crate) fn fits(self, bytes: u64) -> bool {
        self == Encoding::Xor || bytes <= u64::from(u32::MAX)
    }
}

impl fmt::Display for Encoding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Encoding::Xor => "xor",
            Encoding::Overwrite => "overwrite",
        })
    }
}

impl FromStr for Encoding {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|encoding| encoding.to_string() == text);
        found.ok_or_else(|| format!("delta_encoding {text:?}: expected xor or overwrite"))
    }
}

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

/// Returns the frame that leads from `old` to `new`, which must have the same length. `None` if they are equal. The encoding must
/// fit the length.
///
/// # Errors
/// Returns an error if the library has no memory for the compression.
pub(crate) fn encode(encoding: Encoding, old: &[u8], new: &[u8]) -> io::Result<Option<Vec<u8>>> {
    assert_eq!(old.len(), new.len(), "tensors of one shape");
    if old == new {
        return Ok(None);
    }
    match encoding {
        Encoding::Xor => encode_xor(old, new),
        Encoding::Overwrite => encode_overwrite(old, new),
    }
    .map(Some)
}

/// Begins a frame for this number of bytes.
fn begin(bytes: u64) -> io::Result<zstd::Encoder<'static, Vec<u8>>> {
    let mut frame = zstd::Encoder::new(Vec::new(), LEVEL)?;
    frame.set_parameter(CParameter::ContentSizeFlag(true))?;
    frame.set_pledged_src_size(Some(bytes))?;
    Ok(frame)
}

fn encode_overwrite(old: &[u8], new: &[u8]) -> io::Result<Vec<u8>> {
    let changed = || (0u32..).zip(old.iter().zip(new)).filter(|(_, (old, new))| old != new);
    let count = changed().count() as u32;
    let mut frame = begin(4 + 5 * u64::from(count))?;
    frame.write_all(&count.to_le_bytes())?;
    let mut out = BufWriter::with_capacity(BLOCK_BYTES, frame);
    changed().try_for_each(|(at, _)| out.write_all(&at.to_le_bytes()))?;
    changed().try_for_each(|(_, (_, new))| out.write_all(&[*new]))?;
    out.into_inner()?.finish()
}

fn encode_xor(old: &[u8], new: &[u8]) -> io::Result<Vec<u8>> {
    let mut frame = begin(new.len() as u64)?;
    let mut block = vec![0; BLOCK_BYTES.min(new.len())];
    for (old, new) in old.chunks(BLOCK_BYTES).zip(new.chunks(BLOCK_BYTES)) {
        let block = &mut block[..new.len()];
        block.copy_from_slice(new);
        xor(block, old);
        frame.write_all(block)?;
    }
    frame.finish()
}

/// Applies a frame to the bytes from which it was made. Returns the checksum of the result.
///
/// # Errors
/// Returns an error unless the frame is exactly one frame for this number of bytes. After an error, the bytes belong to
/// no version.
pub(crate) fn apply(encoding: Encoding, frame: &[u8], bytes: &mut [u8]) -> io::Result<String> {
    let mut contents = zstd::Decoder::with_buffer(frame)?.single_frame();
    let checksum = match encoding {
        Encoding::Xor => apply_xor(&mut contents, bytes)?,
        Encoding::Overwrite => apply_overwrite(&mut contents, bytes)?,
    };
    // Any bytes after the end of the change are an error, so one byte is enough to find it.
    if contents.read(&mut [0])? > 0 {
        return Err(faulty("the delta is longer than its tensor"));
    }
    if !contents.finish().is_empty() {
        return Err(faulty("bytes follow the compressed frame of the delta"));
    }
    Ok(checksum)
}

fn faulty(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

fn apply_overwrite(contents: &mut impl Read, bytes: &mut [u8]) -> io::Result<String> {
    let mut count = [0; 4];
    contents.read_exact(&mut count)?;
    let count = u32::from_le_bytes(count) as usize;
    // The tensor's size bounds the memory for positions.
    if count > bytes.len() {
        return Err(faulty("the delta changes more bytes than the tensor has"));
    }
    let mut positions = vec![0; 4 * count];
    contents.read_exact(&mut positions)?;
    let mut values = BufReader::with_capacity(BLOCK_BYTES, contents);
    for position in positions.chunks_exact(4) {
        let position = u32::from_le_bytes(position.try_into().expect("four bytes")) as usize;
        let byte = bytes
            .get_mut(position)
            .ok_or_else(|| faulty("a position of the delta is after the tensor's end"))?;
        values.read_exact(std::slice::from_mut(byte))?;
    }
    match values.buffer() {
        [] => Ok(checksum(bytes)),
        _ => Err(faulty("the delta is longer than its tensor")),
    }
}

fn apply_xor(contents: &mut impl Read, bytes: &mut [u8]) -> io::Result<String> {
    let mut block = vec![0; BLOCK_BYTES.min(bytes.len())];
    let mut hash = Xxh3::new();
    for bytes in bytes.chunks_mut(BLOCK_BYTES) {
        let block = &mut block[..bytes.len()];
        contents.read_exact(block)?;
        xor(bytes, block);
        hash.update(bytes);
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
        for encoding in Encoding::ALL {
            assert!(encode(encoding, &[7; 9], &[7; 9]).unwrap().is_none());
            assert!(encode(encoding, &[], &[]).unwrap().is_none());
        }
    }

    #[test]
    fn what_did_not_change_costs_almost_nothing() {
        let old = vec![0x5a; 1 << 20];
        let mut new = old.clone();
        new[12345] ^= 1;
        for encoding in Encoding::ALL {
            assert!(encode(encoding, &old, &new).unwrap().unwrap().len() < 200);
        }
    }

    #[test]
    fn a_frame_that_is_shorter_longer_or_no_frame_is_an_error() {
        for encoding in Encoding::ALL {
            let frame = encode(encoding, &[0; 8], &[1; 8]).unwrap().unwrap();
            let apply = |frame: &[u8], bytes: &mut [u8]| apply(encoding, frame, bytes);
            assert!(apply(&frame, &mut [0; 7]).is_err());
            assert!(apply(&frame[..frame.len() - 1], &mut [0; 8]).is_err());
            assert!(apply(&[frame.clone(), frame.clone()].concat(), &mut [0; 8]).is_err());
            assert!(apply(b"no frame", &mut [0; 8]).is_err());
            assert_eq!(apply(&frame, &mut [0; 8]).unwrap(), checksum(&[1; 8]));
        }
        let frame = encode(Encoding::Xor, &[0; 8], &[1; 8]).unwrap().unwrap();
        assert!(apply(Encoding::Xor, &frame, &mut [0; 9]).is_err());
    }

    #[test]
    fn an_overwrite_frame_has_positions_and_values_and_says_its_length() {
        let frame = encode(Encoding::Overwrite, &[5, 6, 7, 8], &[5, 1, 7, 2]).unwrap().unwrap();
        let contents = [2, 0, 0, 0, 1, 0, 0, 0, 3, 0, 0, 0, 1, 2];
        assert_eq!(zstd::decode_all(&frame[..]).unwrap(), contents);
        let length = zstd::zstd_safe::get_frame_content_size(&frame).unwrap();
        assert_eq!(length, Some(contents.len() as u64), "python-zstandard's decompress needs it");
        let mut bytes = [5, 6, 7, 8];
        for _ in 0..2 {
            assert_eq!(apply(Encoding::Overwrite, &frame, &mut bytes).unwrap(), checksum(&[5, 1, 7, 2]));
        }
        for (contents, why) in [
            (&[5, 0, 0, 0][..], "the delta changes more bytes than the tensor has"),
            (&[1, 0, 0, 0, 4, 0, 0, 0, 9], "a position of the delta is after the tensor's end"),
            (&[1, 0, 0, 0, 3, 0, 0, 0, 9, 9], "the delta is longer than its tensor"),
        ] {
            let frame = zstd::encode_all(contents, LEVEL).unwrap();
            let error = apply(Encoding::Overwrite, &frame, &mut bytes).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        assert!([3, u32::MAX.into()].iter().all(|&bytes| Encoding::Overwrite.fits(bytes)));
        assert!(!Encoding::Overwrite.fits(1 << 32) && Encoding::Xor.fits(1 << 32));
    }

    proptest! {
        #[test]
        fn a_delta_leads_from_old_to_new(
            pairs in prop::collection::vec((any::<u8>(), any::<u8>()), 1..2000),
            repeated in 1usize..400,
        ) {
            let (old, new): (Vec<u8>, Vec<u8>) = pairs.into_iter().unzip();
            let (old, new) = (old.repeat(repeated), new.repeat(repeated));
            for encoding in Encoding::ALL {
                match encode(encoding, &old, &new).unwrap() {
                    None => prop_assert_eq!(&old, &new),
                    Some(frame) => {
                        let mut bytes = old.clone();
                        let seen = apply(encoding, &frame, &mut bytes).unwrap();
                        prop_assert_eq!(seen, checksum(&new));
                        prop_assert_eq!(&bytes, &new);
                    }
                }
            }
        }
    }
}
