//! Shared memory, for those who meet over it.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use fabric::SendWindow;
use fabric::conformance::{Links, Role, Transport};
use fabric::shm::{Group, Joined, Listener, Port, connect, group};

/// Of each handshake; the suite's watchdog is twice as patient.
const TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Clone, Debug)]
pub struct Shm;

impl Transport for Shm {
    type Port = Port;
    type Group = Arc<Group>;
    type Listener = Listener;

    fn name(&self) -> String {
        "shm".into()
    }

    fn text(&self) -> String {
        String::new()
    }

    fn parse(_: &str) -> Self {
        Shm
    }

    fn ports(&self, _: Role, count: usize) -> (Arc<Group>, Vec<Port>) {
        group(count).unwrap()
    }

    fn listen() -> (Listener, String) {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let address = format!("phub-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        (Listener::bind(&address).unwrap(), address)
    }

    fn welcome(
        listener: &Listener,
        group: &Arc<Group>,
        ours: &Arc<SendWindow>,
        bytes: usize,
        capacities: &[u32],
    ) -> ([u8; 16], Links<Port>) {
        let hello = listener.accept().unwrap().unwrap().hello(TIMEOUT).unwrap();
        (hello.token(), links(hello.welcome(group, ours, bytes, capacities).unwrap()))
    }

    fn connect(
        address: &str,
        token: [u8; 16],
        group: &Arc<Group>,
        ours: &Arc<SendWindow>,
        bytes: usize,
        capacities: &[u32],
    ) -> Links<Port> {
        links(connect(address, token, group, ours, bytes, capacities, TIMEOUT).unwrap())
    }
}

fn links(joined: Joined) -> Links<Port> {
    let recv = Arc::new(joined.recv);
    joined.endpoints.into_iter().map(|endpoint| (endpoint, Arc::clone(&recv))).collect()
}
