//! Entry points for the fuzz targets: the handshake over a socket pair, and its messages. Not an API.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use super::Endpoint;
use super::connect::{Accepted, ConnectError, Guest, welcomed};
use super::group::Group;
use super::message::{HelloMessage, ReplyMessage, receive};
use super::waking::Name;
use crate::handshake::Joined;
use crate::plan::{LinkPorts, PlannedLink};

/// Returns the hub's end of a socket pair.
pub fn accepted(socket: OwnedFd) -> Accepted {
    Accepted { socket: Guest::new(socket) }
}

/// Runs the worker's half of the handshake on the answer that is in the worker's socket.
pub fn welcome(
    socket: &OwnedFd,
    group: &Arc<Group>,
    recv_bytes: usize,
    plan: &[PlannedLink],
) -> Result<Joined<Endpoint>, ConnectError> {
    let answer = receive(socket.as_fd(), Duration::from_secs(1))
        .map_err(|error| ConnectError::Nonsense(error.to_string()))?;
    let own = Name::random().map_err(|errno| ConnectError::Nonsense(errno.to_string()))?;
    welcomed(answer, socket, group, own, recv_bytes, plan)
}

/// Returns the hello of a worker with this token.
pub fn hello(token: [u8; 16], send_bytes: u64, ports: u32, links: Vec<LinkPorts>) -> Vec<u8> {
    HelloMessage::new(token, send_bytes, ports, Name([9; 16]), links).encode()
}

/// Runs both decoders. A decoded message must encode to the same bytes, unless its text was no UTF-8.
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
