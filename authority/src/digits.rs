//! Bytes as hexadecimal digits, and back. Bytes have only one spelling: two digits each, with small letters.
//!
//! So comparing two texts is the same as comparing their bytes. This module must not depend on the meaning of
//! the bytes.

/// Returns the digits of bytes: two for each byte.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Reads the bytes of a text. Returns `None` for a text of another length, or with a sign, a capital letter, or another
/// character that is no digit.
pub fn unhex<const BYTES: usize>(text: &str) -> Option<[u8; BYTES]> {
    let pairs = text.as_bytes().chunks_exact(2);
    if text.len() != 2 * BYTES {
        return None;
    }
    let mut bytes = [0; BYTES];
    for (byte, pair) in bytes.iter_mut().zip(pairs) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

fn digit(letter: u8) -> Option<u8> {
    match letter {
        b'0'..=b'9' => Some(letter - b'0'),
        b'a'..=b'f' => Some(letter - b'a' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_bytes_come_back() {
        let bytes: [u8; 256] = std::array::from_fn(|byte| byte as u8);
        assert_eq!(unhex(&hex(&bytes)), Some(bytes));
        assert_eq!((unhex("00ff"), unhex("")), (Some([0, 255]), Some([])));
    }

    #[test]
    fn bytes_have_one_spelling() {
        for wrong in
            ["", "0", "00f", "00ff0", "00ff00", "+0ff", "-0ff", "00FF", "00fg", " 0ff", "0x0f", "00\u{e9}"]
        {
            assert_eq!(unhex::<2>(wrong), None, "{wrong:?}");
        }
    }
}
