//! Ends over TCP for the conformance suite, on loopback: either end under test, its peers in this process or in
//! others. The shapes are those of `shm_bed`.
#![forbid(unsafe_code)]

use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use fabric::conformance::{Bed, End, Hub, Local, Meeting, Peer, Remote, Shape, serve};
use fabric::tcp::{Endpoint, Hello, Joined, Listener, Port, connect};
use fabric::{RecvWindow, SendWindow, Spans};

const VARIABLE: &str = "PHUB_TEST_PEER";
/// Of each handshake; the suite's watchdog is twice as patient.
const TIMEOUT: Duration = Duration::from_secs(30);

/// What an end is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Listens; its peers are workers.
    Hub,
    /// Connects; its peers are hubs.
    Worker,
}

/// Where the peers run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Far {
    /// On threads of this process.
    Here,
    /// Each in a process of its own.
    Process,
}

/// Ends over TCP.
pub struct TcpBed {
    /// What the end under test is.
    pub near: Role,
    /// Where its peers run.
    pub far: Far,
}

impl Bed for TcpBed {
    type Port = Port;

    fn name(&self) -> String {
        format!("tcp, {:?} under test, peers {:?}", self.near, self.far)
    }

    fn meet(&self, shape: Shape) -> Meeting<Port> {
        match self.near {
            Role::Hub => self.hub_meets_workers(shape),
            Role::Worker => self.worker_meets_hubs(shape),
        }
    }
}

impl TcpBed {
    fn hub_meets_workers(&self, shape: Shape) -> Meeting<Port> {
        let listener = listener();
        let (window, spans) = window(shape);
        std::thread::scope(|scope| {
            let peers: Vec<_> = (0..shape.peers)
                .map(|peer| {
                    let address = listener.address();
                    scope.spawn(move || self.start(Role::Worker, address, peer, shape))
                })
                .collect();
            let mut links: Vec<_> = (0..shape.peers * shape.links).map(|_| None).collect();
            for _ in 0..links.len() {
                let hello = hello(&listener);
                let [peer, link, ..] = hello.token();
                let joined = hello.welcome(&window, shape.window_bytes(), &[shape.capacity], |_| ()).unwrap();
                links[usize::from(peer) * shape.links + usize::from(link)] = Some(only_link(joined));
            }
            let links = links.into_iter().map(Option::unwrap).collect();
            let near = End::new(shape, Port::new().unwrap(), spans, links);
            Meeting { near, peers: peers.into_iter().map(|peer| peer.join().unwrap()).collect() }
        })
    }

    fn worker_meets_hubs(&self, shape: Shape) -> Meeting<Port> {
        let (window, spans) = window(shape);
        let mut links = Vec::new();
        let mut peers = Vec::new();
        for peer in 0..shape.peers {
            // Whoever connects comes after whoever listens: the port is told to the hub, not by it.
            let address = listener().address();
            std::thread::scope(|scope| {
                let hub = scope.spawn(|| self.start(Role::Hub, address, peer, shape));
                let joined = join(address, [0; 16], &window, shape, shape.links);
                links.extend(
                    joined.endpoints.into_iter().map(|endpoint| (endpoint, Arc::clone(&joined.recv))),
                );
                peers.push(hub.join().unwrap());
            });
        }
        Meeting { near: End::new(shape, Port::new().unwrap(), spans, links), peers }
    }

    fn start(&self, role: Role, address: SocketAddr, peer: usize, shape: Shape) -> Box<dyn Peer> {
        match self.far {
            Far::Here => run(role, address, peer, shape),
            Far::Process => {
                let mut command = Command::new(std::env::current_exe().unwrap());
                command.args(["--exact", "tcp_bed::peer_process", "--nocapture"]);
                command.env(VARIABLE, format!("{role:?} {address} {peer} {shape}"));
                let mut remote = Remote::start(command).unwrap();
                remote.ready();
                Box::new(remote)
            }
        }
    }
}

/// Not a test: the main function of a peer process. Without its variable it does nothing.
#[test]
fn peer_process() {
    let Ok(what) = std::env::var(VARIABLE) else { return };
    let [role, address, peer, shape] = what.splitn(4, ' ').collect::<Vec<_>>()[..] else {
        panic!("{VARIABLE}={what:?}")
    };
    let role = if role == "Hub" { Role::Hub } else { Role::Worker };
    let mut peer = run(role, address.parse().unwrap(), peer.parse().unwrap(), shape.parse().unwrap());
    serve(&mut *peer, std::io::stdin(), std::io::stdout()).unwrap();
}

/// A peer in this process.
fn run(role: Role, address: SocketAddr, peer: usize, shape: Shape) -> Box<dyn Peer> {
    let shape = Shape { peers: 1, ..shape };
    match role {
        Role::Worker => Box::new(worker(address, peer, shape)),
        Role::Hub => Box::new(hub(address, shape)),
    }
}

fn worker(address: SocketAddr, peer: usize, shape: Shape) -> Local<Port> {
    let (window, spans) = window(shape);
    let links = (0..shape.links).map(|link| {
        let mut token = [0; 16];
        (token[0], token[1]) = (peer as u8, link as u8);
        only_link(join(address, token, &window, shape, 1))
    });
    let links = links.collect();
    Local::new(End::new(shape, Port::new().unwrap(), spans, links), || ())
}

fn hub(address: SocketAddr, shape: Shape) -> Hub<Port> {
    let listener = Listener::bind(address).unwrap();
    let owners = shape.spans().chunks(shape.chunks as usize).map(<[_]>::to_vec).collect();
    let (window, spans) = SendWindow::new(shape.window_bytes()).unwrap().split(owners).unwrap();
    let capacities = vec![shape.capacity; shape.links];
    let joined = hello(&listener).welcome(&window, shape.window_bytes(), &capacities, |_| ()).unwrap();
    let cores = spans.into_iter().zip(joined.endpoints).map(|(spans, endpoint)| {
        let links = vec![(endpoint, Arc::clone(&joined.recv))];
        Local::new(End::new(Shape { links: 1, ..shape }, Port::new().unwrap(), spans, links), || ())
    });
    Hub::new(cores.collect())
}

/// The next worker that is whole.
fn hello(listener: &Listener) -> Hello {
    loop {
        if let Some(hello) = listener.accept().unwrap().unwrap().hello(TIMEOUT).unwrap() {
            return hello;
        }
    }
}

/// Connects, as soon as the hub listens.
fn join(address: SocketAddr, token: [u8; 16], ours: &Arc<SendWindow>, shape: Shape, links: usize) -> Joined {
    use fabric::tcp::ConnectError;
    let (addresses, capacities) = (vec![address; links], vec![shape.capacity; links]);
    loop {
        match connect(&addresses, token, ours, shape.window_bytes(), &capacities, TIMEOUT) {
            Ok(joined) => return joined,
            Err(ConnectError::Socket { doing: "connecting to", .. }) => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    }
}

fn only_link(mut joined: Joined) -> (Endpoint, Arc<RecvWindow>) {
    assert_eq!(joined.endpoints.len(), 1);
    (joined.endpoints.remove(0), joined.recv)
}

fn window(shape: Shape) -> (Arc<SendWindow>, Spans) {
    let window = SendWindow::new(shape.window_bytes()).unwrap();
    let (window, mut spans) = window.split(vec![shape.spans()]).unwrap();
    (window, spans.remove(0))
}

/// On loopback, at a free port.
pub fn listener() -> Listener {
    Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap()
}
