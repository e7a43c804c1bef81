//! The tokens of the conformance suite.

/// Returns the token that belongs to this name, which a hello shows.
pub fn token_named(name: [u8; 16]) -> Option<[u8; 16]> {
    let of = |peer, link| {
        let mut token = [0; 16];
        [token[0], token[1]] = [peer, link];
        token
    };
    let mut tokens = (0..32).flat_map(|peer| (0..32).map(move |link| of(peer, link))).chain([[7; 16]]);
    tokens.find(|&token| fabric::name_of(token) == name)
}
