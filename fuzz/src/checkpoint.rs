//! The fuzz target of checkpoint files: decodes the bytes as they are, and with a corrected digest. Without
//! the correction, no input would pass the check of the digest.

use checkpoint_file::decode;
use xxhash_rust::xxh3::xxh3_128;

/// The bytes of a checkpoint's digest. They are `0` while the digest is computed.
const DIGEST: std::ops::Range<usize> = 35..67;

/// Reads the bytes as a file.
pub fn run(bytes: &[u8]) {
    check_file(bytes);
    let mut corrected = bytes.to_vec();
    if let Some(digest) = corrected.get_mut(DIGEST) {
        digest.fill(b'0');
        let right = format!("{:032x}", xxh3_128(&corrected));
        corrected[DIGEST].copy_from_slice(right.as_bytes());
        check_file(&corrected);
    }
}

fn check_file(file: &[u8]) {
    if let Err(error) = decode(file, file.len() as u64) {
        assert!(error.to_string().len() < 20_000, "an error that repeats its input");
        return;
    }
    // An accepted file is complete: with one byte less or one byte more, it is refused.
    let short = &file[..file.len() - 1];
    assert!(decode(short, short.len() as u64).is_err());
    let long = [file, &[0]].concat();
    assert!(decode(&long[..], long.len() as u64).is_err());
    assert!(decode(short, file.len() as u64).is_err(), "a file that ends before its length");
}
