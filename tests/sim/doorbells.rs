//! Tests how often a core asks its port to deliver the posted answers (`flush`). Within a turn (one pass of its loop)
//! the core asks only for an early delivery (`flush_early`), which the port of a NIC may postpone. At the end of the
//! turn the core calls `flush` once.

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use fabric::sim::{self, Faults, Net, Windows};
use fabric::{Arrival, Closed, Imm, LinkId, Port, Posted, RecvWindow, SendWindow, Span, Until};
use pbox_core::kernels::Kernels;
use pbox_core::{
    ChunkId, Core, DEFAULT_CHUNK_BYTES, Immediate, JobId, JobTerms, Key, Optimizer, Placement, Round,
    ShardSpec, Wire,
};

/// A port that counts the calls of `flush` and `flush_early`.
struct Counting {
    port: sim::Port,
    flushes: u32,
    early: u32,
}

impl Port for Counting {
    type Endpoint = sim::Endpoint;

    fn attach(&mut self, endpoint: sim::Endpoint) -> LinkId {
        self.port.attach(endpoint)
    }
    fn detach(&mut self, link: LinkId) {
        self.port.detach(link);
    }
    fn post(&mut self, link: LinkId, span: Span, imm: Imm) -> Posted {
        self.port.post(link, span, imm)
    }
    fn set_credit(&mut self, link: LinkId, bytes: Option<usize>) {
        self.port.set_credit(link, bytes);
    }
    fn flush(&mut self) {
        self.flushes += 1;
        self.port.flush();
    }
    fn flush_early(&mut self) {
        self.early += 1;
        self.port.flush_early();
    }
    fn poll(&mut self, into: &mut [Arrival]) -> usize {
        self.port.poll(into)
    }
    fn closed(&mut self) -> Option<Closed> {
        self.port.closed()
    }
    fn wait(&mut self, until: Until, timeout: Duration) {
        self.port.wait(until, timeout);
    }
    fn waker(&self) -> Waker {
        self.port.waker()
    }
}

#[test]
fn the_answers_of_a_turn_leave_together() {
    const CHUNKS: u32 = 8;
    let keys = vec![Key::f32("a", [u64::from(CHUNKS) * DEFAULT_CHUNK_BYTES as u64 / 4])];
    let terms = Arc::new(JobTerms::new(1, keys, Optimizer::Average));
    let wire = Wire::of_terms(&terms).unwrap();
    let placement = Placement::new(wire.layout(), 1);
    let (weights, mut claims) = placement.weights_window(&wire).unwrap();
    let owned = (placement.chunks_by_core().remove(0), claims.remove(0));
    let net = Net::new(1, Faults::NONE);
    let mut core = Core::new(Counting { port: net.port(), flushes: 0, early: 0 }, Kernels::detect());
    core.add_job(JobId(0), ShardSpec::of_cores(&terms, &wire, [owned]).remove(0)).unwrap();
    let window = || Arc::new(RecvWindow::local(wire.gradient_window_bytes()).unwrap());
    let (here, there) = (window(), window());
    let gradients = Arc::new(SendWindow::new(wire.gradient_window_bytes()).unwrap());
    let (ours, theirs) = net.link(
        Windows { send: gradients, recv: here },
        Windows { send: weights, recv: Arc::clone(&there) },
        CHUNKS,
    );
    core.add_worker(JobId(0), 0, there, None, theirs).unwrap();
    core.release(JobId(0), Round(0), &[0], &mut Vec::new());
    let mut worker = net.port();
    let link = worker.attach(ours);
    for chunk in (0..CHUNKS).map(ChunkId) {
        let imm = Immediate::new(chunk, Round(0)).encode();
        assert_eq!(worker.post(link, wire.gradient_span(chunk), imm), Posted::Accepted);
    }
    worker.flush();
    let before = (core.port().flushes, core.port().early);
    while core.tally().arrivals == 0 {
        core.turn(&mut Vec::new());
    }
    assert_eq!(core.tally().arrivals, u64::from(CHUNKS), "all in one turn");
    let port = core.port();
    assert_eq!(
        (port.flushes - before.0, port.early - before.1),
        (1, CHUNKS),
        "one at the end, and an early one a chunk"
    );
}
