//! Shared memory as a transport of the suite.
#![forbid(unsafe_code)]

#[path = "../tokens/mod.rs"]
mod tokens;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use fabric::conformance::{Joined, Role, Transport};
use fabric::shm::{Group, Listener, Port, connect, group};
use fabric::{PlannedLink, SendWindow};

/// The timeout of each handshake. The suite's watchdog waits longer.
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

    fn named(_: &str) -> Self {
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
        plan: &[PlannedLink],
    ) -> ([u8; 16], Joined<Port>) {
        let mut hello = listener.accept().unwrap().unwrap().hello(TIMEOUT).unwrap();
        hello.identify(tokens::token_named);
        let token = hello.token();
        let joined = hello.welcome(group, ours, bytes, plan).unwrap();
        (token, (joined.recv, joined.endpoints))
    }

    fn connect(
        address: &str,
        token: [u8; 16],
        group: &Arc<Group>,
        ours: &Arc<SendWindow>,
        bytes: usize,
        plan: &[PlannedLink],
    ) -> Joined<Port> {
        let joined = connect(address, token, group, ours, bytes, plan, TIMEOUT).unwrap();
        (joined.recv, joined.endpoints)
    }
}
