//! The proof that the sender of a hello has the token of a join. The proof does not show the token: a reader
//! of the proof cannot make another valid hello. A copy of a hello is refused, because the link that the hello
//! names already exists.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// The number of bytes of a proof.
pub(crate) const PROOF: usize = 32;

/// Returns the name by which a hello refers to the join of this token. The name is no secret.
pub fn name_of(token: [u8; 16]) -> [u8; 16] {
    let proof = proof(token, b"phub name");
    *proof.first_chunk().expect("a proof is longer")
}

/// Computes the proof that the sender of these bytes has the token.
pub(crate) fn proof(token: [u8; 16], said: &[u8]) -> [u8; PROOF] {
    mac(token, said).finalize().into_bytes().into()
}

/// Checks that the sender of these bytes has the token. The comparison takes constant time, so that its time
/// shows nothing about the right proof.
pub(crate) fn proves(token: [u8; 16], said: &[u8], proof: &[u8; PROOF]) -> bool {
    mac(token, said).verify_slice(proof).is_ok()
}

fn mac(token: [u8; 16], said: &[u8]) -> Hmac<Sha256> {
    let mut mac = Hmac::new_from_slice(&token).expect("a key may have any length");
    mac.update(said);
    mac
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_token_proves_what_was_said() {
        let made = proof([1; 16], b"hello");
        assert!(proves([1; 16], b"hello", &made));
        assert!(!proves([2; 16], b"hello", &made));
        assert!(!proves([1; 16], b"hullo", &made));
        assert!(!proves([1; 16], b"hello", &[0; PROOF]));
        assert_ne!(name_of([1; 16]), name_of([2; 16]));
    }
}
