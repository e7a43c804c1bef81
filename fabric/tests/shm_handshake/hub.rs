//! Workers that send nothing or nonsense, or offer bad memory, to a hub's shared-memory listener. Each causes
//! a clear error at both ends in bounded time, and the listener continues.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use super::raw_peer::{
    BELL_BYTES, GOOD, LONG, RawPeer, SHORT, TOKEN, WINDOW, hello_bytes, join, lingering, memfd, new_address,
};
use fabric::conformance::Watchdog;
use fabric::shm::{ConnectError, Group, Listener, connect, group};
use fabric::{Arrival, Imm, PlannedLink, Port, Posted, SendWindow, Span};
use rustix::fs::SealFlags;

#[test]
fn a_wrong_token_is_refused_with_the_hubs_words() {
    let hub = Hub::new();
    let address = hub.address();
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| join(&address, [9; 16], LONG));
        let mut hello = hub.listener.accept().unwrap().unwrap().hello(LONG).unwrap();
        let name = hello.token();
        assert_ne!(name, [9; 16], "a token is not shown");
        hello.identify(|of| (of == name).then_some([8; 16]));
        assert_eq!(hello.token(), name, "it does not prove another one");
        hello.identify(|_| Some([9; 16]));
        assert_eq!(hello.token(), [9; 16]);
        hello.refuse("no worker of this job has this token");
        match worker.join().unwrap() {
            Err(ConnectError::Refused(why)) => assert_eq!(why, "no worker of this job has this token"),
            other => panic!("{other:?}"),
        }
    });
    hub.assert_alive();
}

#[test]
fn a_hello_that_no_worker_of_this_version_sends_is_refused() {
    let hub = Hub::new();
    let other_version = [b"phubshm9".as_slice(), &hello_bytes(WINDOW as u64, 1)[8..]].concat();
    let long = vec![b'x'; 5000];
    let cases: [(&[u8], &str); 8] = [
        (&other_version, "expected the handshake \"phubshm4\", saw \"phubshm9\""),
        (b"GET / HTTP/1.1\r\n\r\n", "saw \"GET / HT\""),
        (b"\0", "expected the handshake"),
        (&[0xff; 36], "expected the handshake"),
        (&long, "saw \"xxxxxxxx\""),
        (&hello_bytes(WINDOW as u64, 1)[..59], "too short"),
        (&[hello_bytes(WINDOW as u64, 1), vec![0]].concat(), "1 bytes too many"),
        (&hello_bytes(WINDOW as u64, 0), "the message has 0 ports; expected 1 to 4096"),
    ];
    for (bytes, expected) in cases {
        let (window, bells) = (memfd(WINDOW as u64, GOOD), memfd(BELL_BYTES, GOOD));
        let peer = RawPeer::connect(&hub.address());
        peer.send(bytes, &[window.as_fd(), bells.as_fd()]);
        let error = hub.listener.accept().unwrap().unwrap().hello(LONG).unwrap_err().to_string();
        assert!(error.contains(expected), "{error:?} lacks {expected:?}");
        let told = String::from_utf8(peer.receive()).unwrap();
        assert!(told.contains(expected), "the worker is told {told:?}");
    }
    hub.assert_alive();
}

#[test]
fn a_hello_with_the_wrong_number_of_descriptors_is_refused() {
    let hub = Hub::new();
    let fd = memfd(WINDOW as u64, GOOD);
    for count in [0, 1, 3, 4, 64] {
        let peer = RawPeer::connect(&hub.address());
        peer.send(&hello_bytes(WINDOW as u64, 1), &vec![fd.as_fd(); count]);
        let hello = hub.listener.accept().unwrap().unwrap().hello(LONG).unwrap();
        let error = hello.gather().unwrap_err().to_string();
        assert!(error.contains(&format!("expected 2 descriptors, got {count}")), "{error}");
        let told = String::from_utf8(peer.receive()).unwrap();
        assert!(told.contains("expected 2 descriptors"), "the worker is told {told:?}");
    }
    hub.assert_alive();
}

/// A thread that closes a lingering socket waits for an hour. The watchdog does not wait that long.
#[test]
fn sockets_that_linger_hold_nobody_up() {
    let hub = Hub::new();
    let good = || [memfd(WINDOW as u64, GOOD), memfd(BELL_BYTES, GOOD)];
    let accepted = || hub.listener.accept().unwrap().unwrap();
    // The peer is refused after an invalid hello, after a stranger's hello, and after a worker's hello.
    for bytes in [b"nonsense".to_vec(), hello_bytes(WINDOW as u64, 1)] {
        let (socket, _peer) = lingering();
        let peer = RawPeer::connect(&hub.address());
        peer.send(&bytes, &[socket.as_fd()]);
        drop(socket);
        if let Ok(hello) = accepted().hello(LONG) {
            hello.refuse("a stranger");
        }
    }
    let (socket, _peer) = lingering();
    let peer = RawPeer::connect(&hub.address());
    peer.send(&hello_bytes(WINDOW as u64, 1), &[good()[0].as_fd(), socket.as_fd()]);
    drop(socket);
    let error = accepted().hello(LONG).unwrap().gather().unwrap_err().to_string();
    assert!(error.contains("expected two memfds"), "{error}");
    // The descriptors come after a good hello. They are closed before the worker is admitted, and after that
    // no more can arrive.
    let (socket, _peer) = lingering();
    let peer = RawPeer::connect(&hub.address());
    let fds = good();
    peer.send(&hello_bytes(WINDOW as u64, 1), &fds.each_ref().map(AsFd::as_fd));
    peer.send(b"more", &[socket.as_fd()]);
    drop(socket);
    let hello = accepted().hello(LONG).unwrap().gather().unwrap();
    let (socket, _peer) = lingering();
    assert_eq!(peer.try_send(b"more", &[socket.as_fd()]), Err(rustix::io::Errno::PIPE));
    let joined = hello.welcome(&hub.group, &hub.window, WINDOW, &PlannedLink::of_one_port(&[8])).unwrap();
    assert_eq!(peer.try_send(b"more", &[socket.as_fd()]), Err(rustix::io::Errno::PIPE));
    drop((joined, peer));
    hub.assert_alive();
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

    // The peer ends between its hello and the welcome.
    let peer = RawPeer::connect(&hub.address());
    let (window, bells) = (memfd(WINDOW as u64, GOOD), memfd(BELL_BYTES, GOOD));
    peer.send(&hello_bytes(WINDOW as u64, 1), &[window.as_fd(), bells.as_fd()]);
    let hello = hub.listener.accept().unwrap().unwrap().hello(LONG).unwrap();
    drop(peer);
    let error = hello
        .welcome(&hub.group, &hub.window, WINDOW, &PlannedLink::of_one_port(&[8]))
        .unwrap_err()
        .to_string();
    assert!(error.contains("sending the welcome"), "{error}");
    hub.assert_alive();
}

#[test]
fn descriptors_that_a_worker_must_not_offer_are_refused() {
    let hub = Hub::new();
    let claim = WINDOW as u64;
    let no_memfd = || OwnedFd::from(std::fs::File::open("/dev/zero").unwrap());
    let window = || memfd(claim, GOOD);
    let bells = || memfd(BELL_BYTES, GOOD);
    let cases = [
        ("claims too little", claim - 1, window(), bells(), "has 4095 bytes where the layout needs 4096"),
        (
            "holds less than it claims",
            claim,
            memfd(claim - 1, GOOD),
            bells(),
            "has 4095 bytes where the layout",
        ),
        ("claims the world", u64::MAX, memfd(1, GOOD), bells(), "has 1 bytes where the layout needs 4096"),
        ("could shrink", claim, memfd(claim, SealFlags::GROW), bells(), "lacks the seal against shrinking"),
        ("is no memfd", claim, no_memfd(), bells(), "reading seals"),
        (
            "bells too small",
            claim,
            window(),
            memfd(BELL_BYTES - 1, GOOD),
            "the worker's bells: expected a memfd of 128 bytes",
        ),
        (
            "bells too large",
            claim,
            window(),
            memfd(BELL_BYTES + 1, GOOD),
            "the worker's bells: expected a memfd of 128 bytes",
        ),
        (
            "bells could shrink",
            claim,
            window(),
            memfd(BELL_BYTES, SealFlags::GROW),
            "the worker's bells: expected",
        ),
        ("bells are no memfd", claim, window(), no_memfd(), "reading seals"),
        (
            "bells read-only",
            claim,
            window(),
            memfd(BELL_BYTES, GOOD | SealFlags::WRITE),
            "sealed or protected",
        ),
    ];
    for (what, claimed, window, bells, expected) in cases {
        let peer = RawPeer::connect(&hub.address());
        peer.send(&hello_bytes(claimed, 1), &[window.as_fd(), bells.as_fd()]);
        let hello = hub.listener.accept().unwrap().unwrap().hello(LONG).unwrap();
        let error = hello
            .welcome(&hub.group, &hub.window, WINDOW, &PlannedLink::of_one_port(&[8]))
            .unwrap_err()
            .to_string();
        assert!(error.contains(expected), "{what}: {error:?} lacks {expected:?}");
        let told = String::from_utf8(peer.receive()).unwrap();
        assert!(told.contains(expected), "{what}: the worker is told {told:?}");
    }
    hub.assert_alive();
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

    /// Checks that the hub still admits a good worker, whose post arrives.
    fn assert_alive(mut self) {
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
            let mut hello = self.listener.accept().unwrap().unwrap().hello(LONG).unwrap();
            hello.identify(|_| Some(TOKEN));
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
