//! Workers that are silent, talk nonsense or offer bad memory, to a hub's shared-memory listener:
//! each a clear error at both ends, in bounded time, and the listener lives on.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use super::raw_peer::{
    BELL_BYTES, GOOD, LONG, RawPeer, SHORT, TOKEN, WINDOW, hello_bytes, join, memfd, new_address, sender,
};
use fabric::conformance::Watchdog;
use fabric::shm::{ConnectError, Group, Listener, connect, group};
use fabric::{Arrival, Imm, PlannedLink, Port, Posted, SendWindow, Span};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::SealFlags;

#[test]
fn a_wrong_token_is_refused_with_the_hubs_words() {
    let hub = Hub::new();
    let address = hub.address();
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| join(&address, [9; 16], LONG));
        let hello = hub.listener.accept().unwrap().unwrap().hello(LONG).unwrap();
        assert_eq!(hello.token(), [9; 16]);
        hello.refuse("no worker of this job has this token");
        match worker.join().unwrap() {
            Err(ConnectError::Refused(why)) => assert_eq!(why, "no worker of this job has this token"),
            other => panic!("{other:?}"),
        }
    });
    hub.lives();
}

#[test]
fn a_hello_that_no_worker_of_this_version_sends_is_refused() {
    let hub = Hub::new();
    let other_version = [b"phubshm9".as_slice(), &hello_bytes(WINDOW as u64, 1)[8..]].concat();
    let long = vec![b'x'; 5000];
    let cases: [(&[u8], &str); 8] = [
        (&other_version, "expected the handshake \"phubshm3\", saw \"phubshm9\""),
        (b"GET / HTTP/1.1\r\n\r\n", "saw \"GET / HT\""),
        (b"\0", "expected the handshake"),
        (&[0xff; 36], "expected the handshake"),
        (&long, "saw \"xxxxxxxx\""),
        (&hello_bytes(WINDOW as u64, 1)[..59], "too short"),
        (&[hello_bytes(WINDOW as u64, 1), vec![0]].concat(), "1 bytes too many"),
        (&hello_bytes(WINDOW as u64, 0), "0 ports are not between 1 and 4096"),
    ];
    for (bytes, expected) in cases {
        let (window, bells, sender) = (memfd(WINDOW as u64, GOOD), memfd(BELL_BYTES, GOOD), sender());
        let peer = RawPeer::connect(&hub.address());
        peer.send(bytes, &[window.as_fd(), bells.as_fd(), sender.as_fd()]);
        let error = hub.listener.accept().unwrap().unwrap().hello(LONG).unwrap_err().to_string();
        assert!(error.contains(expected), "{error:?} lacks {expected:?}");
        let told = String::from_utf8(peer.receive()).unwrap();
        assert!(told.contains(expected), "the worker is told {told:?}");
    }
    hub.lives();
}

#[test]
fn a_hello_with_the_wrong_number_of_descriptors_is_refused() {
    let hub = Hub::new();
    let fd = memfd(WINDOW as u64, GOOD);
    for count in [0, 1, 2, 4, 35] {
        let peer = RawPeer::connect(&hub.address());
        peer.send(&hello_bytes(WINDOW as u64, 1), &vec![fd.as_fd(); count]);
        let error = hub.listener.accept().unwrap().unwrap().hello(LONG).unwrap_err().to_string();
        assert!(error.contains(&format!("expected 3 descriptors, got {count}")), "{error}");
    }
    let peer = RawPeer::connect(&hub.address());
    peer.send(&hello_bytes(WINDOW as u64, 1), &[fd.as_fd(); 64]); // more than the hub has room for
    let error = hub.listener.accept().unwrap().unwrap().hello(LONG).unwrap_err().to_string();
    assert!(error.contains("expected 3 descriptors"), "{error}");
    let peer = RawPeer::connect(&hub.address());
    peer.send(&hello_bytes(WINDOW as u64, 129), &[fd.as_fd(); 3]); // too few for its ports
    let error = hub.listener.accept().unwrap().unwrap().hello(LONG).unwrap_err().to_string();
    assert!(error.contains("expected 4 descriptors, got 3"), "{error}");
    hub.lives();
}

#[test]
fn a_worker_that_is_silent_or_hangs_up_costs_a_time_out() {
    let hub = Hub::new();
    let silent = RawPeer::connect(&hub.address());
    let error = hub.listener.accept().unwrap().unwrap().hello(SHORT).unwrap_err().to_string();
    assert!(error.contains("said nothing for 30ms"), "{error}");
    drop(silent);

    drop(RawPeer::connect(&hub.address()));
    let error = hub.listener.accept().unwrap().unwrap().hello(LONG).unwrap_err().to_string();
    assert!(error.contains("hung up during the handshake"), "{error}");

    // Gone between its hello and the welcome.
    let peer = RawPeer::connect(&hub.address());
    let (window, bells, sender) = (memfd(WINDOW as u64, GOOD), memfd(BELL_BYTES, GOOD), sender());
    peer.send(&hello_bytes(WINDOW as u64, 1), &[window.as_fd(), bells.as_fd(), sender.as_fd()]);
    let hello = hub.listener.accept().unwrap().unwrap().hello(LONG).unwrap();
    drop(peer);
    let error = hello
        .welcome(&hub.group, &hub.window, WINDOW, &PlannedLink::of_one_port(&[8]))
        .unwrap_err()
        .to_string();
    assert!(error.contains("sending the welcome"), "{error}");
    hub.lives();
}

#[test]
fn descriptors_that_a_worker_must_not_offer_are_refused() {
    let hub = Hub::new();
    let claim = WINDOW as u64;
    let no_memfd = || OwnedFd::from(std::fs::File::open("/dev/zero").unwrap());
    let window = || memfd(claim, GOOD);
    let bells = || memfd(BELL_BYTES, GOOD);
    let cases = [
        (
            "claims too little",
            claim - 1,
            window(),
            bells(),
            sender(),
            "has 4095 bytes where the layout needs 4096",
        ),
        (
            "holds less than it claims",
            claim,
            memfd(claim - 1, GOOD),
            bells(),
            sender(),
            "has 4095 bytes where the layout",
        ),
        (
            "claims the world",
            u64::MAX,
            memfd(1, GOOD),
            bells(),
            sender(),
            "has 1 bytes where the layout needs 4096",
        ),
        (
            "could shrink",
            claim,
            memfd(claim, SealFlags::GROW),
            bells(),
            sender(),
            "lacks the seal against shrinking",
        ),
        ("is no memfd", claim, no_memfd(), bells(), sender(), "reading seals"),
        (
            "bells too small",
            claim,
            window(),
            memfd(BELL_BYTES - 1, GOOD),
            sender(),
            "the worker's bells: expected a memfd of 128 bytes",
        ),
        (
            "bells too large",
            claim,
            window(),
            memfd(BELL_BYTES + 1, GOOD),
            sender(),
            "the worker's bells: expected a memfd of 128 bytes",
        ),
        (
            "bells could shrink",
            claim,
            window(),
            memfd(BELL_BYTES, SealFlags::GROW),
            sender(),
            "the worker's bells: expected",
        ),
        ("bells are no memfd", claim, window(), no_memfd(), sender(), "the worker's bells: reading seals"),
        (
            "bells read-only",
            claim,
            window(),
            memfd(BELL_BYTES, GOOD | SealFlags::WRITE),
            sender(),
            "sealed or protected",
        ),
        (
            "the sender is a file",
            claim,
            window(),
            bells(),
            no_memfd(),
            "the worker's bells: expected a Unix socket for datagrams: Socket operation on non-socket",
        ),
        (
            "the sender is a pipe",
            claim,
            window(),
            bells(),
            std::io::pipe().unwrap().1.into(),
            "expected a Unix socket for datagrams: Socket operation on non-socket",
        ),
        (
            "the sender is an eventfd",
            claim,
            window(),
            bells(),
            eventfd(u32::MAX - 1, EventfdFlags::empty()).unwrap(),
            "expected a Unix socket for datagrams: Socket operation on non-socket",
        ),
        (
            "the sender sends to the network",
            claim,
            window(),
            bells(),
            std::net::UdpSocket::bind("127.0.0.1:0").unwrap().into(),
            "expected a Unix socket for datagrams, got family 2 of type 2",
        ),
        (
            "the sender is a stream",
            claim,
            window(),
            bells(),
            UnixStream::pair().unwrap().0.into(),
            "expected a Unix socket for datagrams, got family 1 of type 1",
        ),
    ];
    for (what, claimed, window, bells, sender, expected) in cases {
        let peer = RawPeer::connect(&hub.address());
        peer.send(&hello_bytes(claimed, 1), &[window.as_fd(), bells.as_fd(), sender.as_fd()]);
        let hello = hub.listener.accept().unwrap().unwrap().hello(LONG).unwrap();
        let error = hello
            .welcome(&hub.group, &hub.window, WINDOW, &PlannedLink::of_one_port(&[8]))
            .unwrap_err()
            .to_string();
        assert!(error.contains(expected), "{what}: {error:?} lacks {expected:?}");
        let told = String::from_utf8(peer.receive()).unwrap();
        assert!(told.contains(expected), "{what}: the worker is told {told:?}");
    }
    hub.lives();
}

#[test]
fn a_stopped_listener_says_so() {
    let _watchdog = Watchdog::start();
    let listener = Listener::bind(&new_address()).unwrap();
    std::thread::scope(|scope| {
        let accepting = scope.spawn(|| listener.accept());
        listener.stop();
        assert!(accepting.join().unwrap().unwrap().is_none());
    });
    assert!(listener.accept().unwrap().is_none());
    let error = Listener::bind(listener.address()).unwrap_err().to_string();
    assert!(error.contains(listener.address()) && error.contains("in use"), "{error}");
}

/// A real hub with one port.
struct Hub {
    listener: Listener,
    group: Arc<Group>,
    port: fabric::shm::Port,
    window: SendWindow,
    _watchdog: Watchdog,
}

impl Hub {
    fn new() -> Self {
        let listener = Listener::bind(&new_address()).unwrap();
        let (group, mut ports) = group(1).unwrap();
        let window = SendWindow::new(WINDOW).unwrap();
        Hub { listener, group, port: ports.remove(0), window, _watchdog: Watchdog::start() }
    }

    fn address(&self) -> String {
        self.listener.address().to_owned()
    }

    /// A good worker gets in after all, and its post arrives.
    fn lives(mut self) {
        let address = self.address();
        std::thread::scope(|scope| {
            let worker = scope.spawn(move || {
                let (group, mut ports) = group(1).unwrap();
                let ours = SendWindow::new(WINDOW).unwrap();
                let mut joined =
                    connect(&address, TOKEN, &group, &ours, WINDOW, &PlannedLink::of_one_port(&[8]), LONG)
                        .unwrap();
                let link = ports[0].attach(joined.endpoints.remove(0));
                assert_eq!(ports[0].post(link, Span { offset: 0, bytes: 0 }, Imm(5)), Posted::Accepted);
                ports[0].flush();
            });
            let hello = self.listener.accept().unwrap().unwrap().hello(LONG).unwrap();
            assert_eq!(hello.token(), TOKEN);
            let mut joined =
                hello.welcome(&self.group, &self.window, WINDOW, &PlannedLink::of_one_port(&[8])).unwrap();
            self.port.attach(joined.endpoints.remove(0));
            let mut arrivals = [Arrival::default()];
            while self.port.poll(&mut arrivals) == 0 {
                std::thread::yield_now();
            }
            assert_eq!(arrivals[0].imm, Imm(5));
            worker.join().unwrap();
        });
    }
}
