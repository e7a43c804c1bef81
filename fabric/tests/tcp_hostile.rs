//! Bytes over a TCP connection that no correct peer sends: incomplete frames, wrong lengths, a handshake of
//! random bytes, and missing connections. In each case the sender loses its link, and other peers are not
//! affected.
#![forbid(unsafe_code)]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fabric::conformance::Watchdog;
use fabric::tcp::{ConnectError, Endpoint, Frames, Gathered, Hello, Listener, Options, Port, connect};
use fabric::{
    Arrival, CloseReason, FrameRule, Imm, Joined, PlannedLink, Port as _, Posted, Receive, SendWindow, Span,
    Until,
};

const WINDOW: usize = 4096;
const LONG: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_millis(30);
const TOKEN: [u8; 16] = [7; 16];

/// A hub with one port, which can admit workers.
struct Hub {
    listener: Listener,
    port: Port,
    window: Arc<SendWindow>,
    _watchdog: Watchdog,
}

impl Hub {
    fn new() -> Self {
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let window = Arc::new(SendWindow::new(WINDOW).unwrap());
        Hub { listener, port: Port::new().unwrap(), window, _watchdog: Watchdog::start() }
    }

    fn dial(&self) -> TcpStream {
        TcpStream::connect(self.listener.address()).unwrap()
    }

    fn hello(&self) -> Result<Option<Hello>, ConnectError> {
        match identified(self.listener.accept().unwrap().unwrap().hello(LONG)?).gather()? {
            Gathered::Whole(hello) => Ok(Some(hello)),
            Gathered::Waits(_) => Ok(None),
        }
    }

    fn welcome(&self, hello: Hello) -> Joined<Endpoint> {
        hello.welcome(Frames::Plain, &self.window, WINDOW, &PlannedLink::of_one_port(&[8]), |_| ()).unwrap()
    }

    /// Returns a peer after its handshake. The peer may then send any bytes.
    fn meets(&mut self) -> TcpStream {
        let mut peer = self.dial();
        peer.write_all(&hello_bytes(0, 1, WINDOW as u64)).unwrap();
        let joined = self.welcome(self.hello().unwrap().expect("it has all its connections"));
        for endpoint in joined.endpoints {
            self.port.attach(endpoint);
        }
        peer.read_exact(&mut [0; 16]).unwrap();
        peer
    }

    fn sees_the_end(&mut self) -> CloseReason {
        loop {
            assert_eq!(self.port.poll(&mut [Arrival::default(); 4]), 0, "nothing whole came");
            if let Some(closed) = self.port.closed() {
                self.port.detach(closed.link);
                return closed.reason;
            }
            self.port.wait(Until::Any, LONG);
        }
    }

    /// Checks that a worker joins and posts, and that the post arrives.
    fn assert_alive(&mut self) {
        let address = self.listener.address();
        std::thread::scope(|scope| {
            let worker = scope.spawn(move || {
                let window = Arc::new(SendWindow::new(WINDOW).unwrap());
                let joined = connect(
                    &[address],
                    TOKEN,
                    &Options::default(),
                    &window,
                    Receive::New(WINDOW),
                    &PlannedLink::of_one_port(&[8]),
                    LONG,
                )
                .unwrap();
                let mut port = Port::new().unwrap();
                let link = joined.endpoints.into_iter().map(|endpoint| port.attach(endpoint)).next().unwrap();
                assert_eq!(port.post(link, Span { offset: 64, bytes: 64 }, Imm(5)), Posted::Accepted);
                port.flush();
                while port.closed().is_none() {
                    assert_eq!(port.poll(&mut [Arrival::default()]), 0);
                    port.wait(Until::Any, LONG);
                }
            });
            let joined = self.welcome(self.hello().unwrap().expect("it has all its connections"));
            let link =
                joined.endpoints.into_iter().map(|endpoint| self.port.attach(endpoint)).next().unwrap();
            let mut seen = [Arrival::default(); 4];
            while self.port.poll(&mut seen) == 0 {
                self.port.wait(Until::Any, LONG);
            }
            assert_eq!(seen[0], Arrival { link, imm: Imm(5) });
            self.port.detach(link);
            while !worker.is_finished() {
                self.port.poll(&mut []); // the port handles the end of the detached link
            }
            worker.join().unwrap();
        });
    }
}

/// Identifies a hello by the token that it proves. Panics if there is none.
fn identified(mut hello: Hello) -> Hello {
    let name = hello.token();
    hello.identify(|_| Some([8; 16]));
    assert_eq!(hello.token(), name, "another token does not prove it");
    hello.identify(|shown| {
        assert_eq!(shown, fabric::name_of(TOKEN));
        Some(TOKEN)
    });
    assert_eq!(hello.token(), TOKEN);
    hello
}

fn hello_bytes(link: u32, links: u32, window_bytes: u64) -> Vec<u8> {
    let mut bytes = link.to_le_bytes().to_vec();
    bytes.extend(links.to_le_bytes());
    bytes.extend([0, 0]); // this end's port
    bytes.extend((link as u16).to_le_bytes());
    bytes.extend(window_bytes.to_le_bytes());
    bytes.extend([0; 4]); // plain frames
    fabric::tcp::fuzzing::hello(TOKEN, &bytes)
}

fn header(offset: u64, bytes: u32) -> Vec<u8> {
    [&offset.to_le_bytes()[..], &bytes.to_le_bytes(), &7u32.to_le_bytes()].concat()
}

#[test]
fn lengths_that_do_not_fit_cost_the_link() {
    let mut hub = Hub::new();
    for (offset, bytes) in [(0, 4097), (4096, 1), (u64::MAX, 1), (u64::MAX - 15, 16), (1 << 40, u32::MAX)] {
        let mut peer = hub.meets();
        peer.write_all(&header(offset, bytes)).unwrap();
        let reason = hub.sees_the_end().to_string();
        assert!(reason.contains(&format!("{bytes} bytes for offset {offset}")), "{reason}");
        assert!(reason.contains("the window has 4096 bytes"), "{reason}");
        assert!(matches!(peer.read(&mut [0; 1]), Ok(0) | Err(_)), "the peer is cut off");
    }
    hub.assert_alive();
}

/// A rule that accepts only frames of 64 bytes for offset 64. It notes the empty posts of its own end.
#[derive(Debug)]
struct OneSpan(Arc<Mutex<Vec<Imm>>>);

impl FrameRule for OneSpan {
    fn posted_empty(&mut self, imm: Imm) {
        self.0.lock().unwrap().push(imm);
    }

    fn check(&mut self, span: Span, imm: Imm) -> Result<(), String> {
        let right = Span { offset: 64, bytes: 64 };
        if span == right { Ok(()) } else { Err(format!("{span:?} with {imm:?}, expected {right:?}")) }
    }

    fn check_length(&mut self, _bytes: usize, _imm: Imm) -> Result<(), String> {
        unreachable!("a frame names the place of its bytes")
    }
}

#[test]
fn a_frame_that_the_rule_refuses_costs_the_link() {
    let mut hub = Hub::new();
    for (offset, bytes) in [(64, 63), (64, 65), (63, 64), (64, 0), (0, 64)] {
        let noted = Arc::new(Mutex::new(Vec::new()));
        let mut peer = hub.dial();
        peer.write_all(&hello_bytes(0, 1, WINDOW as u64)).unwrap();
        let mut joined = hub.welcome(hub.hello().unwrap().expect("it has all its connections"));
        joined.endpoints[0].obey(Box::new(OneSpan(Arc::clone(&noted))));
        let link = hub.port.attach(joined.endpoints.remove(0));
        peer.read_exact(&mut [0; 16]).unwrap();
        for (bytes, imm) in [(64, 1), (0, 2), (64, 3), (0, 4)] {
            assert_eq!(hub.port.post(link, Span { offset: 0, bytes }, Imm(imm)), Posted::Accepted);
        }
        assert_eq!(*noted.lock().unwrap(), [Imm(2), Imm(4)]);
        peer.write_all(&[header(64, 64), vec![1; 64]].concat()).unwrap();
        let mut seen = [Arrival::default(); 4];
        while hub.port.poll(&mut seen) == 0 {
            hub.port.wait(Until::Any, LONG);
        }
        assert_eq!(seen[0], Arrival { link, imm: Imm(7) });
        peer.write_all(&header(offset, bytes)).unwrap();
        let reason = hub.sees_the_end().to_string();
        assert!(
            reason.contains("corrupted the link") && reason.contains("with Imm(7), expected"),
            "{reason}"
        );
    }
    hub.assert_alive();
}

#[test]
fn a_torn_frame_is_not_shown() {
    let mut hub = Hub::new();
    let whole = [header(128, 64), vec![1; 64]].concat();
    for cut in [0, 1, 15, 16, 17, 79] {
        let mut peer = hub.meets();
        peer.write_all(&whole[..cut]).unwrap();
        drop(peer);
        assert_eq!(hub.sees_the_end(), CloseReason::PeerGone, "cut after {cut} bytes");
    }
    hub.assert_alive();
}

#[test]
fn frames_in_single_bytes_are_frames() {
    let mut hub = Hub::new();
    let mut peer = hub.meets();
    peer.set_nodelay(true).unwrap();
    let frames = [header(128, 3), vec![1, 2, 3], header(0, 0), header(256, 1), vec![9]].concat();
    for byte in &frames[..frames.len() - 1] {
        peer.write_all(&[*byte]).unwrap();
        std::thread::yield_now();
        hub.port.poll(&mut []); // a poll without room shows nothing, and loses nothing
    }
    peer.write_all(&frames[frames.len() - 1..]).unwrap();
    let mut arrivals = 0;
    while arrivals < 3 {
        let count = hub.port.poll(&mut [Arrival::default(); 1]);
        arrivals += count;
        if count == 0 {
            hub.port.wait(Until::Any, LONG);
        }
    }
    assert_eq!(hub.port.closed(), None);
}

#[test]
fn a_handshake_of_others_is_refused_in_words() {
    let mut hub = Hub::new();
    let http =
        b"GET / HTTP/1.1\r\nhost: somewhere.example\r\naccept: */*\r\nuser-agent: somebody else\r\n\r\n"
            .to_vec();
    let cases = [
        (http, "saw \"GET / HT\""),
        (hello_bytes(1, 1, 4096), "link 1 of 1"),
        (hello_bytes(0, 1 << 20, 4096), "link 0 of 1048576"),
    ];
    for (bytes, expected) in cases {
        let mut peer = hub.dial();
        peer.write_all(&bytes).unwrap();
        let error = hub.hello().unwrap_err().to_string();
        assert!(error.contains(expected), "{error:?} lacks {expected:?}");
        let mut told = Vec::new();
        let _ = peer.read_to_end(&mut told); // the connection may be reset after the refusal
        assert!(String::from_utf8_lossy(&told).contains(expected), "the peer is told {told:?}");
    }
    hub.assert_alive();
}

#[test]
fn a_peer_that_is_silent_or_hangs_up_costs_a_time_out() {
    let mut hub = Hub::new();
    let _silent = hub.dial();
    let error = hub.listener.accept().unwrap().unwrap().hello(SHORT).unwrap_err().to_string();
    assert!(error.contains("said nothing for 30ms"), "{error}");
    drop(hub.dial());
    let error = hub.hello().unwrap_err().to_string();
    assert!(error.contains("hung up during the handshake"), "{error}");
    hub.assert_alive();
}

#[test]
fn half_of_a_worker_is_no_worker() {
    let mut hub = Hub::new();
    let say = |bytes: Vec<u8>| {
        let mut peer = hub.dial();
        peer.write_all(&bytes).unwrap();
        (peer, hub.hello())
    };
    let (_first, told) = say(hello_bytes(0, 3, 4096));
    assert!(told.unwrap().is_none());
    let (_again, told) = say(hello_bytes(0, 3, 4096));
    assert!(told.unwrap_err().to_string().contains("link 0 of the same worker has a connection already"));
    let (_other, told) = say(hello_bytes(1, 2, 4096));
    assert!(told.unwrap_err().to_string().contains("does not fit the hello"));
    let (_second, told) = say(hello_bytes(1, 3, 4096));
    assert!(told.unwrap().is_none());
    let (_third, told) = say(hello_bytes(2, 3, 4096));
    let hello = told.unwrap().expect("now it is whole");
    let error = hello
        .welcome(Frames::Plain, &hub.window, WINDOW, &PlannedLink::of_one_port(&[8, 8]), |_| ())
        .unwrap_err()
        .to_string();
    assert!(error.contains("the hello names 3 links, and the hub's plan has 2"), "{error}");
    hub.assert_alive();
}

#[test]
fn a_worker_that_does_not_come_whole_is_ended_after_a_time() {
    let mut hub = Hub::new();
    let say = |link| {
        let mut peer = hub.dial();
        peer.write_all(&hello_bytes(link, 20, 4096)).unwrap();
        (peer, identified(hub.listener.accept().unwrap().unwrap().hello(LONG).unwrap()).gather().unwrap())
    };
    let (mut first, gathered) = say(18);
    let Gathered::Waits(Some(pending)) = gathered else { panic!("the first of 20 waits: {gathered:?}") };
    assert_eq!(pending.token(), TOKEN);
    let (mut second, gathered) = say(3);
    assert!(matches!(gathered, Gathered::Waits(None)), "one waits for all: {gathered:?}");
    let error = pending.wait(SHORT).unwrap_err().to_string();
    let expected = "20 TCP connections, one for each link, the connections of links 3, 18 arrived, but those of links 0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12, \
                    13, 14, 15, 16 and 2 more did not arrive within 30ms";
    assert!(error.contains(expected), "{error}");
    for peer in [&mut first, &mut second] {
        let mut told = Vec::new();
        let _ = peer.read_to_end(&mut told);
        assert!(String::from_utf8_lossy(&told).contains(expected), "the peer is told {told:?}");
    }
    // The token is free again. A worker whose connections all arrive in time is not closed.
    let (_first, gathered) = say(0);
    let Gathered::Waits(Some(pending)) = gathered else { panic!("the first again: {gathered:?}") };
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| pending.wait(LONG));
        let peers: Vec<_> = (1..20).map(say).collect();
        assert!(matches!(peers[18].1, Gathered::Whole(_)), "{:?}", peers[18].1);
        waiting.join().unwrap().unwrap();
    });
    hub.assert_alive();
}

#[test]
fn windows_of_other_sizes_are_refused() {
    let mut hub = Hub::new();
    let address = hub.listener.address();
    std::thread::scope(|scope| {
        let worker = scope.spawn(move || {
            let window = Arc::new(SendWindow::new(64).unwrap());
            connect(
                &[address],
                TOKEN,
                &Options::default(),
                &window,
                Receive::New(WINDOW),
                &PlannedLink::of_one_port(&[8]),
                LONG,
            )
            .map(|_| ())
        });
        let hello = hub.hello().unwrap().unwrap();
        let error = hello
            .welcome(Frames::Plain, &hub.window, WINDOW, &PlannedLink::of_one_port(&[8]), |_| ())
            .unwrap_err()
            .to_string();
        assert!(error.contains("64 bytes where the layout needs 4096"), "{error}");
        let told = worker.join().unwrap().unwrap_err().to_string();
        assert!(told.contains("64 bytes where the layout needs 4096"), "{told}");
    });
    hub.assert_alive();
}

#[test]
fn a_stopped_listener_says_so() {
    let _watchdog = Watchdog::start();
    let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    std::thread::scope(|scope| {
        let accepting = scope.spawn(|| listener.accept());
        listener.stop();
        assert!(accepting.join().unwrap().unwrap().is_none());
    });
    let error = connect(
        &[listener.address()],
        TOKEN,
        &Options::default(),
        &Arc::new(SendWindow::new(64).unwrap()),
        Receive::New(64),
        &PlannedLink::of_one_port(&[1]),
        SHORT,
    );
    assert!(matches!(error, Err(ConnectError::Socket { .. })), "{error:?}");
}
