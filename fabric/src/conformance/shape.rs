//! The shape of a meeting: the numbers of peers and links, and the layout of their windows.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::{SendWindow, Span, Spans};

/// The numbers of peers, links and bytes that a test needs. Its text form is for peers in other processes.
///
/// ```text
///   every window:   link 0 [chunk 0][chunk 1]...   link 1 [chunk 0][chunk 1]...
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The number of peers of the near end.
    pub peers: usize,
    /// The number of links to each peer.
    pub links: usize,
    /// The number of posts for which each link has room, at least.
    pub capacity: u32,
    /// The number of chunks of each link in every window. A value is posted from chunk `value % chunks`.
    pub chunks: u32,
    /// The size of each chunk, a multiple of 64.
    pub chunk_bytes: usize,
}

impl Shape {
    pub(super) const SMALL: Shape = Shape { peers: 1, links: 1, capacity: 8, chunks: 64, chunk_bytes: 64 };

    /// Returns the size of every window.
    pub fn window_bytes(&self) -> usize {
        self.links * self.chunks as usize * self.chunk_bytes
    }

    /// Returns a window whose chunks have one owner.
    pub fn send_window(&self) -> (Arc<SendWindow>, Spans) {
        let (window, mut spans) = self.split_window(vec![self.spans()]);
        (window, spans.remove(0))
    }

    /// Returns a window whose chunks have these owners.
    pub(super) fn split_window(&self, owners: Vec<Vec<Span>>) -> (Arc<SendWindow>, Vec<Spans>) {
        let window = SendWindow::new(self.window_bytes()).expect("a test's window is small");
        window.split(owners).expect("chunks are disjoint")
    }

    /// Returns the chunks of every window.
    pub fn spans(&self) -> Vec<Span> {
        (0..self.links * self.chunks as usize)
            .map(|index| Span { offset: index * self.chunk_bytes, bytes: self.chunk_bytes })
            .collect()
    }

    /// Returns the index in the window of the chunk from which a value is posted.
    pub(super) fn chunk(&self, link: usize, value: u32) -> usize {
        link % self.links * self.chunks as usize + (value % self.chunks) as usize
    }

    pub(super) fn near_links(&self) -> usize {
        self.peers * self.links
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shape { peers, links, capacity, chunks, chunk_bytes } = self;
        write!(f, "{peers} {links} {capacity} {chunks} {chunk_bytes}")
    }
}

impl FromStr for Shape {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers: Result<Vec<u32>, _> = text.split(' ').map(str::parse).collect();
        match numbers.as_deref() {
            Ok(&[peers, links, capacity, chunks, chunk_bytes]) => Ok(Shape {
                peers: peers as usize,
                links: links as usize,
                capacity,
                chunks,
                chunk_bytes: chunk_bytes as usize,
            }),
            _ => Err(format!("a shape is five numbers, not {text:?}")),
        }
    }
}
