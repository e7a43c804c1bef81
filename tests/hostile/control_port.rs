//! Clients of the control port that send slowly, nothing, garbage or too much, and more clients than there
//! are places. The hub refuses or closes each connection, a job continues with the right bits, and no
//! descriptor is left open. The file has one test, because it counts the descriptors of the process.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use fabric::conformance::{Watchdog, alone};
use hub_tests::program::until;
use hub_tests::training::Training;
use hub_tests::usage::{holds, holds_at_rest};
use hub_tests::{authorization, config, hub_with, join_request, push_all, ready_all, says};
use pbox_core::control::PROTOCOL;
use phub_server::ControlLimits;

/// The hub's limit for silent clients. It is short, so that the test is quick, and far shorter than the time
/// that the hub holds a heartbeat.
const LIMIT: Duration = Duration::from_millis(700);
const CONNECTIONS: usize = 60;

fn limits() -> ControlLimits {
    ControlLimits {
        join_bytes: 1 << 20,
        headers: LIMIT,
        body_stall: LIMIT,
        unread: LIMIT,
        connections: CONNECTIONS,
        ..ControlLimits::default()
    }
}

/// A client that can send any bytes.
struct Client(TcpStream);

impl Client {
    fn connect(hub: SocketAddr) -> Self {
        Client(TcpStream::connect(hub).expect("the hub listens"))
    }

    fn send(&mut self, bytes: impl AsRef<[u8]>) -> &mut Self {
        self.0.write_all(bytes.as_ref()).expect("a socket takes some bytes");
        self
    }

    /// Reads all bytes that the hub sends until the hub closes.
    fn read_all(mut self) -> String {
        let mut said = Vec::new();
        match self.0.read_to_end(&mut said) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
            Err(error) => panic!("reading the hub's answer: {error}"),
        }
        String::from_utf8(said).expect("the hub speaks text")
    }

    /// Sends these bytes one by one until the hub closes, and returns the answer.
    fn drip(mut self, bytes: impl AsRef<[u8]>) -> String {
        for &byte in bytes.as_ref().iter().cycle() {
            if self.0.write_all(&[byte]).is_err() {
                break;
            }
            // The pause is longer than that of any real client, but so short that the hub does not count the
            // client as silent.
            self.0.set_read_timeout(Some(LIMIT / 20)).unwrap();
            match self.0.peek(&mut [0]) {
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                _ => break,
            }
        }
        self.0.set_read_timeout(None).unwrap();
        self.read_all()
    }
}

fn post(path: &str, headers: &str) -> String {
    let authorization = authorization();
    format!(
        "POST /v1/jobs/job/{path} HTTP/1.1\r\nhost: hub\r\nauthorization: {authorization}\r\n{headers}\r\n\r\n"
    )
}

fn bodies_that_do_not_come(hub: SocketAddr) {
    let mut client = Client::connect(hub);
    client.send(post("join", "content-length: 1000")).send("0123456789");
    says(client.read_all(), &["408", "stalled: 10 bytes", "error"]);
    for verb in ["join", "meet"] {
        let mut client = Client::connect(hub);
        client.send(post(verb, "content-length: 60000"));
        says(client.drip(" "), &["408", "stalled", "bytes a second"]);
    }
    let mut client = Client::connect(hub);
    client.send(post("join", "transfer-encoding: chunked")).send("5\r\n12345\r\n");
    says(client.read_all(), &["408", "stalled: 5 bytes"]);
    // A client that closes in the middle of a request leaves nothing at the hub.
    Client::connect(hub).send(post("join", "content-length: 1000")).send("0123456789");
}

fn bodies_that_are_too_long(hub: SocketAddr) {
    for (verb, bytes, limit) in [("join", 1 << 30, "1048576"), ("meet", 140_000, "131072")] {
        let mut client = Client::connect(hub);
        client.send(post(verb, &format!("content-length: {bytes}")));
        says(client.read_all(), &["413", limit, "the most that this request may have"]);
    }
    let mut client = Client::connect(hub);
    client.send(post("meet", "transfer-encoding: chunked"));
    let chunk = format!("4000\r\n{}\r\n", "x".repeat(0x4000));
    // The hub may close before all bytes are sent.
    (0..9).any(|_| client.0.write_all(chunk.as_bytes()).is_err());
    let said = client.read_all();
    assert!(said.is_empty() || said.contains("413"), "{said}");
}

fn bodies_that_are_none(hub: SocketAddr) {
    let request = serde_json::to_string(&join_request(0, 1)).unwrap();
    let (open, close) = ("[".repeat(10_000), "]".repeat(10_000));
    let deep = format!("{{\"protocol\":{PROTOCOL},\"terms\":{{\"keys\":{open}{close}}}}}");
    let twice = request.replace("\"rank\":0", "\"rank\":0,\"rank\":0");
    assert_ne!(twice, request);
    let long = request.replace("rank", &"r".repeat(100_000));
    for (body, words) in [
        (deep, ["400", "invalid type: sequence"]),
        (twice, ["400", "duplicate field `rank`"]),
        (long, ["400", "unknown field `rrr"]),
        (request.replace("\"rank\":0", "\"rank\":\"\u{7}\""), ["400", "control character"]),
        (request[..request.len() - 1].to_owned(), ["400", "EOF"]),
    ] {
        let mut client = Client::connect(hub);
        client.send(post("join", &format!("connection: close\r\ncontent-length: {}", body.len()))).send(body);
        let said = client.read_all();
        says(&said, &words);
        assert!(said.len() < 1500, "an answer of {} bytes", said.len());
    }
}

fn requests_that_are_garbage(hub: SocketAddr) {
    for garbage in [&b"\0\xff\xfe rubbish \r\n\r\n"[..], b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\0\x01"]
    {
        let mut client = Client::connect(hub);
        client.send(garbage);
        let said = client.read_all();
        assert!(said.is_empty() || said.starts_with("HTTP/1.1 4"), "{said}");
    }
    let mut client = Client::connect(hub);
    client.send(format!("GET / HTTP/1.1\r\nx: {}", "y".repeat(60_000)));
    let said = client.drip("y");
    assert!(said.is_empty() || said.starts_with("HTTP/1.1 4"), "{said}");
    says(Client::connect(hub).drip("GET / HTTP/1.1\r\nhost: h\r\nx: "), &[]);
}

/// Runs a client that sends requests and never reads a reply.
fn a_client_that_does_not_read(hub: SocketAddr) {
    let mut client = Client::connect(hub);
    while client.0.write_all(b"GET / HTTP/1.1\r\nhost: hub\r\n\r\n").is_ok() {}
}

#[test]
fn no_client_holds_up_the_hub() {
    alone(|| {
        let _watchdog = Watchdog::start();
        let hub = hub_with(2, limits());
        let address = hub.address();
        let before = holds_at_rest(&hub.address().to_string(), std::process::id());
        let training = Training { workers: 2, rounds: 500, ..Training::small("steady") };
        std::thread::scope(|scope| {
            let steady = scope.spawn(|| training.run(&address.to_string()));
            let attacks = [
                bodies_that_do_not_come,
                bodies_that_are_too_long,
                bodies_that_are_none,
                requests_that_are_garbage,
                a_client_that_does_not_read,
            ];
            attacks.into_iter().for_each(|attack| drop(scope.spawn(move || attack(address))));
            let silent: Vec<Client> = (0..20).map(|_| Client::connect(address)).collect();
            silent
                .into_iter()
                .for_each(|client| assert_eq!(client.read_all(), "", "a silent client is cut off"));
            steady.join().expect("the job beside goes on, with right bits");
        });

        // There are more clients than the limit, and a running job does not notice.
        let mut sessions = ready_all(2, |rank| config(&hub, "job", rank, 2));
        let crowd: Vec<Client> = (0..2 * CONNECTIONS).map(|_| Client::connect(address)).collect();
        for _ in 0..20 {
            sessions.iter_mut().for_each(|session| push_all(session).unwrap());
            sessions.iter_mut().for_each(|session| session.wait_all().unwrap());
        }
        // A client with a token is still served.
        ready_all(2, |rank| config(&hub, "another", rank, 2));
        drop(crowd);
        sessions.into_iter().for_each(|session| session.leave().unwrap());

        until("all descriptors are closed", || holds(std::process::id()).descriptors <= before.descriptors);
        let health = ureq::get(format!("http://{address}/v1/health")).call().unwrap();
        assert_eq!(health.into_body().read_to_string().unwrap(), "ok\n");
    });
}

/// One address cannot take all connections with tokens. Further clients at this address are refused with a
/// reason, and its open connections continue.
#[test]
fn one_address_has_a_share_of_the_connections() {
    let _watchdog = Watchdog::start();
    let share = 20;
    let hub = hub_with(1, ControlLimits { of_an_address: share, ..ControlLimits::default() });
    let mut sessions = ready_all(2, |rank| config(&hub, "job", rank, 2));
    let request =
        format!("GET /v1/health HTTP/1.1\r\nhost: hub\r\nauthorization: {}\r\n\r\n", authorization());
    let mut crowd = Vec::new();
    let refusal = loop {
        let mut client = Client::connect(hub.address());
        let _ = client.0.write_all(request.as_bytes()); // the hub may have hung up
        let mut said = [0; 12];
        client.0.read_exact(&mut said).unwrap();
        if said != *b"HTTP/1.1 200" {
            break client.read_all();
        }
        crowd.push(client);
        assert!(crowd.len() <= share);
    };
    says(refusal, &["Unavailable", "your address has the maximum number of connections", "try again"]);
    for _ in 0..20 {
        sessions.iter_mut().for_each(|session| push_all(session).unwrap());
        sessions.iter_mut().for_each(|session| session.wait_all().unwrap());
    }
    drop(crowd);
    until("an address gets its places back", || {
        ureq::get(format!("http://{}/v1/health", hub.address())).call().is_ok()
    });
    sessions.into_iter().for_each(|session| session.leave().unwrap());
}
