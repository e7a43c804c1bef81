//! A test bed for transports on which workers connect to a listening hub. Either end is under test, and its
//! peers are in this process or in others.
//!
//! ```text
//!   near is a hub:     one port <== a connection a link ==  one port     a worker, peer 0
//!                               <========================== one port     a worker, peer 1
//!   near is a worker:  one port == one connection, all links ==> a port a link     a hub, peer 0
//! ```
//!
//! A hub reports its address before anybody connects. A peer process runs the test binary again, and an
//! environment variable tells the process to be a peer: see
//! [`conformance_of_hub_and_workers!`](crate::conformance_of_hub_and_workers).

use std::process::Command;
use std::sync::Arc;
use std::thread::JoinHandle;

use super::peer::Hub;
use super::remote::{Remote, say, serve};
use super::{Bed, End, Local, Meeting, Peer, Shape};
use crate::{PlannedLink, Port, RecvWindow, SendWindow};

const VARIABLE: &str = "PHUB_TEST_PEER";

/// The result of a handshake: the window that the peer writes, and links that no port polls yet.
pub type Joined<P> = (Arc<RecvWindow>, Vec<<P as Port>::Endpoint>);

/// The operations of a transport that a hub and its workers need. Any failure fails the test.
pub trait Transport: Clone + Send + 'static {
    /// The port.
    type Port: Port;
    /// The state that the ports of a process share.
    type Group;
    /// A hub's socket, to which workers connect.
    type Listener: Send;

    /// Returns the name and the settings of the transport, on one line.
    fn name(&self) -> String;

    /// Returns the transport with this [`name`](Self::name). A peer process calls it.
    fn named(name: &str) -> Self;

    /// Returns `count` ports of a hub, or of an end that joins hubs: a worker has one port, a hub that joins
    /// hubs has several.
    fn ports(&self, role: Role, count: usize) -> (Self::Group, Vec<Self::Port>);

    /// Listens at a free address, and returns it.
    fn listen() -> (Self::Listener, String);

    /// Admits the next worker. Returns its token, and the links of the plan. Windows have `bytes` bytes in
    /// both directions.
    fn welcome(
        listener: &Self::Listener,
        group: &Self::Group,
        ours: &Arc<SendWindow>,
        bytes: usize,
        plan: &[PlannedLink],
    ) -> ([u8; 16], Joined<Self::Port>);

    /// Joins a hub, with the links of the plan.
    fn connect(
        address: &str,
        token: [u8; 16],
        group: &Self::Group,
        ours: &Arc<SendWindow>,
        bytes: usize,
        plan: &[PlannedLink],
    ) -> Joined<Self::Port>;
}

/// The role of an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// This end listens, and its peers are workers.
    Hub,
    /// This end connects, and its peers are hubs.
    Worker,
}

/// The kind of the peers: threads, or processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Far {
    /// The peers run on threads of this process.
    Here,
    /// Each peer runs in a separate process.
    Process,
}

/// Hubs and workers over a transport.
#[derive(Clone, Debug)]
pub struct HubAndWorkers<T> {
    /// The transport between the ends.
    pub transport: T,
    /// The role of the end under test.
    pub near: Role,
    /// The kind of its peers.
    pub far: Far,
}

impl<T: Transport> Bed for HubAndWorkers<T> {
    type Port = T::Port;

    fn name(&self) -> String {
        format!("{}, {:?} under test, peers {:?}", self.transport.name(), self.near, self.far)
    }

    fn meet(&self, shape: Shape) -> Meeting<T::Port> {
        match self.near {
            Role::Hub => self.hub_meets_workers(shape),
            Role::Worker => self.worker_meets_hubs(shape),
        }
    }
}

impl<T: Transport> HubAndWorkers<T> {
    fn hub_meets_workers(&self, shape: Shape) -> Meeting<T::Port> {
        let (listener, address) = T::listen();
        let (group, mut ports) = self.transport.ports(Role::Hub, 1);
        let (window, spans) = shape.send_window();
        let workers: Vec<_> = (0..shape.peers).map(|peer| self.start_worker(&address, peer, shape)).collect();
        let mut links: Vec<_> = (0..shape.peers * shape.links).map(|_| None).collect();
        for _ in 0..links.len() {
            let plan = PlannedLink::of_one_port(&[shape.capacity]);
            let (token, joined) = T::welcome(&listener, &group, &window, shape.window_bytes(), &plan);
            let [peer, link, ..] = token;
            links[usize::from(peer) * shape.links + usize::from(link)] = Some(only(links_of(joined)));
        }
        let links = links.into_iter().map(|link| link.expect("each came once")).collect();
        let near = End::new(shape, ports.remove(0), spans, links);
        Meeting { near, peers: workers.into_iter().map(Starting::ready).collect() }
    }

    fn worker_meets_hubs(&self, shape: Shape) -> Meeting<T::Port> {
        let (group, mut ports) = self.transport.ports(Role::Worker, 1);
        let (window, spans) = shape.send_window();
        let plan = PlannedLink::of_one_port(&vec![shape.capacity; shape.links]);
        let (mut links, mut peers) = (Vec::new(), Vec::new());
        for _ in 0..shape.peers {
            let (hub, address) = self.start_hub(shape);
            let joined = T::connect(&address, [0; 16], &group, &window, shape.window_bytes(), &plan);
            links.extend(links_of(joined));
            peers.push(hub.ready());
        }
        Meeting { near: End::new(shape, ports.remove(0), spans, links), peers }
    }

    /// Returns a worker that connects at once.
    pub fn start_worker(&self, address: &str, peer: usize, shape: Shape) -> Starting {
        match self.far {
            Far::Here => {
                let (transport, address) = (self.transport.clone(), address.to_owned());
                Starting::here(move || Box::new(worker(&transport, &address, peer, shape)))
            }
            Far::Process => Starting::Process(self.start_process(format!("worker {address} {peer} {shape}"))),
        }
    }

    /// Starts a hub, and returns it with its address. The hub listens when the function returns.
    fn start_hub(&self, shape: Shape) -> (Starting, String) {
        match self.far {
            Far::Here => {
                let transport = self.transport.clone();
                let (listener, address) = T::listen();
                (Starting::here(move || Box::new(hub(&transport, &listener, shape))), address)
            }
            Far::Process => {
                let mut process = self.start_process(format!("hub - 0 {shape}"));
                let address = process.read_reply();
                (Starting::Process(process), address)
            }
        }
    }

    fn start_process(&self, what: String) -> Remote {
        let mut command = Command::new(std::env::current_exe().expect("a test knows its binary"));
        command.args(["--exact", "peer_process", "--nocapture"]);
        command.env(VARIABLE, format!("{}\n{what}", self.transport.name()));
        Remote::start(command).expect("the test binary starts once more")
    }
}

/// Runs the main function of a peer process. In any other process, does nothing.
pub fn peer_process<T: Transport>() {
    let Ok(told) = std::env::var(VARIABLE) else { return };
    let (transport, what) = told.split_once('\n').expect("start_process wrote two lines");
    let transport = T::named(transport);
    let [role, address, peer, shape] = what.splitn(4, ' ').collect::<Vec<_>>()[..] else {
        panic!("{VARIABLE}={told:?}")
    };
    let shape = shape.parse().expect("start_process wrote a shape");
    let mut peer: Box<dyn Peer> = if role == "hub" {
        let (listener, address) = T::listen();
        say(&mut std::io::stdout(), &address).expect("the test listens");
        Box::new(hub(&transport, &listener, shape))
    } else {
        Box::new(worker(&transport, address, peer.parse().expect("start_process wrote a number"), shape))
    };
    serve(&mut *peer, std::io::stdin(), std::io::stdout()).expect("the test listens");
}

/// A peer that is not connected yet. Dropping it kills its process, if it has one.
#[derive(Debug)]
pub enum Starting {
    /// A peer on a thread.
    Here(JoinHandle<Box<dyn Peer>>),
    /// A peer in a process.
    Process(Remote),
}

impl Starting {
    fn here(run: impl FnOnce() -> Box<dyn Peer> + Send + 'static) -> Self {
        Starting::Here(std::thread::spawn(run))
    }

    fn ready(self) -> Box<dyn Peer> {
        match self {
            Starting::Here(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            Starting::Process(mut process) => {
                assert_eq!(process.read_reply(), "ready");
                Box::new(process)
            }
        }
    }
}

fn worker<T: Transport>(transport: &T, address: &str, peer: usize, shape: Shape) -> Local<T::Port> {
    let shape = Shape { peers: 1, ..shape };
    let (group, mut ports) = transport.ports(Role::Worker, 1);
    let (window, spans) = shape.send_window();
    let links = (0..shape.links).map(|link| {
        let mut token = [0; 16];
        (token[0], token[1]) = (peer as u8, link as u8);
        let plan = PlannedLink::of_one_port(&[shape.capacity]);
        let joined = T::connect(address, token, &group, &window, shape.window_bytes(), &plan);
        only(links_of(joined))
    });
    let links = links.collect();
    Local::new(End::new(shape, ports.remove(0), spans, links), || ())
}

fn hub<T: Transport>(transport: &T, listener: &T::Listener, shape: Shape) -> Hub<T::Port> {
    let (group, ports) = transport.ports(Role::Hub, shape.links);
    let owners = shape.spans().chunks(shape.chunks as usize).map(<[_]>::to_vec).collect();
    let (window, spans) = shape.split_window(owners);
    let plan = PlannedLink::of_one_port(&vec![shape.capacity; shape.links]);
    let (_, joined) = T::welcome(listener, &group, &window, shape.window_bytes(), &plan);
    let cores = ports.into_iter().zip(spans).zip(links_of(joined)).map(|((port, spans), link)| {
        Local::new(End::new(Shape { peers: 1, links: 1, ..shape }, port, spans, vec![link]), || ())
    });
    Hub::new(cores.collect())
}

fn links_of<E>((recv, endpoints): (Arc<RecvWindow>, Vec<E>)) -> Vec<(E, Arc<RecvWindow>)> {
    endpoints.into_iter().map(|endpoint| (endpoint, Arc::clone(&recv))).collect()
}

fn only<L>(mut links: Vec<L>) -> L {
    assert_eq!(links.len(), 1);
    links.remove(0)
}

/// Runs the suite over a [`Transport`](crate::conformance::Transport): hub or worker under test, with peers
/// on threads and in processes. The macro must be at the root of a test binary, because peer processes run
/// that binary with `peer_process`.
#[macro_export]
macro_rules! conformance_of_hub_and_workers {
    ($transport:ty: $each:expr) => {
        $crate::conformance_of_hub_and_workers!(@peer $transport);
        $crate::conformance_of_hub_and_workers!(@ends $each;
            hub_with_workers_here: Hub, Here;
            worker_with_hubs_here: Worker, Here;
            hub_with_worker_processes: Hub, Process;
            worker_with_hub_processes: Worker, Process;
        );

        #[test]
        fn links_end_at_the_ports_of_the_plan() {
            for transport in $each {
                $crate::conformance::links_end_at_the_ports_of_the_plan(&transport);
            }
        }
    };
    (@peer $transport:ty) => {
        /// The main function of a peer process. It is not a test.
        #[test]
        fn peer_process() {
            $crate::conformance::peer_process::<$transport>();
        }
    };
    (@ends $each:expr; $($name:ident: $near:ident, $far:ident;)*) => {$(
        mod $name {
            use super::*;
            use $crate::conformance::{Far, HubAndWorkers, Role};
            $crate::conformance_tests!(transport in $each => {
                HubAndWorkers { transport, near: Role::$near, far: Far::$far }
            });
        }
    )*};
}
