//! Doors for the fuzz targets: the handshake over a socket pair, and its messages. Not an API.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use super::Endpoint;
use super::connect::{Accepted, ConnectError, welcomed};
use super::group::Group;
use super::message::{HelloMessage, ReplyMessage, receive};
use crate::handshake::Joined;
use crate::plan::PlannedLink;

/// The hub's end of a socket pair.
pub fn accepted(socket: OwnedFd) -> Accepted {
    Accepted { socket }
}

/// What a worker makes of the answer that waits in its socket.
pub fn welcome(
    socket: &OwnedFd,
    group: &Arc<Group>,
    recv_bytes: usize,
    plan: &[PlannedLink],
) -> Result<Joined<Endpoint>, ConnectError> {
    let answer = receive(socket.as_fd(), Duration::from_secs(1))
        .map_err(|error| ConnectError::Nonsense(error.to_string()))?;
    welcomed(answer, socket, group, recv_bytes, plan)
}

/// Both decoders; what decodes is encoded to the same bytes, but for text that was no UTF-8.
pub fn decode(bytes: &[u8]) {
    if let Ok(hello) = HelloMessage::decode(bytes) {
        assert_eq!(hello.encode(), bytes);
    }
    match ReplyMessage::decode(bytes) {
        Ok(welcome @ ReplyMessage::Welcome { .. }) => assert_eq!(welcome.encode(), bytes),
        Ok(refused @ ReplyMessage::Refused(_)) => assert!(ReplyMessage::decode(&refused.encode()).is_ok()),
        Err(_) => {}
    }
}
