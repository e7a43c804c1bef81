//! The path from a member to the data path of each hub: the choice of the transport, and the links over it.
//!
//! Used once, at the join. Depends on the hubs' offers and this member's settings, but not on rounds.

use std::net::SocketAddr;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use authority::unhex;
use fabric::any::{self, Address, Transport};
use fabric::loan::rdma::LoanPort;
use fabric::tcp;
use fabric::verbs::{self, Device, Fitness, GroupOptions, Nccl, NicList, NicOptions, PathFlags, RailMap};
use fabric::{FrameRule, Joined, PlannedLink, PortId, Receive, RecvWindow, SendWindow};
use pbox_core::control::TransportAddress;
use pbox_core::{Expected, Placement, Schedule, Wire};

use crate::control::Control;
use crate::error::MemberError;
use crate::join::{LetIn, placements};
use crate::named::{LOOKUP_LIMIT, look_up, on_host};
use crate::nearest;
use crate::way::Way;

/// The ports of a member. A port is the end of one thread's links.
pub struct Ports {
    /// The ports, as handshakes of links use them.
    pub group: any::Group,
    /// The ports that get links, in turn. The first core of each hub is linked to the first port, its second core to
    /// the second port, and so on.
    pub dealt_to: Vec<PortId>,
    /// Whether the ports can use RDMA. If they cannot, the error is the reason.
    pub rdma: Result<(), String>,
    /// The transport to use. `None` for the best transport that reaches a hub.
    pub transport: Option<Transport>,
    /// Whether the send window may lie on one NUMA node and have huge pages, as a worker's window may. With shared memory,
    /// the hub decides where the window lies.
    pub on_one_node: bool,
}

/// A member's end of the data path before the first round.
pub struct DataPath {
    /// The endpoint of the link to each core of the placement.
    pub endpoints: Vec<any::Endpoint>,
    /// The port at which the link to each core ends, by core.
    pub ports: Vec<PortId>,
    /// The window into which each core's hub writes, by core. All cores of a hub have the same window.
    pub received: Vec<Arc<RecvWindow>>,
    /// The placement of the job's chunks, on the cores of all hubs.
    pub placement: Placement,
    /// The path to each hub.
    pub ways: Vec<Way>,
    /// The numbers of each hub's cores in the placement.
    pub cores: Vec<Range<usize>>,
}

/// The settings of a member for its RDMA NICs.
#[derive(Clone, Debug, Default)]
pub struct NicSettings {
    /// The NICs to use. Default: the value of `NCCL_IB_HCA`, or every NIC that has a link.
    pub list: Option<NicList>,
    /// The map of the member's NICs to a hub's NICs. Default: the value of `PHUB_RAILS`, or pairs by common subnet,
    /// then by name, then by position.
    pub rails: Option<RailMap>,
    /// The settings of packets and paths. Default: the values of `PHUB_RDMA_TIMEOUT` and similar variables.
    pub paths: PathFlags,
}

impl Ports {
    /// Creates the only port of the member with this rank. If some hub must be reached by RDMA, the port can use RDMA on
    /// these NICs. If the links use TCP, they have the settings `tcp`.
    ///
    /// # Errors
    /// Returns an error if there is not enough memory, or not enough descriptors or threads.
    pub fn one(
        hubs: &[LetIn],
        transport: Option<Transport>,
        nics: &NicSettings,
        rank: u32,
        tcp: tcp::Options,
    ) -> Result<(Self, any::Port), MemberError> {
        let made = make_rdma(hubs, transport, nics, rank);
        let rdma = made.as_ref().map(|_| ()).map_err(String::clone);
        let (group, mut ports) = any::group(1, made.ok())?;
        let group = group.with_tcp(tcp);
        Ok((Ports { group, dealt_to: vec![PortId(0)], rdma, transport, on_one_node: true }, ports.remove(0)))
    }
}

/// Connects `window` to each hub over the best transport that reaches the hub. The links end at `ports`. `receive`
/// returns the window for a hub's posts, by the hub's index. `wire` defines which posts are valid.
///
/// # Errors
/// Returns an error if a hub's placement differs, if no transport reaches a hub, or if a hub that was reached refuses.
pub fn open(
    hubs: &[LetIn],
    schedule: Schedule,
    wire: &Wire,
    window: &Arc<SendWindow>,
    receive: impl Fn(usize) -> Receive,
    ports: &Ports,
    deadline: Instant,
) -> Result<DataPath, MemberError> {
    let placed = hubs.iter().zip(placements(hubs, schedule, wire.layout())?);
    let routes = placed.map(|(hub, placement)| Route::new(hub, wire, placement, ports));
    let routes: Vec<Route> = routes.collect::<Result<_, _>>()?;
    let mut path = DataPath {
        endpoints: Vec::new(),
        ports: Vec::new(),
        received: Vec::new(),
        placement: Placement::over_hubs(routes.iter().map(|route| &*route.placement)),
        ways: Vec::new(),
        cores: Vec::new(),
    };
    let connected = connect(&routes, window, (0..hubs.len()).map(receive), deadline)?;
    for ((hub, route), (mut joined, way)) in hubs.iter().zip(&routes).zip(connected) {
        for (core, endpoint) in joined.endpoints.iter_mut().enumerate() {
            let rule = Expected::of_hub(wire, schedule).on_core(&route.placement, core);
            endpoint.obey(|| -> Box<dyn FrameRule> { Box::new(rule) });
            if hub.reply.relinks {
                endpoint.end_with_port();
            }
        }
        let begin = path.endpoints.len();
        path.cores.push(begin..begin + route.plan.len());
        path.ports.extend(route.plan.iter().map(|link| link.ports.joiner));
        path.received.extend(route.plan.iter().map(|_| Arc::clone(&joined.recv)));
        path.endpoints.extend(joined.endpoints);
        path.ways.push(way);
    }
    Ok(path)
}

/// Connects to all hubs at the same time. A hub first touches its memory for the member, and then answers. For a large
/// share, the hub needs seconds.
fn connect<'a>(
    routes: &'a [Route<'a>],
    window: &Arc<SendWindow>,
    receive: impl Iterator<Item = Receive>,
    deadline: Instant,
) -> Result<Vec<(Joined<any::Endpoint>, Way)>, MemberError> {
    std::thread::scope(|scope| {
        let thread = |(route, receive): (&'a Route<'a>, Receive)| {
            let named = std::thread::Builder::new().name("phub-connect".into());
            named.spawn_scoped(scope, move || route.connect_by_the_best_way(window, &receive, deadline))
        };
        let threads: Vec<_> = routes.iter().zip(receive).map(thread).collect::<Result<_, _>>()?;
        threads.into_iter().map(|thread| thread.join().expect("connecting does not panic")).collect()
    })
}

/// Opens this machine's RDMA NICs if some hub must be reached by RDMA. Otherwise returns the reason why they are not
/// opened.
fn make_rdma(
    hubs: &[LetIn],
    transport: Option<Transport>,
    nics: &NicSettings,
    rank: u32,
) -> Result<any::Rdma, String> {
    let wanted = |hub: &LetIn| match transport {
        None => !shares_memory(hub),
        Some(wanted) => wanted == Transport::Verbs,
    };
    let offered =
        |hub: &LetIn| hub.reply.transports.iter().any(|offer| offer.transport() == Transport::Verbs);
    if !hubs.iter().any(|hub| wanted(hub) && offered(hub)) {
        return Err("no hub that this member must reach by RDMA offers RDMA".into());
    }
    let local_rank = nearest::local_rank(rank, |name| std::env::var(name).ok());
    let (nics, options) = nics_of(nics, local_rank, transport.is_some())?;
    let (group, port) = verbs::worker_group(&nics, options).map_err(|error| error.to_string())?;
    Ok((group, vec![port]))
}

/// Opens this machine's RDMA NICs for loans, by the environment's settings. Loans with different numbers begin with different
/// NICs.
///
/// # Errors
/// Returns the reason why this machine cannot use RDMA.
pub(crate) fn loan_port(number: u32) -> Result<LoanPort, String> {
    let local_rank = nearest::local_rank(0, |name| std::env::var(name).ok());
    let (nics, options) = nics_of(&NicSettings::default(), local_rank.wrapping_add(number), false)?;
    LoanPort::new(&nics, options).map_err(|error| error.to_string())
}

/// Returns the RDMA NICs that a member may use, and how. `number` is the member's number on its machine. `wants_rdma`: only RDMA
/// may be used.
fn nics_of(
    nics: &NicSettings,
    number: u32,
    wants_rdma: bool,
) -> Result<(Vec<NicOptions>, GroupOptions), String> {
    let nccl = Nccl::of_environment(&nics.paths, nics.list.is_some());
    if nccl.disabled && !wants_rdma && nics.list.is_none() {
        return Err(
            "NCCL_IB_DISABLE turns RDMA off; set the session's nics or transport, or unset NCCL_IB_DISABLE"
                .into(),
        );
    }
    nccl.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    let rails = nics.rails.clone().map_or_else(RailMap::of_environment, Ok).map_err(|e| e.to_string())?;
    if !rails.is_empty() {
        tracing::info!(%rails, "a map of rails pairs this machine's NICs with the hub's");
    }
    let options = GroupOptions { rails, first_vector: number, paths: nics.paths.clone() };
    Ok((usable_nics(nics.list.as_ref().unwrap_or(&nccl.list), number)?, options))
}

/// Whether a member may reach one of these hubs by shared memory. `transport` is the only transport that the member may
/// use, if there is such a limit.
pub fn may_share_memory(hubs: &[LetIn], transport: Option<Transport>) -> bool {
    transport.is_none_or(|wanted| wanted == Transport::Shm) && hubs.iter().any(shares_memory)
}

fn shares_memory(hub: &LetIn) -> bool {
    hub.reply.transports.iter().any(|offer| match offer {
        TransportAddress::Shm { machine, address } => is_near(machine, address).is_ok(),
        _ => false,
    })
}

/// Checks that the hub can share this machine's memory. Otherwise returns the reason. The hub's socket has an abstract
/// name, which is visible only within one network namespace.
fn is_near(machine: &str, address: &str) -> Result<(), String> {
    let here = any::machine();
    if here.is_empty() || machine != here {
        return Err("the hub is on another machine".into());
    }
    match std::fs::read_to_string("/proc/net/unix") {
        Ok(sockets) if !sockets.lines().any(|line| line.ends_with(&format!(" @{address}"))) => {
            Err("the hub is in another network namespace".into())
        }
        _ => Ok(()),
    }
}

/// Returns the RDMA NICs of this machine that may be used: the NICs in `list`, or all NICs that work. The NICs nearest
/// to this process come first.
fn usable_nics(list: &NicList, local_rank: u32) -> Result<Vec<NicOptions>, String> {
    let devices = verbs::devices().map_err(|error| error.to_string())?;
    let fitness = Fitness::of(&devices, list);
    fitness.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    let is_up = |device: &Device, nic: &NicOptions| device.port(nic.port).is_some_and(|port| port.active);
    let usable = |device: &Device, nic: &NicOptions| {
        list.names_devices() || (fitness.allows(nic) && is_up(device, nic))
    };
    let nics_of = |device| list.nics(device).into_iter().map(move |nic| (device, nic));
    let nics: Vec<(&Device, NicOptions)> =
        devices.iter().flat_map(nics_of).filter(|(device, nic)| usable(device, nic)).collect();
    let here = nearest::own_node(Path::new("/"));
    let is_near = |(device, _): &(&Device, NicOptions)| {
        here.is_some() && nearest::node_of(Path::new("/"), device) == here
    };
    let nics: Vec<NicOptions> =
        nearest::order(nics, is_near, local_rank).into_iter().map(|(_, nic)| nic).collect();
    if nics.is_empty() {
        let names: Vec<&str> = devices.iter().map(|device| &*device.name).collect();
        let ports = |device: &Device| {
            let down = device.ports.iter().filter(|port| !port.active);
            down.map(|port| format!("{} port {} is {}", device.name, port.number, port.state))
                .collect::<Vec<_>>()
        };
        let why: Vec<String> = fitness.warnings.into_iter().chain(devices.iter().flat_map(ports)).collect();
        return Err(format!("none of this machine's RDMA devices {names:?} can be used: {}", why.join("; ")));
    }
    Ok(nics)
}

/// The route to a hub, computed from the hub's reply.
struct Route<'a> {
    hub: &'a LetIn,
    ports: &'a Ports,
    token: [u8; 16],
    /// The placement of the hub's share on its cores.
    placement: Arc<Placement>,
    plan: Vec<PlannedLink>,
}

impl<'a> Route<'a> {
    fn new(hub: &'a LetIn, wire: &Wire, placement: Placement, ports: &'a Ports) -> Result<Self, MemberError> {
        let LetIn { control, reply, .. } = hub;
        let nonsense = |saw: String| MemberError::Nonsense { hub: control.hub.clone(), what: "join", saw };
        let token = unhex(&hub.token).ok_or_else(|| nonsense(format!("the token {:?}", hub.token)))?;
        let cores = reply.cores.iter().map(|&core| core as usize);
        let plan = placement.links(wire, reply.ports as usize, cores, &ports.dealt_to);
        Ok(Route { hub, ports, token, placement: Arc::new(placement), plan })
    }

    /// Tries the hub's transports, the best first. Tries the next transport if a transport does not reach the hub, or
    /// if shared memory fails in any way. Ends with an error if the hub refuses over another transport.
    fn connect_by_the_best_way(
        &self,
        window: &Arc<SendWindow>,
        receive: &Receive,
        deadline: Instant,
    ) -> Result<(Joined<any::Endpoint>, Way), MemberError> {
        let (wanted, offered) = (self.ports.transport, &self.hub.reply.transports);
        let (mut tried, mut before) = (Vec::new(), None);
        for (place, offer) in offered.iter().enumerate() {
            let transport = offer.transport();
            let why_not = match self.way_by(offer, receive) {
                Ok((address, why)) => {
                    let is_shared = transport == Transport::Shm;
                    if self.ports.on_one_node && !is_shared && window.dma_buf().is_none() {
                        let carried = self.plan.iter().flat_map(|link| link.carries.up.iter());
                        window.collapse_by_node(&[carried.collect()], |_| ());
                    }
                    let left = deadline.saturating_duration_since(Instant::now());
                    // Another server may have the hub's address, and never answer. So shared memory gets half of the time,
                    // and the next transports get the rest.
                    let is_last = place + 1 == offered.len() || wanted.is_some();
                    let limit = if is_shared && !is_last { left / 2 } else { left };
                    let (group, receive) = (&self.ports.group, receive.clone());
                    match any::connect(&address, self.token, group, window, receive, &self.plan, limit) {
                        Ok(mut joined) => {
                            let paths = std::mem::take(&mut joined.paths);
                            joined.dead.iter().for_each(|why| {
                                tracing::warn!("RDMA uses another pair of NICs, because a pair failed: {why}")
                            });
                            tried.push(why.to_owned());
                            if let Some(congestion) = joined.congestion.take() {
                                tracing::info!(hub = self.hub.control.hub, "TCP: {congestion}");
                                tried.push(congestion);
                            }
                            return Ok((joined, Way { transport, reason: tried.join("; "), paths }));
                        }
                        Err(error) if error.is_unreachable() => {
                            if is_shared && !is_last {
                                tracing::warn!(
                                    hub = self.hub.control.hub,
                                    %error,
                                    "cannot use shared memory with the hub; trying the next transport"
                                );
                            }
                            if is_shared || before.is_none() {
                                before = Some(format!("{transport}: {error}"));
                            }
                            error.to_string()
                        }
                        Err(error) => {
                            let hub = self.hub.control.hub.clone();
                            // The hub may have refused this connection and the earlier one for the same reason. The
                            // error then gives the reason once.
                            let said = error.to_string();
                            let why = said.split_once(": ").map_or(&*said, |(_, why)| why);
                            let before = before.filter(|before: &String| !before.ends_with(why));
                            let error = MemberError::DataPath { hub, error: Box::new(error), before };
                            return Err(self.hub.does_not_come(error)); // the hub may have seen no link
                        }
                    }
                }
                Err(why_not) => why_not,
            };
            tried.push(format!("{transport}: {why_not}"));
        }
        let is_offered = |wanted: &Transport| offered.iter().any(|offer| offer.transport() == *wanted);
        if let Some(wanted) = wanted.filter(|wanted| !is_offered(wanted)) {
            tried.push(format!(
                "{wanted}: the hub does not offer this transport; see the hub's --transports and log"
            ));
        }
        let error = MemberError::NoTransport { hub: self.hub.control.hub.clone(), tried };
        Err(self.hub.does_not_come(error))
    }

    /// Returns the address at which this machine reaches an offered transport, and the reason for choosing it. Otherwise
    /// returns the reason why it cannot be reached.
    fn way_by(&self, offer: &TransportAddress, receive: &Receive) -> Result<(Address, &'static str), String> {
        if self.ports.transport.is_some_and(|wanted| wanted != offer.transport()) {
            return Err("not the transport that was asked for".into());
        }
        let is_local = match receive {
            Receive::New(_) => None,
            Receive::Into(window) => Some(window.is_local()),
        };
        match offer {
            TransportAddress::Shm { .. } if is_local == Some(true) => {
                Err("the window is this process's own memory, which shared memory cannot use".into())
            }
            TransportAddress::Verbs { .. } | TransportAddress::Tcp { .. } if is_local == Some(false) => {
                Err("the window is the hub's own memory, which only shared memory can use".into())
            }
            TransportAddress::Shm { machine, address } => {
                is_near(machine, address)?;
                Ok((Address::Shm(address.clone()), "the hub is on this machine"))
            }
            TransportAddress::Verbs { address } => {
                self.ports.rdma.clone()?;
                Ok((Address::Verbs(self.reached_at(*address)?), "both ends have RDMA"))
            }
            TransportAddress::Tcp { addresses } => {
                let (seen, ports) = (addresses.len(), self.hub.reply.ports);
                if seen != ports as usize {
                    return Err(format!(
                        "the hub gives {seen} TCP addresses for its {ports} ports; expected one address for each port"
                    ));
                }
                let addresses = addresses.iter().map(|&address| self.reached_at(address));
                Ok((Address::Tcp(addresses.collect::<Result<_, _>>()?), "TCP works over any network"))
            }
        }
    }

    /// Returns the address at which this machine reaches the data path. If the hub listens at all its addresses,
    /// returns the host of its control port.
    fn reached_at(&self, address: SocketAddr) -> Result<SocketAddr, String> {
        if !address.ip().is_unspecified() {
            let named = &self.hub.control.named;
            named.check(&address.ip().to_string(), address.ip()).map_err(|error| error.to_string())?;
            return Ok(address);
        }
        let Control { hub, named, .. } = &self.hub.control;
        let found = look_up(hub, named, LOOKUP_LIMIT).map_err(|error| format!("resolving {hub}: {error}"))?;
        Ok(on_host(address, &found))
    }
}
