//! The conformance suite over a port of all transports, for a hub and for a worker. In some runs the links
//! alternate between shared memory and TCP; in others all links are on one of the two.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use fabric::any::{Address, Endpoint, Group, Listener, Port, connect, group};
use fabric::conformance::{Bed, End, Local, Meeting, Peer, Shape};
use fabric::{Joined, PlannedLink, Receive, RecvWindow, SendWindow, shm, tcp};

/// The timeout of each handshake. The suite's watchdog waits longer.
const TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Over {
    Shm,
    Tcp,
    Both,
}

/// A bed with a hub under test, whose peers are workers in this process. Each link is a separate connection.
struct AnyBed(Over);

impl Bed for AnyBed {
    type Port = Port;

    fn name(&self) -> String {
        format!("any, over {:?}", self.0)
    }

    fn meet(&self, shape: Shape) -> Meeting<Port> {
        let listeners = Listeners::new();
        let (near_group, mut ports) = group(1, None).unwrap();
        let (near_window, spans) = shape.send_window();
        let mut links = Vec::new();
        let mut peers: Vec<Box<dyn Peer>> = Vec::new();
        for _ in 0..shape.peers {
            let (far_group, mut far_ports) = group(1, None).unwrap();
            let (far_window, far_spans) = shape.send_window();
            let mut far_links = Vec::new();
            for link in 0..shape.links {
                let (listener, address) = match self.0 {
                    Over::Shm => &listeners.shm,
                    Over::Tcp => &listeners.tcp,
                    Over::Both if link % 2 == 0 => &listeners.shm,
                    Over::Both => &listeners.tcp,
                };
                let joined = std::thread::scope(|scope| {
                    let hub = scope.spawn(|| welcome(listener, &near_group, &near_window, shape));
                    far_links.push(only_link(join(address, &far_group, &far_window, shape)));
                    hub.join().unwrap()
                });
                links.push(only_link(joined));
            }
            let shape = Shape { peers: 1, ..shape };
            let end = End::new(shape, far_ports.remove(0), far_spans, far_links);
            peers.push(Box::new(Local::new(end, || ())));
        }
        Meeting { near: End::new(shape, ports.remove(0), spans, links), peers }
    }
}

struct Listeners {
    shm: (Listener, Address),
    tcp: (Listener, Address),
}

impl Listeners {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("phub-any-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let shm = Listener::Shm(shm::Listener::bind(&name).unwrap());
        let tcp = tcp::Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let addresses = vec![tcp.address()];
        Listeners { shm: (shm, Address::Shm(name)), tcp: (Listener::Tcp(tcp), Address::Tcp(addresses)) }
    }
}

fn welcome(listener: &Listener, group: &Group, window: &Arc<SendWindow>, shape: Shape) -> Joined<Endpoint> {
    let hello = listener.accept().unwrap().unwrap().hello(TIMEOUT).unwrap();
    hello
        .welcome(
            group,
            window,
            shape.window_bytes(),
            &PlannedLink::of_one_port(&[shape.capacity]),
            |_| (),
            || (),
        )
        .unwrap()
}

fn join(address: &Address, group: &Group, window: &Arc<SendWindow>, shape: Shape) -> Joined<Endpoint> {
    connect(
        address,
        [1; 16],
        group,
        window,
        Receive::New(shape.window_bytes()),
        &PlannedLink::of_one_port(&[shape.capacity]),
        TIMEOUT,
    )
    .unwrap()
}

fn only_link(mut joined: Joined<Endpoint>) -> (Endpoint, Arc<RecvWindow>) {
    assert_eq!(joined.endpoints.len(), 1);
    (joined.endpoints.remove(0), joined.recv)
}

mod over_shm {
    use super::*;
    fabric::conformance_tests!(AnyBed(Over::Shm));
}

mod over_tcp {
    use super::*;
    fabric::conformance_tests!(AnyBed(Over::Tcp));
}

mod over_both {
    use super::*;
    fabric::conformance_tests!(AnyBed(Over::Both));
}
