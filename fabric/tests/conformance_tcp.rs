//! The conformance suite over TCP on loopback: either end under test, with peers in this process and in
//! others. A peer dies by `kill -9`.
#![forbid(unsafe_code)]

mod tokens;

use std::sync::Arc;
use std::time::Duration;

use fabric::conformance::{Joined, Role, Transport};
use fabric::tcp::{Frames, Gathered, Listener, Options, Port, connect};
use fabric::{PlannedLink, Receive, SendWindow};

/// The timeout of each handshake. The suite's watchdog waits longer.
const TIMEOUT: Duration = Duration::from_secs(30);

fabric::conformance_of_hub_and_workers!(Tcp: [Tcp(Frames::Plain), Tcp(Frames::Summed)]);

const SUMMED: &str = "tcp with checksums";

/// The transport, with the frame format that both ends ask for.
#[derive(Clone, Debug)]
struct Tcp(Frames);

impl Transport for Tcp {
    type Port = Port;
    type Group = Frames;
    type Listener = Listener;

    fn name(&self) -> String {
        match self.0 {
            Frames::Plain => "tcp".into(),
            Frames::Summed => SUMMED.into(),
        }
    }

    fn named(name: &str) -> Self {
        Tcp(Frames::summed_if(name == SUMMED))
    }

    fn ports(&self, _: Role, count: usize) -> (Frames, Vec<Port>) {
        (self.0, (0..count).map(|_| Port::new().unwrap()).collect())
    }

    fn listen() -> (Listener, String) {
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.address().to_string();
        (listener, address)
    }

    fn welcome(
        listener: &Listener,
        frames: &Frames,
        ours: &Arc<SendWindow>,
        bytes: usize,
        plan: &[PlannedLink],
    ) -> ([u8; 16], Joined<Port>) {
        // The hub gathers the worker's connections until the last one has arrived.
        let hello = loop {
            let mut hello = listener.accept().unwrap().unwrap().hello(TIMEOUT).unwrap();
            hello.identify(tokens::token_named);
            if let Gathered::Whole(hello) = hello.gather().unwrap() {
                break hello;
            }
        };
        let token = hello.token();
        let joined = hello.welcome(*frames, ours, bytes, plan, |_| ()).unwrap();
        (token, (joined.recv, joined.endpoints))
    }

    fn connect(
        address: &str,
        token: [u8; 16],
        frames: &Frames,
        ours: &Arc<SendWindow>,
        bytes: usize,
        plan: &[PlannedLink],
    ) -> Joined<Port> {
        let ports = plan.iter().map(|link| link.ports.hub.index() + 1).max().unwrap();
        let addresses = vec![address.parse().unwrap(); ports];
        let options = Options { frames: *frames, ..Options::default() };
        let joined = connect(&addresses, token, &options, ours, Receive::New(bytes), plan, TIMEOUT).unwrap();
        (joined.recv, joined.endpoints)
    }
}
