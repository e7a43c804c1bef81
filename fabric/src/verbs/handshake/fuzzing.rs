//! A door for the fuzz target: the handshake's messages. Not an API.

use super::message::Message;

/// The decoder; what decodes says the same when it is said again.
pub fn decode(bytes: &[u8]) {
    if let Ok(message) = Message::decode(bytes) {
        assert_eq!(Message::decode(&message.encode()), Ok(message));
    }
}
