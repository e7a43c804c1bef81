//! Bad input to the shared-memory handshake: each a clear error at the right end, in bounded time,
//! and the listener lives on.
//!
//! ```text
//!   RawPeer: sends what it likes, as a worker to a real hub, or as a hub to a real worker
//! ```
#![forbid(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use fabric::conformance::Watchdog;
use fabric::shm::{ConnectError, Group, Joined, Listener, connect, group};
use fabric::{Arrival, Imm, Port, Posted, SendWindow, Span};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::{IoSlice, IoSliceMut};
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

const WINDOW: usize = 4096;
const TOKEN: [u8; 16] = *b"a worker's token";
/// For what must not happen; the watchdog is more patient.
const LONG: Duration = Duration::from_secs(30);
/// For what must time out.
const SHORT: Duration = Duration::from_millis(30);
/// A bell takes two cache lines, a ring three such pairs and its slots.
const BELL_BYTES: u64 = 128;
const RINGS_BYTES: u64 = 2 * (3 * 128 + 128);

// ---- a hub against bad workers ----

#[test]
fn a_wrong_token_is_refused_with_the_hubs_words() {
    let hub = Hub::new("a_wrong_token_is_refused_with_the_hubs_words");
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
    let hub = Hub::new("a_hello_that_no_worker_of_this_version_sends_is_refused");
    let other_version = [b"phubshm9".as_slice(), &hello_bytes(WINDOW as u64, 1)[8..]].concat();
    let long = vec![b'x'; 5000];
    let cases: [(&[u8], &str); 8] = [
        (&other_version, "expected the handshake \"phubshm1\", saw \"phubshm9\""),
        (b"GET / HTTP/1.1\r\n\r\n", "saw \"GET / HT\""),
        (b"\0", "expected the handshake"),
        (&[0xff; 36], "expected the handshake"),
        (&long, "saw \"xxxxxxxx\""),
        (&hello_bytes(WINDOW as u64, 1)[..35], "too short"),
        (&[hello_bytes(WINDOW as u64, 1), vec![0]].concat(), "1 bytes too many"),
        (&hello_bytes(WINDOW as u64, 0), "0 ports are not between 1 and 4096"),
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
    hub.lives();
}

#[test]
fn a_hello_with_the_wrong_number_of_descriptors_is_refused() {
    let hub = Hub::new("a_hello_with_the_wrong_number_of_descriptors_is_refused");
    let fd = memfd(WINDOW as u64, GOOD);
    for count in [0, 1, 3] {
        let peer = RawPeer::connect(&hub.address());
        peer.send(&hello_bytes(WINDOW as u64, 1), &vec![fd.as_fd(); count]);
        let error = hub.listener.accept().unwrap().unwrap().hello(LONG).unwrap_err().to_string();
        assert!(error.contains(&format!("expected 2 descriptors, got {count}")), "{error}");
    }
    let peer = RawPeer::connect(&hub.address());
    peer.send(&hello_bytes(WINDOW as u64, 1), &[fd.as_fd(); 16]); // more than the hub has room for
    let error = hub.listener.accept().unwrap().unwrap().hello(LONG).unwrap_err().to_string();
    assert!(error.contains("expected 2 descriptors"), "{error}");
    hub.lives();
}

#[test]
fn a_worker_that_is_silent_or_hangs_up_costs_a_time_out() {
    let hub = Hub::new("a_worker_that_is_silent_or_hangs_up_costs_a_time_out");
    let silent = RawPeer::connect(&hub.address());
    let error = hub.listener.accept().unwrap().unwrap().hello(SHORT).unwrap_err().to_string();
    assert!(error.contains("said nothing for 30ms"), "{error}");
    drop(silent);

    drop(RawPeer::connect(&hub.address()));
    let error = hub.listener.accept().unwrap().unwrap().hello(LONG).unwrap_err().to_string();
    assert!(error.contains("hung up during the handshake"), "{error}");

    // Gone between its hello and the welcome.
    let peer = RawPeer::connect(&hub.address());
    let (window, bells) = (memfd(WINDOW as u64, GOOD), memfd(BELL_BYTES, GOOD));
    peer.send(&hello_bytes(WINDOW as u64, 1), &[window.as_fd(), bells.as_fd()]);
    let hello = hub.listener.accept().unwrap().unwrap().hello(LONG).unwrap();
    drop(peer);
    let error = hello.welcome(&hub.group, &hub.window, WINDOW, &[8]).unwrap_err().to_string();
    assert!(error.contains("sending the welcome"), "{error}");
    hub.lives();
}

#[test]
fn memory_that_a_worker_must_not_offer_is_refused() {
    let hub = Hub::new("memory_that_a_worker_must_not_offer_is_refused");
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
        ("bells are no memfd", claim, window(), no_memfd(), "the worker's bells: reading seals"),
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
        let error = hello.welcome(&hub.group, &hub.window, WINDOW, &[8]).unwrap_err().to_string();
        assert!(error.contains(expected), "{what}: {error:?} lacks {expected:?}");
        let told = String::from_utf8(peer.receive()).unwrap();
        assert!(told.contains(expected), "{what}: the worker is told {told:?}");
    }
    hub.lives();
}

#[test]
fn a_stopped_listener_says_so() {
    let _watchdog = Watchdog::new("a_stopped_listener_says_so");
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

// ---- a worker against bad hubs ----

#[test]
fn no_hub_or_a_deaf_one_is_named() {
    let _watchdog = Watchdog::new("no_hub_or_a_deaf_one_is_named");
    let address = new_address();
    let error = join(&address, TOKEN, LONG).unwrap_err().to_string();
    assert!(error.contains("connecting at shared-memory address") && error.contains(&address), "{error}");

    let _listens = RawPeer::listen(&address, 0);
    let deaf = |doing: &str, seen: &str| {
        let error = join(&address, TOKEN, SHORT).unwrap_err().to_string();
        assert!(error.contains(doing) && error.contains(seen), "{error}");
    };
    deaf("waiting for the welcome", "said nothing for 30ms");
    // The connection that was given up still fills the queue of one.
    deaf("connecting", "accepted nobody for 30ms");
    assert!(join(&"x".repeat(200), TOKEN, SHORT).unwrap_err().to_string().contains("naming the hub"));
}

#[test]
fn a_hub_that_dies_between_hello_and_welcome_is_seen() {
    let error = answered(|hub| drop(hub));
    let ConnectError::Socket { doing: "waiting for the welcome", .. } = error else { panic!("{error:?}") };
    assert!(error.to_string().contains("hung up during the handshake"), "{error}");
}

#[test]
fn an_answer_that_no_hub_of_this_version_gives_is_nonsense() {
    let other_version = [b"phubshm0".as_slice(), &welcome_bytes(1)[8..]].concat();
    let cases: [(&[u8], &str); 6] = [
        (&other_version, "expected the handshake \"phubshm1\", saw \"phubshm0\""),
        (b"phubshm1\x07", "unknown reply kind 7"),
        (b"phubshm1", "too short"),
        (&welcome_bytes(1)[..20], "too short"),
        (&[welcome_bytes(1), vec![1, 2]].concat(), "2 bytes too many"),
        (&welcome_bytes(3), "the hub has 3 ports, the plan says 1"),
    ];
    for (bytes, expected) in cases {
        let error = answered(|hub| {
            let fds = [memfd(WINDOW as u64, GOOD), memfd(BELL_BYTES, GOOD), memfd(RINGS_BYTES, GOOD)];
            hub.send(bytes, &fds.each_ref().map(AsFd::as_fd));
        });
        assert!(matches!(error, ConnectError::Nonsense(_)), "{error:?}");
        assert!(error.to_string().contains(expected), "{error} lacks {expected:?}");
    }
    for count in [0, 1, 2, 4] {
        let error = answered(|hub| {
            let fd = memfd(WINDOW as u64, GOOD);
            hub.send(&welcome_bytes(1), &vec![fd.as_fd(); count]);
        });
        assert!(error.to_string().contains("expected 3 descriptors"), "{count}: {error}");
    }
}

#[test]
fn memory_that_a_hub_must_not_offer_is_refused() {
    let (window, bells, rings) = (WINDOW as u64, BELL_BYTES, RINGS_BYTES);
    let cases = [
        (
            [memfd(window - 1, GOOD), memfd(bells, GOOD), memfd(rings, GOOD)],
            "has 4095 bytes where the layout",
        ),
        ([memfd(window, SealFlags::GROW), memfd(bells, GOOD), memfd(rings, GOOD)], "lacks the seal"),
        ([memfd(window, GOOD), memfd(bells * 2, GOOD), memfd(rings, GOOD)], "the hub's bells: expected"),
        (
            [memfd(window, GOOD), memfd(bells, SealFlags::GROW), memfd(rings, GOOD)],
            "the hub's bells: expected",
        ),
        (
            [memfd(window, GOOD), memfd(bells, GOOD), memfd(rings - 4, GOOD)],
            "rings: expected a memfd of 1024 bytes",
        ),
        (
            [memfd(window, GOOD), memfd(bells, GOOD), memfd(rings * 2, GOOD)],
            "rings: expected a memfd of 1024 bytes",
        ),
        ([memfd(window, GOOD), memfd(bells, GOOD), memfd(rings, SealFlags::GROW)], "rings: expected"),
    ];
    for (fds, expected) in cases {
        let error = answered(|hub| hub.send(&welcome_bytes(1), &fds.each_ref().map(AsFd::as_fd)));
        assert!(error.to_string().contains(expected), "{error} lacks {expected:?}");
    }
}

/// What a worker makes of a hub that answers its hello like this.
fn answered(answer: impl FnOnce(RawPeer)) -> ConnectError {
    let _watchdog = Watchdog::new("a worker against a bad hub");
    let address = new_address();
    let listens = RawPeer::listen(&address, 8);
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| join(&address, TOKEN, LONG));
        let hub = listens.accept();
        assert_eq!(hub.receive()[..8], *b"phubshm1");
        answer(hub);
        worker.join().unwrap().unwrap_err()
    })
}

// ---- the ends ----

/// A real hub with one port.
struct Hub {
    listener: Listener,
    group: Arc<Group>,
    port: fabric::shm::Port,
    window: SendWindow,
    _watchdog: Watchdog,
}

impl Hub {
    fn new(test: &str) -> Self {
        let listener = Listener::bind(&new_address()).unwrap();
        let (group, mut ports) = group(1).unwrap();
        let window = SendWindow::new(WINDOW).unwrap();
        Hub { listener, group, port: ports.remove(0), window, _watchdog: Watchdog::new(test) }
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
                let mut joined = connect(&address, TOKEN, &group, &ours, WINDOW, &[8], LONG).unwrap();
                let link = ports[0].attach(joined.endpoints.remove(0));
                assert_eq!(ports[0].post(link, Span { offset: 0, bytes: 0 }, Imm(5)), Posted::Accepted);
                ports[0].flush();
            });
            let hello = self.listener.accept().unwrap().unwrap().hello(LONG).unwrap();
            assert_eq!(hello.token(), TOKEN);
            let mut joined = hello.welcome(&self.group, &self.window, WINDOW, &[8]).unwrap();
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

/// A real worker's attempt to connect.
fn join(address: &str, token: [u8; 16], timeout: Duration) -> Result<Joined, ConnectError> {
    let (group, _ports) = group(1).unwrap();
    connect(address, token, &group, &SendWindow::new(WINDOW).unwrap(), WINDOW, &[8], timeout)
}

fn new_address() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("phub-handshake-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// The seal that a receiver insists on.
const GOOD: SealFlags = SealFlags::SHRINK;

fn memfd(bytes: u64, seals: SealFlags) -> OwnedFd {
    let fd = memfd_create("phub-test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&fd, bytes).unwrap();
    fcntl_add_seals(&fd, seals).unwrap();
    fd
}

fn hello_bytes(send_bytes: u64, ports: u32) -> Vec<u8> {
    [b"phubshm1".as_slice(), &TOKEN, &send_bytes.to_le_bytes(), &ports.to_le_bytes()].concat()
}

fn welcome_bytes(ports: u32) -> Vec<u8> {
    [b"phubshm1\0".as_slice(), &(WINDOW as u64).to_le_bytes(), &ports.to_le_bytes()].concat()
}

/// A socket of the handshake's kind, for saying anything.
struct RawPeer(OwnedFd);

impl RawPeer {
    fn new() -> Self {
        RawPeer(
            net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap(),
        )
    }

    fn connect(address: &str) -> Self {
        let peer = RawPeer::new();
        net::connect(&peer.0, &SocketAddrUnix::new_abstract_name(address.as_bytes()).unwrap()).unwrap();
        peer
    }

    fn listen(address: &str, backlog: i32) -> Self {
        let peer = RawPeer::new();
        net::bind(&peer.0, &SocketAddrUnix::new_abstract_name(address.as_bytes()).unwrap()).unwrap();
        net::listen(&peer.0, backlog).unwrap();
        peer
    }

    fn accept(&self) -> Self {
        RawPeer(net::accept_with(&self.0, SocketFlags::CLOEXEC).unwrap())
    }

    fn send(&self, bytes: &[u8], fds: &[BorrowedFd]) {
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
        let mut control = net::SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(control.push(net::SendAncillaryMessage::ScmRights(fds)));
        }
        net::sendmsg(&self.0, &[IoSlice::new(bytes)], &mut control, net::SendFlags::NOSIGNAL).unwrap();
    }

    /// The next message; descriptors that came with it are closed.
    fn receive(&self) -> Vec<u8> {
        let mut bytes = vec![0; 2048];
        let mut control = net::RecvAncillaryBuffer::default();
        let received =
            net::recvmsg(&self.0, &mut [IoSliceMut::new(&mut bytes)], &mut control, net::RecvFlags::empty());
        bytes.truncate(received.unwrap().bytes);
        bytes
    }
}
