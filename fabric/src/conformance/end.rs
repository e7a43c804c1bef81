//! One end of a meeting (a near end and its connected peers): a port, its links, and their windows.
//!
//! This file is on the `unsafe` list, because it reads a receive window.

use std::sync::Arc;

use crate::{Arrival, Imm, LinkId, Port, Posted, RecvWindow, Span, Spans};

use super::Shape;

/// One end of a meeting, as a thread of the layer above holds it. A test names links by index: first the
/// links of peer 0, then the links of peer 1, and so on. The ids that the port gives do not matter.
pub struct End<P: Port> {
    /// The port, to test it directly.
    pub port: P,
    shape: Shape,
    links: Vec<Link<P>>,
    spans: Spans,
}

struct Link<P: Port> {
    endpoint: Option<P::Endpoint>,
    id: Option<LinkId>,
    recv: Arc<RecvWindow>,
}

/// An arrival, and whether its bytes were in the window when it was shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The index of the link.
    pub link: usize,
    /// The immediate.
    pub value: u32,
    /// Whether the whole chunk held the value.
    pub whole: bool,
}

impl<P: Port> End<P> {
    /// Creates an end whose `links` are connected but not attached. `spans` must be all spans of
    /// [`Shape::spans`].
    pub fn new(shape: Shape, port: P, spans: Spans, links: Vec<(P::Endpoint, Arc<RecvWindow>)>) -> Self {
        let links = links
            .into_iter()
            .map(|(endpoint, recv)| Link { endpoint: Some(endpoint), id: None, recv })
            .collect();
        End { port, shape, links, spans }
    }

    /// Attaches one link.
    pub fn attach(&mut self, link: usize) -> LinkId {
        let endpoint = self.links[link].endpoint.take().expect("a link is attached once");
        let id = self.port.attach(endpoint);
        self.links[link].id = Some(id);
        id
    }

    /// Attaches all links.
    pub fn attach_all(&mut self) {
        for link in 0..self.links.len() {
            self.attach(link);
        }
    }

    /// Returns the port's id of a link.
    pub fn id(&self, link: usize) -> LinkId {
        self.links[link].id.expect("the link is attached")
    }

    /// Detaches a link.
    pub fn detach(&mut self, link: usize) {
        let id = self.links[link].id.take().expect("the link is attached");
        self.port.detach(id);
    }

    /// Fills the value's chunk with `value` and posts the chunk. The chunk must not be in flight.
    pub fn post(&mut self, link: usize, value: u32) -> Posted {
        let chunk = self.shape.chunk(link, value);
        self.spans.elements_mut::<f32>(chunk).fill(value as f32);
        self.port.post(self.id(link), self.spans.span(chunk), Imm(value))
    }

    /// Posts a value without bytes.
    pub fn signal(&mut self, link: usize, value: u32) -> Posted {
        self.port.post(self.id(link), Span { offset: 0, bytes: 0 }, Imm(value))
    }

    /// Posts a value again until the port accepts it.
    pub fn insist(&mut self, link: usize, value: u32) {
        loop {
            match self.post(link, value) {
                Posted::Accepted => return,
                Posted::Full => {
                    self.port.flush();
                    std::thread::yield_now();
                }
                Posted::Closed => panic!("link {link} closed before value {value} was posted"),
            }
        }
    }

    /// Polls once, for up to 16 arrivals.
    pub fn poll(&mut self) -> Vec<Seen> {
        let mut arrivals = [Arrival::default(); 16];
        let count = self.port.poll(&mut arrivals);
        arrivals[..count].iter().map(|&arrival| self.seen(arrival)).collect()
    }

    /// Polls until `count` arrivals were seen.
    pub fn collect(&mut self, count: usize) -> Vec<Seen> {
        let mut all = Vec::new();
        while all.len() < count {
            let seen = self.poll();
            if seen.is_empty() {
                std::thread::yield_now();
            }
            all.extend(seen);
        }
        all
    }

    /// Returns the index of an attached link.
    pub fn index(&self, id: LinkId) -> usize {
        let found = self.links.iter().position(|link| link.id == Some(id));
        found.unwrap_or_else(|| panic!("{id:?} is none of this port's links"))
    }

    /// Returns an arrival, after a check of its bytes in the window.
    pub fn seen(&self, arrival: Arrival) -> Seen {
        let link = self.index(arrival.link);
        let value = arrival.imm.0;
        let chunk = self.spans.span(self.shape.chunk(link, value));
        let (start, elements) =
            self.links[link].recv.elements_ptr::<f32>(chunk).expect("windows are of one size");
        // SAFETY: `elements_ptr` checked the bounds. The reads are volatile, and their values are only
        // compared. If the transport or the peer breaks the contract and writes at this moment, the test
        // fails, but no reference becomes invalid.
        let whole = (0..elements).all(|i| unsafe { start.add(i).read_volatile() } == value as f32);
        Seen { link, value, whole }
    }
}
