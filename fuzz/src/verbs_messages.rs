//! The messages of the RDMA handshake, in which a peer names addresses, counts and queue pairs.

/// Decodes the bytes as they are, and again after the handshake's first bytes.
pub fn run(bytes: &[u8]) {
    fabric::verbs::fuzzing::decode(bytes);
    fabric::verbs::fuzzing::decode(&[b"phubrdm6", bytes].concat());
}
