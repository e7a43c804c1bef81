//! A checkpoint file, as it is and with the digest that it should have: else no input would come past it.

use phub_server::checkpoint::decode;
use xxhash_rust::xxh3::xxh3_128;

/// Where a checkpoint's digest stands; it is computed with `0` there.
const DIGEST: std::ops::Range<usize> = 35..67;

/// Any bytes.
pub fn run(bytes: &[u8]) {
    look(bytes);
    let mut mended = bytes.to_vec();
    if let Some(digest) = mended.get_mut(DIGEST) {
        digest.fill(b'0');
        let right = format!("{:032x}", xxh3_128(&mended));
        mended[DIGEST].copy_from_slice(right.as_bytes());
        look(&mended);
    }
}

fn look(file: &[u8]) {
    if let Err(error) = decode(file, file.len() as u64) {
        assert!(error.to_string().len() < 20_000, "an error that repeats its input");
        return;
    }
    // What is accepted is whole: without its last byte, or with one more, it is not.
    let short = &file[..file.len() - 1];
    assert!(decode(short, short.len() as u64).is_err());
    let long = [file, &[0]].concat();
    assert!(decode(&long[..], long.len() as u64).is_err());
    assert!(decode(short, file.len() as u64).is_err(), "a file that ends before its length");
}
