//! Doors for the fuzz targets: what a port makes of a peer's bytes, over a socket pair. Not an API.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::io;
use super::link::Endpoint;
use super::message::{HelloMessage, ReplyMessage};
use crate::window::{RecvWindow, SendWindow};
use zerocopy::FromBytes;

/// A link over a socket that blocks nobody, into a window of so many bytes.
pub fn endpoint(socket: OwnedFd, window_bytes: usize) -> (Endpoint, Arc<RecvWindow>) {
    let recv = Arc::new(RecvWindow::local(window_bytes).expect("a small window"));
    let send = Arc::new(SendWindow::new(64).expect("a small window"));
    (Endpoint::new(socket, send, Arc::clone(&recv), 1), recv)
}

/// What has come, between two polls.
pub fn contents(window: &RecvWindow) -> Vec<u8> {
    io::contents(window)
}

/// Both messages of the handshake: whatever comes is refused in words or within its bounds.
pub fn decode(bytes: &[u8]) {
    if let Ok((hello, _)) = HelloMessage::read_from_prefix(bytes)
        && let Ok(hello) = hello.check()
    {
        assert!(hello.link() < hello.links() && hello.links() <= 4096);
    }
    if let Ok((reply, _)) = ReplyMessage::read_from_prefix(bytes) {
        let _ = reply.check();
    }
}
