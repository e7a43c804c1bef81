//! The entry point for the fuzz target: the handshake's messages. Not an API.

use super::message::Message;

/// Runs the decoder. A decoded message must stay the same when it is encoded and decoded again.
pub fn decode(bytes: &[u8]) {
    if let Ok(message) = Message::decode(bytes) {
        assert_eq!(Message::decode(&message.encode()), Ok(message));
    }
}
