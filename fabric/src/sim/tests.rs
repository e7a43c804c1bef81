//! Tests of what the net guarantees. The same seed gives the same run, every fault happens as requested, and
//! senders that overwrite bytes in flight are detected.

use std::sync::Arc;
use std::time::Duration;

use super::{EndId, Faults, Net, Port, Rate, Windows, seeds};
use crate::memory::{RecvWindow, SendWindow, Spans};
use crate::port::{Arrival, CloseReason, Closed, Posted, Until};
use crate::{Imm, LinkId, Port as _, Span};

const BYTES: usize = 64;
const SPAN: Span = Span { offset: 0, bytes: BYTES };
const LINK: LinkId = LinkId(0);
/// A timeout that never passes: something is always in flight when these tests wait.
const LONG: Duration = Duration::from_secs(3600);

struct End {
    port: Port,
    id: EndId,
    spans: Spans,
    recv: Arc<RecvWindow>,
}

impl End {
    fn post(&mut self, imm: u32) -> Posted {
        let posted = self.port.post(LINK, SPAN, Imm(imm));
        self.port.flush();
        posted
    }

    /// Polls `times` times for one arrival.
    fn poll(&mut self, times: usize) -> Vec<u32> {
        let mut one = [Arrival::default()];
        let mut seen = Vec::new();
        for _ in 0..times {
            if self.port.poll(&mut one) == 1 {
                seen.push(one[0].imm.0);
            }
        }
        seen
    }

    fn received(&self) -> f32 {
        // SAFETY: there is one thread, and the slice ends with this function.
        unsafe { self.recv.elements::<f32>(SPAN) }.unwrap()[0]
    }
}

fn windows(bytes: usize) -> (Windows, Spans) {
    let span = Span { offset: 0, bytes };
    let (send, mut spans) = SendWindow::new(bytes).unwrap().split(vec![vec![span]]).unwrap();
    (Windows { send, recv: Arc::new(RecvWindow::local(bytes).unwrap()) }, spans.remove(0))
}

fn pair(net: &Net, capacity: u32) -> (End, End) {
    let ((a, a_spans), (b, b_spans)) = (windows(BYTES), windows(BYTES));
    let (to_b, to_a) = net.link(a.clone(), b.clone(), capacity);
    let end = |endpoint: super::Endpoint, spans, recv| {
        let (id, mut port) = (endpoint.id(), net.port());
        port.attach(endpoint);
        End { port, id, spans, recv }
    };
    (end(to_b, a_spans, a.recv), end(to_a, b_spans, b.recv))
}

/// Returns the immediates of `count` posts in the order of arrival, and the tick at which the last one
/// arrived.
fn run(seed: u64, faults: Faults, count: u32) -> (Vec<u32>, u64) {
    let net = Net::new(seed, faults);
    let (mut a, mut b) = pair(&net, count);
    (0..count).for_each(|imm| assert_eq!(a.post(imm), Posted::Accepted));
    (b.poll(1000), net.now())
}

#[test]
fn a_seed_names_a_run() {
    let faults = Faults {
        delay: 0..50,
        reorder: true,
        drop: Rate::per_mille(100),
        duplicate: Rate::per_million(100_000),
    };
    for seed in seeds(20) {
        assert_eq!(run(seed, faults.clone(), 50), run(seed, faults.clone(), 50));
    }
    assert_ne!(run(1, faults.clone(), 50), run(2, faults, 50));
}

#[test]
fn a_link_is_first_in_first_out_unless_it_reorders() {
    let in_order: Vec<u32> = (0..50).collect();
    let delay = Faults { delay: 0..50, ..Faults::NONE };
    for seed in seeds(20) {
        assert_eq!(run(seed, delay.clone(), 50).0, in_order);
        let (mut reordered, _) = run(seed, Faults { reorder: true, ..delay.clone() }, 50);
        assert_ne!(reordered, in_order);
        reordered.sort_unstable();
        assert_eq!(reordered, in_order);
    }
}

#[test]
fn without_faults_everything_is_there_at_once() {
    assert_eq!(run(0, Faults::NONE, 3).0, [0, 1, 2]);
    let empty_delay = Faults { delay: 5..5, ..Faults::NONE };
    assert_eq!(run(0, empty_delay, 3).0, [0, 1, 2]);
}

#[test]
fn rates_strike_as_often_as_told() {
    let lossy = |rate| run(7, Faults { drop: rate, ..Faults::NONE }, 900).0.len();
    assert_eq!((lossy(Rate::NEVER), lossy(Rate::ALWAYS)), (900, 0));
    assert!((400..500).contains(&lossy(Rate::per_mille(500))), "a half, more or less");
    let (twice, _) = run(7, Faults { duplicate: Rate::ALWAYS, ..Faults::NONE }, 100);
    assert_eq!(twice, (0..100).flat_map(|imm| [imm, imm]).collect::<Vec<_>>());
}

#[test]
fn a_sender_that_overwrites_in_flight_is_caught() {
    let net = Net::new(0, Faults { delay: 3..4, ..Faults::NONE });
    let (mut a, mut b) = pair(&net, 4);
    a.spans.elements_mut::<f32>(0).fill(1.0);
    assert_eq!(a.post(1), Posted::Accepted);
    a.spans.elements_mut::<f32>(0).fill(2.0); // too early: nothing shows that the peer has seen the post
    assert_eq!(b.poll(10), [1]);
    assert_eq!(b.received(), 2.0, "the bytes are read as late as a NIC may");
}

#[test]
fn events_befall_the_next_posts_of_one_end() {
    let net = Net::new(0, Faults { reorder: true, ..Faults::NONE });
    let (mut a, mut b) = pair(&net, 3);
    net.drop_next(a.id);
    net.duplicate_next(a.id);
    net.delay_next(a.id, 5);
    for imm in 0..3 {
        assert_eq!((a.post(imm), b.post(10 + imm)), (Posted::Accepted, Posted::Accepted));
    }
    assert_eq!(b.poll(3), [1, 1]);
    assert_eq!(b.poll(3), [], "the delayed one");
    assert_eq!(b.poll(3), [2]);
    assert_eq!(a.poll(9), [10, 11, 12]);
    // Posts that were dropped, or that arrived twice, do not use up room for ever.
    (0..3).for_each(|imm| assert_eq!(a.post(imm), Posted::Accepted));
    assert_eq!(a.post(3), Posted::Full);
    assert_eq!(b.poll(9), [0, 1, 2]);
}

#[test]
fn a_byte_is_flipped_in_the_next_post_that_covers_it() {
    let net = Net::new(0, Faults::NONE);
    let (mut a, mut b) = pair(&net, 4);
    a.spans.elements_mut::<u8>(0).fill(0x0f);
    net.flip_next(a.id, 2);
    assert_eq!(a.port.post(LINK, Span { offset: 0, bytes: 2 }, Imm(1)), Posted::Accepted);
    for (imm, expected) in [(2, [0x0f, 0x0f, 0xf0, 0x0f]), (3, [0x0f; 4])] {
        assert_eq!(a.post(imm), Posted::Accepted);
        assert_eq!(b.poll(2).last(), Some(&imm));
        // SAFETY: one thread, and the slice ends with this statement.
        assert_eq!(unsafe { b.recv.elements::<u8>(SPAN) }.unwrap()[..4], expected);
    }
}

#[test]
fn nothing_arrives_before_its_flush() {
    let net = Net::new(0, Faults::NONE);
    let (mut a, mut b) = pair(&net, 3);
    assert_eq!(a.port.post(LINK, SPAN, Imm(1)), Posted::Accepted);
    assert_eq!(b.poll(20), []);
    a.port.flush();
    assert_eq!(b.poll(1), [1]);
}

#[test]
fn waiting_moves_the_clock_to_what_is_under_way() {
    let net = Net::new(0, Faults { delay: 100..101, ..Faults::NONE });
    let (mut a, mut b) = pair(&net, 8);
    assert_eq!(a.post(1), Posted::Accepted);
    b.port.wait(Until::Any, LONG);
    assert_eq!((net.now(), b.poll(1)), (100, vec![1]));

    assert_eq!(a.post(2), Posted::Accepted);
    assert_eq!(a.poll(10), [], "ten ticks");
    assert_eq!(a.post(3), Posted::Accepted);
    b.port.wait(Until::Arrivals { link: LINK, count: 2 }, LONG);
    assert_eq!((net.now(), b.poll(2)), (210, vec![2, 3]));

    b.port.detach(LINK);
    a.port.wait(Until::Any, LONG);
    assert_eq!(net.now(), 310, "a closing travels like a post");
    assert_eq!(a.port.closed(), Some(Closed { link: LINK, reason: CloseReason::PeerGone }));
}

#[test]
fn the_killed_deliver_what_they_flushed_and_the_cut_do_not() {
    let faults = Faults { delay: 9..10, ..Faults::NONE };
    let begin = || {
        let net = Net::new(0, faults.clone());
        let (mut a, mut b) = pair(&net, 8);
        assert_eq!((a.post(1), b.post(2)), (Posted::Accepted, Posted::Accepted));
        assert_eq!(a.port.post(LINK, SPAN, Imm(3)), Posted::Accepted); // never flushed
        (net, a, b)
    };

    let (net, mut a, mut b) = begin();
    net.kill(a.id);
    assert_eq!((a.post(4), b.post(5)), (Posted::Closed, Posted::Accepted), "b does not know yet");
    assert_eq!((b.port.closed(), b.poll(20)), (None, vec![1]));
    assert!(b.port.closed().is_some());
    assert_eq!((b.post(6), b.port.closed()), (Posted::Closed, None));
    assert_eq!((a.poll(20), a.port.closed()), (vec![], None), "a dead end sees nothing");

    let (net, mut a, mut b) = begin();
    net.cut(b.id);
    for end in [&mut a, &mut b] {
        assert!(end.port.closed().is_some());
        assert_eq!((end.poll(20), end.post(4), end.port.closed()), (vec![], Posted::Closed, None));
    }
}

#[test]
fn a_port_or_endpoint_dropped_is_a_peer_that_left() {
    let net = Net::new(0, Faults::NONE);
    let (mut a, b) = pair(&net, 8);
    drop(b);
    assert!(a.port.closed().is_some());
    let ((a_windows, _), (b_windows, _)) = (windows(BYTES), windows(BYTES));
    let (to_b, to_a) = net.link(a_windows, b_windows, 8);
    assert_eq!(a.port.attach(to_b), LinkId(1));
    drop(to_a);
    assert_eq!(a.port.closed().map(|closed| closed.link), Some(LinkId(1)));
}

#[test]
#[should_panic = "windows of one size"]
fn windows_of_two_sizes_are_not_joined() {
    Net::new(0, Faults::NONE).link(windows(64).0, windows(128).0, 1);
}

#[test]
#[should_panic = "RecvWindow::local"]
fn a_view_of_a_window_is_not_written() {
    let (a, (b, _)) = (windows(BYTES).0, windows(BYTES));
    let view = Arc::new(RecvWindow::open(a.send.fd().unwrap(), BYTES).unwrap());
    Net::new(0, Faults::NONE).link(a, Windows { recv: view, ..b }, 1);
}

#[test]
#[should_panic = "beyond the window"]
fn a_span_beyond_the_window_is_a_bug() {
    let (mut a, _b) = pair(&Net::new(0, Faults::NONE), 1);
    let _ = a.port.post(LINK, Span { offset: 64, bytes: 64 }, Imm(0));
}

#[test]
#[should_panic = "its own net"]
fn an_endpoint_of_another_net_is_a_bug() {
    let (a, b) = (windows(BYTES).0, windows(BYTES).0);
    let (endpoint, _) = Net::new(0, Faults::NONE).link(a, b, 1);
    Net::new(0, Faults::NONE).port().attach(endpoint);
}
