//! Ends over shared memory for the conformance suite: either end under test, its peers in this
//! process or in others.
//!
//! ```text
//!   near is a hub:     one port <== a connection a link ==  one port     a worker, peer 0
//!                               <========================== one port     a worker, peer 1
//!   near is a worker:  one port == one connection, all links ==> a port a link     a hub, peer 0
//! ```
//!
//! A peer process is this test binary once more, told by [`VARIABLE`] to run [`peer_process`] alone.
#![forbid(unsafe_code)]

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use fabric::conformance::{Bed, End, Hub, Local, Meeting, Peer, Remote, Shape, serve};
use fabric::shm::{ConnectError, Endpoint, Group, Joined, Listener, Port, connect, group};
use fabric::{RecvWindow, SendWindow};

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

/// Ends over shared memory.
pub struct ShmBed {
    /// What the end under test is.
    pub near: Role,
    /// Where its peers run.
    pub far: Far,
}

impl Bed for ShmBed {
    type Port = Port;

    fn name(&self) -> String {
        format!("shm, {:?} under test, peers {:?}", self.near, self.far)
    }

    fn meet(&self, shape: Shape) -> Meeting<Port> {
        match self.near {
            Role::Hub => self.hub_meets_workers(shape),
            Role::Worker => self.worker_meets_hubs(shape),
        }
    }
}

impl ShmBed {
    fn hub_meets_workers(&self, shape: Shape) -> Meeting<Port> {
        let listener = Listener::bind(&new_address()).unwrap();
        let (group, mut ports) = group(1).unwrap();
        let (window, mut spans) =
            SendWindow::new(shape.window_bytes()).unwrap().split(vec![shape.spans()]).unwrap();
        std::thread::scope(|scope| {
            let peers: Vec<_> = (0..shape.peers)
                .map(|peer| {
                    let address = listener.address();
                    scope.spawn(move || self.start(Role::Worker, address, peer, shape))
                })
                .collect();
            let mut links: Vec<_> = (0..shape.peers * shape.links).map(|_| None).collect();
            for _ in 0..links.len() {
                let hello = listener.accept().unwrap().unwrap().hello(TIMEOUT).unwrap();
                let [peer, link, ..] = hello.token();
                let joined = hello.welcome(&group, &window, shape.window_bytes(), &[shape.capacity]).unwrap();
                links[usize::from(peer) * shape.links + usize::from(link)] = Some(only_link(joined));
            }
            let links = links.into_iter().map(Option::unwrap).collect();
            let near = End::new(shape, ports.remove(0), spans.remove(0), links);
            Meeting { near, peers: peers.into_iter().map(|peer| peer.join().unwrap()).collect() }
        })
    }

    fn worker_meets_hubs(&self, shape: Shape) -> Meeting<Port> {
        let (group, mut ports) = group(1).unwrap();
        let (window, mut spans) =
            SendWindow::new(shape.window_bytes()).unwrap().split(vec![shape.spans()]).unwrap();
        let mut links = Vec::new();
        let mut peers = Vec::new();
        for peer in 0..shape.peers {
            let address = new_address();
            std::thread::scope(|scope| {
                let hub = scope.spawn(|| self.start(Role::Hub, &address, peer, shape));
                let joined = join(&address, [0; 16], &group, &window, shape, shape.links);
                let recv = Arc::new(joined.recv);
                links.extend(joined.endpoints.into_iter().map(|endpoint| (endpoint, Arc::clone(&recv))));
                peers.push(hub.join().unwrap());
            });
        }
        Meeting { near: End::new(shape, ports.remove(0), spans.remove(0), links), peers }
    }

    fn start(&self, role: Role, address: &str, peer: usize, shape: Shape) -> Box<dyn Peer> {
        match self.far {
            Far::Here => run(role, address, peer, shape),
            Far::Process => {
                let mut remote = start_process(role, address, peer, shape);
                remote.ready();
                Box::new(remote)
            }
        }
    }
}

/// Starts a peer in another process; it connects at once.
pub fn start_process(role: Role, address: &str, peer: usize, shape: Shape) -> Remote {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "shm_bed::peer_process", "--nocapture"]);
    command.env(VARIABLE, format!("{role:?} {address} {peer} {shape}"));
    Remote::start(command).unwrap()
}

/// Not a test: the main function of a peer process. Without its variable it does nothing.
#[test]
fn peer_process() {
    let Ok(what) = std::env::var(VARIABLE) else { return };
    let [role, address, peer, shape] = what.splitn(4, ' ').collect::<Vec<_>>()[..] else {
        panic!("{VARIABLE}={what:?}")
    };
    let role = if role == "Hub" { Role::Hub } else { Role::Worker };
    let mut peer = run(role, address, peer.parse().unwrap(), shape.parse().unwrap());
    serve(&mut *peer, std::io::stdin(), std::io::stdout()).unwrap();
}

/// A peer in this process.
fn run(role: Role, address: &str, peer: usize, shape: Shape) -> Box<dyn Peer> {
    let shape = Shape { peers: 1, ..shape };
    match role {
        Role::Worker => Box::new(worker(address, peer, shape)),
        Role::Hub => Box::new(hub(address, shape)),
    }
}

fn worker(address: &str, peer: usize, shape: Shape) -> Local<Port> {
    let (group, mut ports) = group(1).unwrap();
    let (window, mut spans) =
        SendWindow::new(shape.window_bytes()).unwrap().split(vec![shape.spans()]).unwrap();
    let links = (0..shape.links).map(|link| {
        let mut token = [0; 16];
        (token[0], token[1]) = (peer as u8, link as u8);
        only_link(join(address, token, &group, &window, shape, 1))
    });
    let links = links.collect();
    Local::new(End::new(shape, ports.remove(0), spans.remove(0), links), || ())
}

fn hub(address: &str, shape: Shape) -> Hub<Port> {
    let listener = Listener::bind(address).unwrap();
    let (group, ports) = group(shape.links).unwrap();
    let owners = shape.spans().chunks(shape.chunks as usize).map(<[_]>::to_vec).collect();
    let (window, spans) = SendWindow::new(shape.window_bytes()).unwrap().split(owners).unwrap();
    let hello = listener.accept().unwrap().unwrap().hello(TIMEOUT).unwrap();
    let capacities = vec![shape.capacity; shape.links];
    let joined = hello.welcome(&group, &window, shape.window_bytes(), &capacities).unwrap();
    let recv = Arc::new(joined.recv);
    let cores = ports.into_iter().zip(spans).zip(joined.endpoints).map(|((port, spans), endpoint)| {
        let links = vec![(endpoint, Arc::clone(&recv))];
        Local::new(End::new(Shape { links: 1, ..shape }, port, spans, links), || ())
    });
    Hub::new(cores.collect())
}

/// Connects, as soon as the hub listens.
fn join(
    address: &str,
    token: [u8; 16],
    group: &Arc<Group>,
    ours: &SendWindow,
    shape: Shape,
    links: usize,
) -> Joined {
    loop {
        let capacities = vec![shape.capacity; links];
        match connect(address, token, group, ours, shape.window_bytes(), &capacities, TIMEOUT) {
            Ok(joined) => return joined,
            Err(ConnectError::Socket { doing: "connecting", .. }) => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    }
}

fn only_link(mut joined: Joined) -> (Endpoint, Arc<RecvWindow>) {
    assert_eq!(joined.endpoints.len(), 1);
    (joined.endpoints.remove(0), Arc::new(joined.recv))
}

/// A name that no other test of this machine uses.
pub fn new_address() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("phub-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}
