//! Peers that send nothing, or nonsense, to the data path's TCP listener. Each causes a clear error in
//! bounded time, and the listener continues. The tests need no RDMA device: no peer gets past the hello.
#![forbid(unsafe_code)]

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use fabric::conformance::Watchdog;
use fabric::verbs::{ConnectError, Hello, Listener};

const LONG: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_millis(30);

fn listener() -> Listener {
    Listener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap()
}

fn framed(body: &[u8]) -> Vec<u8> {
    [&(body.len() as u32).to_le_bytes(), body].concat()
}

fn good_hello() -> Vec<u8> {
    framed(
        &[
            b"phubrdm6".as_slice(),
            &[0],
            &[7; 16],
            &4096u64.to_le_bytes(),
            &1u32.to_le_bytes(),
            &[0; 4],
            &0u32.to_le_bytes(),
            &[0; 32],
        ]
        .concat(),
    )
}

/// Returns a peer that sends these bytes.
fn peer(listener: &Listener, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(listener.address()).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream.write_all(bytes).unwrap();
    stream
}

fn hello(listener: &Listener, timeout: Duration) -> Result<Hello, ConnectError> {
    listener.accept().unwrap().unwrap().hello(timeout)
}

fn refusal(mut stream: &TcpStream) -> String {
    let mut head = [0; 13];
    stream.read_exact(&mut head).unwrap();
    assert_eq!((&head[4..12], head[12]), (b"phubrdm6".as_slice(), 4));
    let mut words = vec![0; u32::from_le_bytes(head[..4].try_into().unwrap()) as usize - 9];
    stream.read_exact(&mut words).unwrap();
    String::from_utf8(words).unwrap()
}

#[test]
fn a_hello_that_no_worker_of_this_version_sends_is_refused() {
    let _watchdog = Watchdog::start();
    let listener = listener();
    let hello_body = &good_hello()[4..];
    let cases: [(Vec<u8>, &str); 6] = [
        (framed(&[b"phubrdm9".as_slice(), &hello_body[8..]].concat()), "expected the handshake \"phubrdm6\""),
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), "a message of 542393671 bytes"),
        (framed(&hello_body[..20]), "too short"),
        (framed(&[hello_body, &[0]].concat()), "1 bytes too many"),
        (framed(b"phubrdm6\x03"), "expected a hello, got ready"),
        (framed(&[]), "expected the handshake"),
    ];
    for (bytes, expected) in cases {
        let peer = peer(&listener, &bytes);
        let error = hello(&listener, LONG).unwrap_err().to_string();
        assert!(error.contains(expected), "{error:?} lacks {expected:?}");
        let told = refusal(&peer);
        assert!(told.contains(expected), "the worker is told {told:?}");
    }
    assert_alive(&listener);
}

#[test]
fn a_worker_is_refused_in_the_hubs_words() {
    let _watchdog = Watchdog::start();
    let listener = listener();
    let peer = peer(&listener, &good_hello());
    let mut hello = hello(&listener, LONG).unwrap();
    hello.identify(|_| Some([1; 16]));
    assert_eq!(hello.token(), [7; 16], "nothing proves the token");
    hello.refuse("no worker of this job has this token");
    assert_eq!(refusal(&peer), "no worker of this job has this token");
    assert_alive(&listener);
}

#[test]
fn a_worker_that_is_silent_drips_or_hangs_up_costs_a_time_out() {
    let _watchdog = Watchdog::start();
    let listener = listener();
    for bytes in [&[][..], &good_hello()[..3], &good_hello()[..30]] {
        let silent = peer(&listener, bytes);
        let error = hello(&listener, SHORT).unwrap_err().to_string();
        assert!(error.contains("did not send its part of the handshake within 30ms"), "{error}");
        drop(silent);
        drop(peer(&listener, bytes));
        let error = hello(&listener, LONG).unwrap_err().to_string();
        assert!(error.contains("hung up during the handshake"), "{error}");
    }
    assert_alive(&listener);
}

#[test]
fn a_listener_that_is_stopped_accepts_nobody() {
    let _watchdog = Watchdog::start();
    let listener = listener();
    std::thread::scope(|scope| {
        let accepting = scope.spawn(|| listener.accept());
        listener.stop();
        assert!(accepting.join().unwrap().unwrap().is_none());
    });
}

fn assert_alive(listener: &Listener) {
    let _peer = peer(listener, &good_hello());
    assert_eq!(hello(listener, LONG).unwrap().token(), [7; 16]);
}
