//! Tests of the damage that a peer can do to the words that it shares. The peer is hostile, or was killed at
//! the worst moment.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::{Endpoint, Listener, Port, connect, group};
use crate::conformance::Watchdog;
use crate::handshake::Joined;
use crate::memory::SendWindow;
use crate::port::{Arrival, CloseReason, Posted, Until};
use crate::ring::Cells;
use crate::{Imm, LinkId, PlannedLink, Port as _, Span};

const LONG: Duration = Duration::from_secs(3600);
const NOTHING: Span = Span { offset: 0, bytes: 0 };

/// Returns a hub's port and a worker's port, joined by one link with room for four posts.
fn pair(address: &str) -> ((Port, Joined<Endpoint>), (Port, Joined<Endpoint>)) {
    let address = format!("phub-unit-{}-{address}", std::process::id());
    let listener = Listener::bind(&address).unwrap();
    let end = || {
        let (group, mut ports) = group(1).unwrap();
        (group, ports.remove(0), SendWindow::new(64).unwrap())
    };
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let (group, port, window) = end();
            let joined = connect(
                &address,
                [0; 16],
                &group,
                &window,
                64,
                &PlannedLink::of_one_port(&[4]),
                Duration::from_secs(30),
            )
            .unwrap();
            (port, joined)
        });
        let (group, port, window) = end();
        let hello = listener.accept().unwrap().unwrap().hello(Duration::from_secs(30)).unwrap();
        let joined = hello.welcome(&group, &window, 64, &PlannedLink::of_one_port(&[4])).unwrap();
        ((port, joined), worker.join().unwrap())
    })
}

/// Waits until a link closes, and returns the reason.
fn closing(port: &mut Port) -> CloseReason {
    loop {
        port.poll(&mut [Arrival::default(); 8]);
        if let Some(closed) = port.closed() {
            assert_eq!(closed.link, LinkId(0));
            return closed.reason;
        }
        port.wait(Until::Any, LONG);
    }
}

#[test]
fn death_and_waker_end_a_sleep_whose_bell_word_was_cleared() {
    let _watchdog = Watchdog::start();
    let ((mut hub, mut hubs), (worker, workers)) = pair("cleared");
    hub.attach(hubs.endpoints.remove(0));
    assert_eq!(hub.poll(&mut [Arrival::default()]), 0); // the first poll after `attach`
    let woken = AtomicBool::new(false);
    let (state, waker) = (Arc::clone(&hub.state), hub.waker());
    // Does what a worker does if it is killed after it cleared the word, but before it woke the sleeper.
    let clear = || {
        while state.own.asleep().swap(0, Ordering::Relaxed) == 0 {
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_millis(5)); // the port most likely sleeps by now
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            clear();
            woken.store(true, Ordering::Release);
            waker.wake_by_ref();
        });
        while !woken.load(Ordering::Acquire) {
            hub.wait(Until::Any, LONG);
        }
    });
    std::thread::scope(|scope| {
        scope.spawn(move || {
            clear();
            drop((worker, workers));
        });
        assert_eq!(closing(&mut hub), CloseReason::PeerGone);
    });
}

#[test]
fn a_tail_that_lies_closes_the_link_for_both() {
    let _watchdog = Watchdog::start();
    let ((mut hub, mut hubs), (mut worker, mut workers)) = pair("tail");
    hub.attach(hubs.endpoints.remove(0));
    let hostile = workers.endpoints.remove(0);
    hostile.producer.cells.tail().store(5, Ordering::Relaxed); // beyond the four slots
    worker.attach(hostile);
    let reason = closing(&mut hub);
    assert!(matches!(&reason, CloseReason::Corrupt(what) if what.contains("ring of 4 slots")), "{reason}");
    assert_eq!(hub.post(LinkId(0), NOTHING, Imm(0)), Posted::Closed);
    assert_eq!(closing(&mut worker), CloseReason::PeerGone);
}

#[test]
fn a_head_that_lies_closes_the_link_for_both() {
    let _watchdog = Watchdog::start();
    let ((mut hub, mut hubs), (mut worker, mut workers)) = pair("head");
    let link = hub.attach(hubs.endpoints.remove(0));
    let hostile = workers.endpoints.remove(0);
    hostile.consumer.cells.head().store(100, Ordering::Relaxed); // ahead of all posts
    worker.attach(hostile);
    while hub.post(link, NOTHING, Imm(0)) == Posted::Accepted {}
    assert_eq!(hub.post(link, NOTHING, Imm(0)), Posted::Closed);
    let reason = closing(&mut hub);
    assert!(matches!(&reason, CloseReason::Corrupt(what) if what.contains("position 100")), "{reason}");
    assert_eq!(closing(&mut worker), CloseReason::PeerGone);
}

#[test]
#[should_panic = "belongs to the port that its connection was made for"]
fn an_endpoint_of_another_port_is_a_bug() {
    let ((mut hub, _hubs), (_worker, mut workers)) = pair("other");
    hub.attach(workers.endpoints.remove(0));
}

#[test]
fn an_endpoint_dropped_unattached_is_a_peer_that_left() {
    let _watchdog = Watchdog::start();
    let ((mut hub, mut hubs), (_worker, workers)) = pair("dropped");
    hub.attach(hubs.endpoints.remove(0));
    drop(workers);
    assert_eq!(closing(&mut hub), CloseReason::PeerGone);
}

#[test]
fn one_port_of_a_hub_dropped_closes_the_whole_connection() {
    let _watchdog = Watchdog::start();
    let address = format!("phub-unit-{}-cores", std::process::id());
    let listener = Listener::bind(&address).unwrap();
    let timeout = Duration::from_secs(30);
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let (group, mut ports) = group(1).unwrap();
            let window = SendWindow::new(64).unwrap();
            let joined =
                connect(&address, [0; 16], &group, &window, 64, &PlannedLink::of_one_port(&[4, 4]), timeout)
                    .unwrap();
            for endpoint in joined.endpoints {
                ports[0].attach(endpoint);
            }
            let mut closed = Vec::new();
            while closed.len() < 2 {
                ports[0].poll(&mut [Arrival::default(); 8]);
                match ports[0].closed() {
                    Some(close) => closed.push(close.link),
                    None => ports[0].wait(Until::Any, LONG),
                }
            }
            closed
        });
        let (group, mut ports) = group(2).unwrap();
        let hello = listener.accept().unwrap().unwrap().hello(timeout).unwrap();
        let joined = hello
            .welcome(&group, &SendWindow::new(64).unwrap(), 64, &PlannedLink::of_one_port(&[4, 4]))
            .unwrap();
        for (port, endpoint) in ports.iter_mut().zip(joined.endpoints) {
            port.attach(endpoint);
        }
        ports.pop(); // one core's thread panicked, and the other core continues
        assert_eq!(worker.join().unwrap(), [LinkId(0), LinkId(1)]);
        assert_eq!(closing(&mut ports[0]), CloseReason::PeerGone);
    });
}
