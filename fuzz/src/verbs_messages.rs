//! The messages of the RDMA handshake, in which a peer names addresses, counts and queue pairs.

/// Any bytes, once as they are and once as what follows the handshake's first bytes.
pub fn run(bytes: &[u8]) {
    fabric::verbs::fuzzing::decode(bytes);
    fabric::verbs::fuzzing::decode(&[b"phubrdm1", bytes].concat());
}
