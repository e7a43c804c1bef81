//! Ends over verbs for tests: either end under test, its peers in this process or in others.
//!
//! ```text
//!   near is a hub:     one port on one NIC <== a connection a link ==  one port     a worker, peer 0
//!                                          <========================== one port     a worker, peer 1
//!   near is a worker:  one port on all NICs == one connection ==> a port a link, dealt over the NICs
//! ```
//!
//! All ends are on one machine, on the devices of the variable [`DEVICES`]: a NIC reaches itself. Without the
//! variable there is nothing to test, which is said. A peer process is this test binary once more, told by
//! [`PEER`] to run [`peer_process`] alone.
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Once};
use std::time::Duration;

use fabric::conformance::{Bed, End, Hub, Local, Meeting, Peer, Remote, Shape, serve};
use fabric::verbs::{
    ConnectError, Endpoint, Group, Joined, Listener, NicOptions, Port, connect, group, worker_group,
};
use fabric::{RecvWindow, SendWindow, Spans};

/// Names devices, with commas between them.
const DEVICES: &str = "PHUB_TEST_DEVICE";
const PEER: &str = "PHUB_TEST_PEER";
/// Of each step of a handshake; the suite's watchdog is twice as patient.
pub const TIMEOUT: Duration = Duration::from_secs(30);

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

/// The devices to test on; none where nobody named any, which is said once.
pub fn devices() -> Vec<String> {
    static SAID: Once = Once::new();
    let named = std::env::var(DEVICES).unwrap_or_default();
    let devices: Vec<String> = named.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect();
    if devices.is_empty() {
        SAID.call_once(|| {
            use std::io::Write;
            let what = "skipped: no RDMA device to test on; name one (ibv_devices lists them), e.g.";
            let _ = writeln!(std::io::stderr(), "{what} {DEVICES}=mlx5_0, or make rxe for soft-RoCE");
        });
    }
    devices
}

/// Each device alone, and all together.
pub fn device_sets() -> Vec<Vec<String>> {
    let devices = devices();
    let mut sets: Vec<Vec<String>> = devices.iter().map(|device| vec![device.clone()]).collect();
    if devices.len() > 1 {
        sets.push(devices);
    }
    sets
}

/// Ends over verbs.
pub struct VerbsBed {
    /// The devices that ends are on.
    pub nics: Vec<String>,
    /// What the end under test is.
    pub near: Role,
    /// Where its peers run.
    pub far: Far,
}

impl Bed for VerbsBed {
    type Port = Port;

    fn name(&self) -> String {
        format!("verbs on {}, {:?} under test, peers {:?}", self.nics.join(" and "), self.near, self.far)
    }

    fn meet(&self, shape: Shape) -> Meeting<Port> {
        match self.near {
            Role::Hub => self.hub_meets_workers(shape),
            Role::Worker => self.worker_meets_hubs(shape),
        }
    }
}

impl VerbsBed {
    fn hub_meets_workers(&self, shape: Shape) -> Meeting<Port> {
        let listener = Listener::bind(new_address()).unwrap();
        let (group, mut ports) = group(&options(&self.nics)[..1]).unwrap();
        let (window, spans) = send_window(shape);
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
                let joined =
                    hello.welcome(&group, &window, shape.window_bytes(), &[shape.capacity], |_| ()).unwrap();
                links[usize::from(peer) * shape.links + usize::from(link)] = Some(only_link(joined));
            }
            let links = links.into_iter().map(Option::unwrap).collect();
            let near = End::new(shape, ports.remove(0), spans, links);
            Meeting { near, peers: peers.into_iter().map(|peer| peer.join().unwrap()).collect() }
        })
    }

    fn worker_meets_hubs(&self, shape: Shape) -> Meeting<Port> {
        let (group, port) = worker_group(&options(&self.nics)).unwrap();
        let (window, spans) = send_window(shape);
        let mut links = Vec::new();
        let mut peers = Vec::new();
        for peer in 0..shape.peers {
            let address = new_address();
            std::thread::scope(|scope| {
                let hub = scope.spawn(|| self.start(Role::Hub, address, peer, shape));
                let joined = join(address, [0; 16], &group, &window, shape, shape.links);
                let recv = Arc::new(joined.recv);
                links.extend(joined.endpoints.into_iter().map(|endpoint| (endpoint, Arc::clone(&recv))));
                peers.push(hub.join().unwrap());
            });
        }
        Meeting { near: End::new(shape, port, spans, links), peers }
    }

    fn start(&self, role: Role, address: SocketAddr, peer: usize, shape: Shape) -> Box<dyn Peer> {
        match self.far {
            Far::Here => run(&self.nics, role, address, peer, shape),
            Far::Process => {
                let mut remote = start_process(&self.nics, role, address, peer, shape);
                remote.ready();
                Box::new(remote)
            }
        }
    }
}

/// Starts a peer in another process; it connects at once.
pub fn start_process(nics: &[String], role: Role, address: SocketAddr, peer: usize, shape: Shape) -> Remote {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "bed::peer_process", "--nocapture"]);
    command.env(PEER, format!("{} {role:?} {address} {peer} {shape}", nics.join(",")));
    Remote::start(command).unwrap()
}

/// Not a test: the main function of a peer process. Without its variable it does nothing.
#[test]
fn peer_process() {
    let Ok(what) = std::env::var(PEER) else { return };
    let [nics, role, address, peer, shape] = what.splitn(5, ' ').collect::<Vec<_>>()[..] else {
        panic!("{PEER}={what:?}")
    };
    let nics: Vec<String> = nics.split(',').map(str::to_owned).collect();
    let role = if role == "Hub" { Role::Hub } else { Role::Worker };
    let mut peer = run(&nics, role, address.parse().unwrap(), peer.parse().unwrap(), shape.parse().unwrap());
    serve(&mut *peer, std::io::stdin(), std::io::stdout()).unwrap();
}

/// A peer in this process.
fn run(nics: &[String], role: Role, address: SocketAddr, peer: usize, shape: Shape) -> Box<dyn Peer> {
    let shape = Shape { peers: 1, ..shape };
    match role {
        Role::Worker => Box::new(worker(nics, address, peer, shape)),
        Role::Hub => Box::new(hub(nics, address, shape)),
    }
}

fn worker(nics: &[String], address: SocketAddr, peer: usize, shape: Shape) -> Local<Port> {
    let (group, port) = worker_group(&options(nics)).unwrap();
    let (window, spans) = send_window(shape);
    let links = (0..shape.links).map(|link| {
        let mut token = [0; 16];
        (token[0], token[1]) = (peer as u8, link as u8);
        only_link(join(address, token, &group, &window, shape, 1))
    });
    let links = links.collect();
    Local::new(End::new(shape, port, spans, links), || ())
}

fn hub(nics: &[String], address: SocketAddr, shape: Shape) -> Hub<Port> {
    let listener = Listener::bind(address).unwrap();
    let nics: Vec<NicOptions> = options(nics).into_iter().cycle().take(shape.links).collect();
    let (group, ports) = group(&nics).unwrap();
    let owners = shape.spans().chunks(shape.chunks as usize).map(<[_]>::to_vec).collect();
    let (window, spans) = SendWindow::new(shape.window_bytes()).unwrap().split(owners).unwrap();
    let hello = listener.accept().unwrap().unwrap().hello(TIMEOUT).unwrap();
    let capacities = vec![shape.capacity; shape.links];
    let joined = hello.welcome(&group, &window, shape.window_bytes(), &capacities, |_| ()).unwrap();
    let recv = Arc::new(joined.recv);
    let cores = ports.into_iter().zip(spans).zip(joined.endpoints).map(|((port, spans), endpoint)| {
        let links = vec![(endpoint, Arc::clone(&recv))];
        Local::new(End::new(Shape { links: 1, ..shape }, port, spans, links), || ())
    });
    Hub::new(cores.collect())
}

/// Connects, as soon as the hub listens.
fn join(
    address: SocketAddr,
    token: [u8; 16],
    group: &Arc<Group>,
    ours: &Arc<SendWindow>,
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

/// The devices as options, everything but the name chosen.
pub fn options(nics: &[String]) -> Vec<NicOptions> {
    nics.iter().map(NicOptions::new).collect()
}

/// A window whose chunks have one owner.
pub fn send_window(shape: Shape) -> (Arc<SendWindow>, Spans) {
    let (window, mut spans) =
        SendWindow::new(shape.window_bytes()).unwrap().split(vec![shape.spans()]).unwrap();
    (window, spans.remove(0))
}

fn only_link(mut joined: Joined) -> (Endpoint, Arc<RecvWindow>) {
    assert_eq!(joined.endpoints.len(), 1);
    (joined.endpoints.remove(0), Arc::new(joined.recv))
}

/// An address that no other test of this machine uses: all of 127.0.0.0/8 is this machine.
pub fn new_address() -> SocketAddr {
    static NEXT: AtomicU16 = AtomicU16::new(20000);
    let [_, a, b, c] = (std::process::id() % 0xff_fff0 + 1).to_be_bytes();
    SocketAddr::from((Ipv4Addr::new(127, a, b, c), NEXT.fetch_add(1, Ordering::Relaxed)))
}
