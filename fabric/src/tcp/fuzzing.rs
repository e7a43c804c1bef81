//! Entry points for the fuzz targets: the reaction of a port to a peer's bytes, over a socket pair. Not an
//! API.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::frames::{Frames, checksum};
use super::io;
use super::link::Endpoint;
use super::message::{Header, HelloMessage, MAGIC, ReplyMessage};
use super::port::Port;
use crate::memory::{RecvWindow, SendWindow};
use crate::proof::{name_of, proof};
use crate::{Arrival, Closed, Imm, Port as _, Span};
use zerocopy::{FromBytes, IntoBytes};

/// A port with one link over a non-blocking socket, and the window that the link writes.
#[derive(Debug)]
pub struct Receiver {
    port: Port,
    window: Arc<RecvWindow>,
}

impl Receiver {
    /// Creates a port with one link, whose window has this many bytes, for frames of this format.
    pub fn new(socket: OwnedFd, window_bytes: usize, frames: Frames) -> Self {
        let window = Arc::new(RecvWindow::local(window_bytes).expect("a small window"));
        let send = Arc::new(SendWindow::new(64).expect("a small window"));
        let mut port = Port::new().expect("descriptors for a port");
        port.attach(Endpoint::new(socket, send, Arc::clone(&window), 1, frames));
        Receiver { port, window }
    }

    /// Works like [`Port::poll`](crate::Port::poll).
    pub fn poll(&mut self, arrivals: &mut [Arrival]) -> usize {
        self.port.poll(arrivals)
    }

    /// Works like [`Port::closed`](crate::Port::closed).
    pub fn closed(&mut self) -> Option<Closed> {
        self.port.closed()
    }

    /// Returns the bytes of the window.
    pub fn into_contents(self) -> Vec<u8> {
        drop(self.port);
        io::contents(self.window)
    }
}

/// Returns a hello whose body after the magic number and the name is `said`, with its proof.
pub fn hello(token: [u8; 16], said: &[u8]) -> Vec<u8> {
    let mut bytes = [&MAGIC[..], &name_of(token), said].concat();
    bytes.extend(proof(token, &bytes));
    bytes
}

/// Returns the frame with checksums that a correct peer sends.
pub fn summed(span: Span, imm: Imm, bytes: &[u8]) -> Vec<u8> {
    let mut header = Header::new(span, imm);
    header.seal(checksum(bytes));
    [header.as_bytes(), bytes].concat()
}

/// Decodes the bytes as a hello, and then as a reply. Invalid bytes must give an error, not a panic; the error is
/// ignored.
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
