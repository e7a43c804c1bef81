//! Tests that need a NIC and access to internals: hostile peers, forks, counts. They run on the devices of
//! `PHUB_TEST_DEVICE`. Without this variable they print that they are skipped.
//!
//! This file is on the `unsafe` list, because it forks.

mod handshake;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use super::port::rails::Route;
use super::*;
use crate::conformance::Watchdog;
use crate::memory::{RecvWindow, SendWindow, Spans};
use crate::port::{Arrival, CloseReason, FrameRule, Posted, Until};
use crate::{Carries, Imm, LinkId, PlannedLink, Port as _, Receive, Span};

const LONG: Duration = Duration::from_secs(30);
const CHUNK: usize = 4096;
const CHUNKS: usize = 64;
const BYTES: usize = CHUNK * CHUNKS;

/// Returns the first device to test on.
fn device() -> Option<NicOptions> {
    let named = std::env::var("PHUB_TEST_DEVICE").unwrap_or_default();
    match named.split(',').next().filter(|name| !name.is_empty()) {
        Some(name) => Some(NicOptions::new(name)),
        None => {
            println!("skipped: PHUB_TEST_DEVICE names no RDMA device to test on");
            None
        }
    }
}

struct End {
    port: Port,
    recv: Arc<RecvWindow>,
    spans: Spans,
    /// The endpoints that are not attached yet.
    endpoints: Vec<Endpoint>,
}

fn window() -> (Arc<SendWindow>, Spans) {
    let spans = (0..CHUNKS).map(|chunk| Span { offset: chunk * CHUNK, bytes: CHUNK }).collect();
    let (window, mut spans) = SendWindow::new(BYTES).unwrap().split(vec![spans]).unwrap();
    (window, spans.remove(0))
}

/// Returns a hub with one port, and workers, each connected to the hub by a link with this capacity.
fn meet(nic: &NicOptions, workers: usize, capacity: u32) -> (End, Vec<End>) {
    meet_by(nic, workers, &PlannedLink::of_one_port(&[capacity]))
}

/// Returns a hub with one port, and workers, each connected to the hub by this plan. The hub's end has the
/// links of all workers, and the receive window of the last one.
fn meet_by(nic: &NicOptions, workers: usize, plan: &[PlannedLink]) -> (End, Vec<End>) {
    let listener = Listener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
    let address = listener.address();
    let (hub_group, mut ports) = group(std::slice::from_ref(nic), GroupOptions::default()).unwrap();
    let (hub_window, hub_spans) = window();
    let (mut endpoints, mut last) = (Vec::new(), None);
    let workers = (0..workers).map(|_| {
        std::thread::scope(|scope| {
            let worker = scope.spawn(|| {
                let (group, port) = worker_group(std::slice::from_ref(nic), GroupOptions::default()).unwrap();
                let (window, spans) = window();
                let joined =
                    connect(address, [0; 16], &group, &window, Receive::New(BYTES), plan, LONG).unwrap();
                End { port, recv: joined.recv, spans, endpoints: joined.endpoints }
            });
            let hello = listener.accept().unwrap().unwrap().hello(LONG).unwrap();
            let joined = hello.welcome(&hub_group, &hub_window, BYTES, plan, |_| (), || ()).unwrap();
            endpoints.extend(joined.endpoints);
            last = Some(joined.recv);
            worker.join().unwrap()
        })
    });
    let workers = workers.collect();
    (End { port: ports.remove(0), recv: last.unwrap(), spans: hub_spans, endpoints }, workers)
}

impl End {
    fn attach_all(&mut self) {
        for endpoint in std::mem::take(&mut self.endpoints) {
            self.port.attach(endpoint);
        }
    }

    fn post(&mut self, chunk: usize) -> Posted {
        let posted = self.port.post(LinkId(0), self.spans.span(chunk), Imm(chunk as u32));
        self.port.flush();
        posted
    }

    fn next(&mut self) -> Arrival {
        loop {
            let mut one = [Arrival::default()];
            if self.port.poll(&mut one) == 1 {
                return one[0];
            }
            assert_eq!(self.port.closed(), None);
            self.port.wait(Until::Any, LONG);
        }
    }

    fn closing(&mut self) -> (LinkId, CloseReason) {
        loop {
            self.port.poll(&mut [Arrival::default(); 8]);
            if let Some(closed) = self.port.closed() {
                return (closed.link, closed.reason);
            }
            self.port.wait(Until::Any, LONG);
        }
    }
}

#[test]
fn keys_open_nothing_that_is_another_workers() {
    let _watchdog = Watchdog::start();
    let Some(nic) = device() else { return };
    // The hostile worker uses a key that no window has, and then the key of the other worker's window.
    for stolen in [false, true] {
        let (mut hub, mut workers) = meet(&nic, 2, 8);
        hub.attach_all();
        let [honest, hostile] = &mut workers[..] else { unreachable!("two workers") };
        let target = if stolen { honest.endpoints[0].link.target() } else { (0x00de_ad00, 0x1000) };
        hostile.endpoints[0].link.aim_at(target);
        honest.attach_all();
        hostile.attach_all();

        honest.spans.elements_mut::<f32>(3).fill(7.0);
        hostile.spans.elements_mut::<f32>(3).fill(9.0);
        assert_eq!(hostile.post(3), Posted::Accepted);
        let (_, reason) = hostile.closing();
        assert!(
            matches!(&reason, CloseReason::Failed(why) if why.contains("remote access error (10)")),
            "{reason}"
        );
        let (link, reason) = hub.closing();
        assert_eq!(link, LinkId(1), "only its own link: {reason}");
        assert_eq!(honest.post(3), Posted::Accepted);
        assert_eq!(hub.next(), Arrival { link: LinkId(0), imm: Imm(3) });
        hub.spans.elements_mut::<f32>(5).fill(1.0);
        assert_eq!(hub.post(5), Posted::Accepted);
        assert_eq!(honest.next().imm, Imm(5));
        // SAFETY: the hub has written chunk 5 once, and the chunk has arrived.
        let answer = unsafe { honest.recv.elements::<f32>(honest.spans.span(5)) }.unwrap();
        assert!(answer.iter().all(|&value| value == 1.0));
        // SAFETY: nobody writes chunk 3 of this window, because the hostile worker's write is refused.
        let untouched = unsafe { hub.recv.elements::<f32>(hub.spans.span(3)) }.unwrap();
        assert!(untouched.iter().all(|&value| value == 0.0), "a refused write left bytes");
    }
}

#[test]
fn a_link_opens_what_it_carries_and_nothing_else() {
    let _watchdog = Watchdog::start();
    let Some(nic) = device() else { return };
    // Even chunks go up, and odd chunks go down. So there are as many ranges as chunks.
    let every_other = |first: usize| {
        let chunks = (first..CHUNKS).step_by(2);
        chunks.map(|chunk| Span { offset: chunk * CHUNK, bytes: CHUNK }).collect()
    };
    let mut plan = PlannedLink::of_one_port(&[CHUNKS as u32]);
    plan[0].carries = Carries { up: every_other(0), down: every_other(1) };
    let (mut hub, mut workers) = meet_by(&nic, 1, &plan);
    let worker = &mut workers[0];
    hub.attach_all();
    worker.attach_all();
    for chunk in 0..CHUNKS {
        let (from, to) = if chunk % 2 == 0 { (&mut *worker, &mut hub) } else { (&mut hub, &mut *worker) };
        from.spans.elements_mut::<f32>(chunk).fill(chunk as f32 + 1.0);
        assert_eq!(from.post(chunk), Posted::Accepted);
        assert_eq!(to.next().imm, Imm(chunk as u32));
        // SAFETY: the chunk is posted once, and has arrived.
        let seen = unsafe { to.recv.elements::<f32>(to.spans.span(chunk)) }.unwrap();
        assert!(seen.iter().all(|&value| value == chunk as f32 + 1.0), "chunk {chunk}");
    }
    let not_carried = std::panic::AssertUnwindSafe(|| worker.post(1));
    let said = std::panic::catch_unwind(not_carried).unwrap_err();
    let said = said.downcast_ref::<String>().unwrap();
    assert!(
        said.contains("Span { offset: 4096, bytes: 4096 }") && said.contains("32 other ranges"),
        "{said}"
    );

    // The key of a range gives no access to its neighbour. The worker writes to chunk 1 with the key of chunk
    // 0.
    let (mut hub, mut workers) = meet_by(&nic, 1, &plan);
    let (key, address) = workers[0].endpoints[0].link.target();
    workers[0].endpoints[0].link.aim_at((key, address + CHUNK as u64));
    hub.attach_all();
    workers[0].attach_all();
    workers[0].spans.elements_mut::<f32>(0).fill(9.0);
    assert_eq!(workers[0].post(0), Posted::Accepted);
    let (_, reason) = workers[0].closing();
    assert!(reason.to_string().contains("remote access error (10)"), "{reason}");
    // SAFETY: nobody writes chunk 1 of this window, because the write is refused.
    let untouched = unsafe { hub.recv.elements::<f32>(hub.spans.span(1)) }.unwrap();
    assert!(untouched.iter().all(|&value| value == 0.0), "a refused write left bytes");
}

#[test]
fn a_message_that_is_no_write_costs_its_sender_the_link() {
    let _watchdog = Watchdog::start();
    let Some(nic) = device() else { return };
    let (mut hub, mut workers) = meet(&nic, 1, 8);
    hub.attach_all();
    workers[0].endpoints[0].link.send_plainly();
    workers[0].attach_all();
    let (_, reason) = hub.closing();
    assert!(matches!(&reason, CloseReason::Corrupt(what) if what.contains("not a write")), "{reason}");
    assert_eq!(workers[0].closing().1, CloseReason::PeerGone);
}

/// A rule that accepts only whole chunks.
#[derive(Debug)]
struct WholeChunks;

impl FrameRule for WholeChunks {
    fn posted_empty(&mut self, _imm: Imm) {}

    fn check(&mut self, _span: Span, _imm: Imm) -> Result<(), String> {
        unreachable!("a NIC does not report where it wrote")
    }

    fn check_length(&mut self, bytes: usize, imm: Imm) -> Result<(), String> {
        if bytes == CHUNK { Ok(()) } else { Err(format!("chunk {} of {bytes} bytes", imm.0)) }
    }
}

#[test]
fn a_write_that_is_not_as_long_as_its_chunk_costs_its_sender_the_link() {
    let _watchdog = Watchdog::start();
    let Some(nic) = device() else { return };
    for bytes in [0, CHUNK - 64, CHUNK + 64] {
        let (mut hub, mut workers) = meet(&nic, 2, 8);
        hub.endpoints.iter_mut().for_each(|endpoint| endpoint.obey(Box::new(WholeChunks)));
        hub.attach_all();
        workers.iter_mut().for_each(End::attach_all);
        assert_eq!(workers[0].post(3), Posted::Accepted);
        assert_eq!(hub.next(), Arrival { link: LinkId(0), imm: Imm(3) });
        let wrong = Span { offset: CHUNK, bytes };
        assert_eq!(workers[0].port.post(LinkId(0), wrong, Imm(1)), Posted::Accepted);
        workers[0].port.flush();
        let what = CloseReason::Corrupt(format!("chunk 1 of {bytes} bytes"));
        assert_eq!(hub.closing(), (LinkId(0), what));
        assert_eq!(workers[0].closing(), (LinkId(0), CloseReason::PeerGone));
        assert_eq!(workers[1].post(5), Posted::Accepted, "the other link goes on");
        assert_eq!(hub.next(), Arrival { link: LinkId(1), imm: Imm(5) });
    }
}

#[test]
fn a_peer_that_does_not_answer_closes_the_link_with_the_status() {
    let _watchdog = Watchdog::start();
    let Some(nic) = device() else { return };
    let (mut hub, mut workers) = meet(&nic, 2, 8);
    workers.iter_mut().for_each(End::attach_all);
    hub.endpoints[0].link.vanish();
    assert_eq!(workers[0].post(1), Posted::Accepted);
    let (_, reason) = workers[0].closing();
    let CloseReason::Failed(why) = &reason else { panic!("{reason}") };
    assert!(
        why.contains("transport retry counter exceeded (12)") && why.contains("hub at 127.0.0.1"),
        "{why}"
    );
    assert_eq!(workers[0].post(2), Posted::Closed);
    hub.attach_all();
    assert_eq!(hub.closing(), (LinkId(0), CloseReason::PeerGone));
    assert_eq!(workers[1].post(2), Posted::Accepted);
    assert_eq!(hub.next(), Arrival { link: LinkId(1), imm: Imm(2) });
}

#[test]
fn a_fork_leaves_transfers_whole() {
    let _watchdog = Watchdog::start();
    let Some(nic) = device() else { return };
    let (mut hub, mut workers) = meet(&nic, 1, 8);
    hub.attach_all();
    workers[0].attach_all();
    workers[0].spans.elements_mut::<f32>(0).fill(-1.0);
    // SAFETY: the child only calls _exit, which a forked child of a process with many threads may do.
    let child = unsafe {
        match libc::fork() {
            // The child has the sent window (Linux 5.13), with the bytes that its parent writes during the
            // test.
            0 => libc::_exit(i32::from(workers[0].spans.elements_mut::<f32>(0)[0] == 0.0)),
            child => child,
        }
    };
    assert!(child > 0, "{}", std::io::Error::last_os_error());
    for round in 0..2 {
        for chunk in 0..CHUNKS {
            let value = (round * CHUNKS + chunk) as f32 + 1.0;
            workers[0].spans.elements_mut::<f32>(chunk).fill(value);
            assert_eq!(workers[0].post(chunk), Posted::Accepted);
            assert_eq!(hub.next().imm, Imm(chunk as u32));
            // SAFETY: the chunk has arrived, and is posted again only after this read.
            let seen = unsafe { hub.recv.elements::<f32>(hub.spans.span(chunk)) }.unwrap();
            assert!(seen.iter().all(|&element| element == value), "chunk {chunk} of round {round}");
        }
        let mut status = 0;
        if round == 0 {
            // SAFETY: the call waits for the child of the fork above, once.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status, 0, "the child did not read what its parent writes");
        }
    }
}

#[test]
fn a_chunk_is_one_send_and_one_receive_request() {
    let _watchdog = Watchdog::start();
    let Some(nic) = device() else { return };
    // With a capacity of 64, every 32nd send is signalled. Each call posts 16 receive requests.
    const POSTS: u64 = 320;
    let (mut hub, mut workers) = meet(&nic, 1, 64);
    hub.attach_all();
    workers[0].attach_all();
    for batch in 0..POSTS / 32 {
        for chunk in 0..32 {
            let (span, imm) = (workers[0].spans.span(chunk), Imm(chunk as u32));
            assert_eq!(workers[0].port.post(LinkId(0), span, imm), Posted::Accepted, "batch {batch}");
        }
        workers[0].port.flush();
        for _ in 0..32 {
            hub.next();
        }
    }
    while workers[0].port.tally().send_completions < POSTS / 32 {
        workers[0].port.poll(&mut [Arrival::default()]);
    }
    // A post is two requests if the environment asks for adaptive routing.
    let each = 1 + u64::from(std::env::var("PHUB_RDMA_ADAPTIVE_ROUTING").is_ok_and(|value| value == "1"));
    let sent = Tally {
        sends: each * POSTS,
        send_calls: each * POSTS / 32,
        send_completions: POSTS / 32,
        ..Tally::default()
    };
    assert_eq!(workers[0].port.tally(), sent);
    let received = Tally { arrivals: POSTS, receives: POSTS, receive_calls: POSTS / 16, ..Tally::default() };
    assert_eq!(hub.port.tally(), received);
}

#[test]
fn a_route_is_used_again_when_nothing_of_its_link_is_left() {
    let _watchdog = Watchdog::start();
    let Some(nic) = device() else { return };
    let (mut hub, mut workers) = meet(&nic, 3, 8);
    let routes: Vec<u32> = hub.endpoints.iter().map(|endpoint| endpoint.link.route.number).collect();
    assert_eq!(routes, [0, 1, 2]);
    // The hub drops a link that it never attached, with an arrival in the queue. Then the hub detaches another
    // link.
    workers[1].attach_all();
    assert_eq!(workers[1].post(1), Posted::Accepted);
    drop(hub.endpoints.remove(1));
    hub.attach_all();
    hub.port.detach(LinkId(0));
    assert_eq!(hub.port.poll(&mut [Arrival::default(); 8]), 0);
    // The route is cleared at the latest by the next poll.
    assert_eq!(hub.port.poll(&mut [Arrival::default(); 8]), 0);
    let again = [0, 1, 2].map(|_| Route::new(&hub.port.state, &hub.port.rails[0], 0));
    let mut numbers = again.each_ref().map(|route| route.number);
    numbers.sort_unstable();
    assert_eq!(numbers, [0, 1, 3], "the two that are free, then a new one");
    assert!(hub.port.early.is_empty());
}

#[test]
fn a_nic_moves_bytes_to_itself() {
    let _watchdog = Watchdog::start();
    let Some(nic) = device() else { return };
    for bytes in [4, 100_000, 3 << 20] {
        let moved = loopback(&nic, bytes, 64, &PathFlags::default()).unwrap();
        assert_eq!(moved.bytes, bytes);
        assert!(moved.reason.contains(&nic.device) && moved.reason.contains("GID"), "{moved:?}");
    }
}
