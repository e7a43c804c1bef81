//! The copy that a NIC would make. This file is on the `unsafe` list.

use std::sync::Arc;

use super::net::Windows;
use crate::ids::Span;
use crate::memory::{RecvWindow, SendWindow};

/// One direction of a link: the window that is read and the window that is written, of equal size.
#[derive(Debug)]
pub(super) struct Path {
    from: Arc<SendWindow>,
    to: Arc<RecvWindow>,
}

impl Path {
    /// Creates the path of one direction of a link. It copies bytes from the sender's send window into the
    /// receiver's receive window.
    ///
    /// # Panics
    /// Panics if the sizes differ, or if the receiving window is a view of a peer's memory.
    pub fn new(sender: &Windows, receiver: &Windows) -> Self {
        let (from, to) = (Arc::clone(&sender.send), Arc::clone(&receiver.recv));
        assert_eq!(from.bytes(), to.bytes(), "a link joins windows of one size, in bytes");
        assert!(to.is_local(), "a simulated link writes the receive window: make it by RecvWindow::local");
        Path { from, to }
    }

    /// Whether the span lies in both windows.
    pub fn holds(&self, span: Span) -> bool {
        self.from.bytes_of(span).is_some()
    }

    /// Copies the span's bytes as they are now. The caller must hold the net's lock.
    pub fn deliver(&self, span: Span) {
        let source = self.from.bytes_of(span).expect("post checked the span");
        // SAFETY: `new` checked that the window is local, and `bytes_of` that the source is readable for the
        // span. The lock excludes other deliveries. Readers keep the contract of `RecvWindow::elements`: they
        // do not read what the peer may still write.
        unsafe { self.to.write(span, source) }.expect("both windows are of one size");
    }

    /// Inverts one byte that was just delivered. The caller must still hold the net's lock.
    pub fn flip(&self, offset: usize) {
        let byte = self.to.place(Span { offset, bytes: 1 }).expect("a byte of a span that was delivered");
        // SAFETY: `place` checked the bounds and that the window is local; the rest is as in `deliver`.
        unsafe { byte.write(!byte.read()) };
    }
}
