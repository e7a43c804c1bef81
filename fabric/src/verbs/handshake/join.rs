//! The steps of both ends of a handshake, from the hello to the links.
//!
//! The handshake's thread runs these steps. Each NIC of the connection registers the parts of the windows
//! that its links carry (decision 49). Each connection has its own protection domain on each NIC, so that a
//! worker's keys give no access to another worker's memory (decision 12).

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use super::agree::{Chosen, OnRail, OwnNics, agree, choose};
use super::connect::ConnectError;
use super::message::{LinkEnd, Links, MAX_RANGES, Message};
use super::pairing::Pairing;
use super::stream::MessageStream;
use crate::connection::{Alarm, Connection};
use crate::handshake::{Joined, NicPair, Receive};
use crate::memory::{RecvWindow, SendWindow, WindowError};
use crate::plan::{Carries, PlannedLink, ports_with_links};
use crate::ranges::Ranges;
use crate::verbs::address::Address;
use crate::verbs::error::VerbsError;
use crate::verbs::group::Group;
use crate::verbs::handles::queue_pair::Peer;
use crate::verbs::nic::Nic;
use crate::verbs::port::Endpoint;
use crate::verbs::port::link::{Link, Unconnected};
use crate::verbs::port::rails::{PortState, Rail};
use crate::verbs::port::registered::{Carried, Registered};

/// A connection without its socket.
pub(in crate::verbs) struct Parts {
    recv: Arc<RecvWindow>,
    links: Vec<(Arc<PortState>, Link)>,
    paths: Vec<NicPair>,
    dead: Vec<String>,
    peer: String,
}

impl Parts {
    /// Makes a connection of the links and the handshake's socket. Returns the links. The thread `phub-watch`
    /// observes the socket from now on.
    pub fn watched(
        self,
        group: &Arc<Group>,
        stream: MessageStream,
    ) -> Result<Joined<Endpoint>, ConnectError> {
        let Parts { recv, links, paths, dead, peer } = self;
        let mut ports: Vec<Arc<dyn Alarm>> = Vec::new();
        let mut known: Vec<*const PortState> = Vec::new();
        for (port, _) in &links {
            if !known.contains(&Arc::as_ptr(port)) {
                known.push(Arc::as_ptr(port));
                ports.push(Arc::clone(port) as Arc<dyn Alarm>);
            }
        }
        let connection = Connection::watched(&group.watch, stream.into_socket(), ports)
            .map_err(|error| ConnectError::Nonsense(format!("watching the socket: {error}")))?;
        let endpoints = links
            .into_iter()
            .map(|(port, link)| Endpoint::new(Arc::clone(&connection), port, link, peer.clone()))
            .collect();
        Ok(Joined { paths, dead, ..Joined::new(recv, endpoints) })
    }
}

/// Returns the joiner's NICs. The hub should choose its own NICs near them. Returns none if a map of rails
/// pairs the NICs.
pub(in crate::verbs) fn nics_to_be_near(group: &Group) -> Vec<Address> {
    if group.options.rails.is_empty() { OwnNics::of_group(group).addresses } else { Vec::new() }
}

/// Makes the hub's half of a connection. The hello has named the links of the plan, and the joiner's NICs.
pub(in crate::verbs) fn welcome(
    stream: &mut MessageStream,
    group: &Arc<Group>,
    peer: &[Address],
    ours: &Arc<SendWindow>,
    recv_bytes: usize,
    plan: &[PlannedLink],
    place: impl FnOnce(&RecvWindow),
) -> Result<Parts, ConnectError> {
    let (rails, addresses) = agree(stream, group, peer, ours, plan)?;
    let recv = Arc::new(RecvWindow::local(recv_bytes)?);
    place(&recv);
    let carried = carried(plan, |link| [&link.down, &link.up], ours, &recv);
    let opened = open(rails, carried, plan, ours, &recv)?;
    let apart = opened.iter().any(Unconnected::writes_apart);
    let theirs = expect_links(stream, plan)?;
    let (mut ends, mut links, mut paths) = (Vec::new(), Vec::new(), Vec::new());
    for ((index, link), (planned, end)) in opened.into_iter().enumerate().zip(plan.iter().zip(&theirs.ends)) {
        let worker = theirs.nics.get(usize::from(end.nic)).ok_or_else(|| {
            ConnectError::Nonsense(format!(
                "link {index} is on the peer's NIC {} of {}; NICs are numbered from 0",
                end.nic,
                theirs.nics.len()
            ))
        })?;
        let hub_port = planned.ports.hub;
        ends.push(end_of(&link, hub_port.0));
        let port = Arc::clone(&group.ports[hub_port.index()]);
        links.push((port, connected(link, end, worker, &theirs, ours)?));
        let reason = "the worker's choice".into();
        let (hub, worker) = (addresses[hub_port.index()].clone(), worker.clone());
        let pairing = Pairing { port: hub_port.index(), nic: usize::from(end.nic), hub, worker, reason };
        paths.push(pairing.nics());
    }
    stream.send(&Message::Links(links_of(&recv, Vec::new(), apart, ends))).map_err(talking)?;
    match stream.receive().map_err(talking)? {
        Message::Ready => {
            Ok(Parts { recv, links, paths, dead: Vec::new(), peer: format!("worker at {}", stream.peer()) })
        }
        Message::Refused(why) => Err(ConnectError::Refused(why)),
        other => Err(unexpected("ready", &other)),
    }
}

/// Makes the joiner's half of a connection.
pub(in crate::verbs) fn connect(
    stream: &mut MessageStream,
    address: SocketAddr,
    group: &Arc<Group>,
    ours: &Arc<SendWindow>,
    receive: Receive,
    plan: &[PlannedLink],
) -> Result<Parts, ConnectError> {
    let waiting = |error: io::Error| match error.kind() {
        io::ErrorKind::InvalidData => talking(error),
        _ => ConnectError::Socket { doing: "waiting for the welcome", address, error },
    };
    let own = OwnNics::of_group(group);
    let hub = expect_ports(stream.receive().map_err(waiting)?, receive.bytes(), plan)?;
    let Chosen { hub, pairings, dead } = choose(stream, group, &own, hub, receive.bytes(), plan)?;
    let recv = receive.local()?;
    let rail = |(link, &Pairing { nic, .. }): (&PlannedLink, &Pairing)| {
        let port = link.ports.joiner.index();
        let rail = own.by_port[port].iter().position(|&other| other == nic);
        (&group.ports[port], own.rails[port][rail.expect("a link is paired with a NIC of its port")].clone())
    };
    let rails = plan.iter().zip(&pairings).map(rail).collect();
    let carried = carried(plan, |link| [&link.up, &link.down], ours, &recv);
    let opened = open(rails, carried, plan, ours, &recv)?;
    let apart = opened.iter().any(Unconnected::writes_apart);
    let ends = opened.iter().zip(&pairings).map(|(link, pairing)| end_of(link, pairing.nic as u16)).collect();
    stream.send(&Message::Links(links_of(&recv, own.addresses, apart, ends))).map_err(talking)?;
    let theirs = expect_links(stream, plan)?;
    let mut links = Vec::new();
    for (link, (PlannedLink { ports, .. }, end)) in opened.into_iter().zip(plan.iter().zip(&theirs.ends)) {
        let port = Arc::clone(&group.ports[ports.joiner.index()]);
        links.push((port, connected(link, end, &hub[ports.hub.index()], &theirs, ours)?));
    }
    stream.send(&Message::Ready).map_err(talking)?;
    let paths = pairings.iter().map(Pairing::nics).collect();
    let dead = dead.into_iter().map(|pair| pair.why).collect();
    Ok(Parts { recv, links, paths, dead, peer: format!("hub at {address}") })
}

/// Returns the ranges that each link of a plan carries, for an end with these windows. If a plan has too many
/// ranges for a handshake, each link carries the whole windows, at both ends.
fn carried(
    plan: &[PlannedLink],
    ends: fn(&Carries) -> [&Ranges; 2],
    ours: &SendWindow,
    recv: &RecvWindow,
) -> Vec<Carried> {
    let ranges = |end: usize| plan.iter().map(|link| ends(&link.carries)[end].iter().len()).sum::<usize>();
    let fits = ranges(0).max(ranges(1)) <= MAX_RANGES;
    let all = Carries::default();
    let of_link = |link: &PlannedLink| {
        let [sent, received] = ends(if fits { &link.carries } else { &all });
        Carried { sent: sent.within(ours.bytes()), received: received.within(recv.bytes()) }
    };
    plan.iter().map(of_link).collect()
}

/// Makes this end of each link of a plan, on the NIC of its rail. Each NIC registers the windows once.
fn open(
    rails: Vec<OnRail>,
    carried: Vec<Carried>,
    plan: &[PlannedLink],
    ours: &Arc<SendWindow>,
    recv: &RecvWindow,
) -> Result<Vec<Unconnected>, VerbsError> {
    let nics: Vec<&Arc<Nic>> = rails.iter().map(|(_, rail)| &rail.nic).collect();
    let mut registered: Vec<Arc<Registered>> = Vec::new();
    for nic in &nics {
        if !registered.iter().any(|known| Arc::ptr_eq(&known.nic, nic)) {
            let here = nics.iter().zip(&carried).filter(|(other, _)| Arc::ptr_eq(other, nic));
            registered.push(Arc::new(Registered::new(nic, ours, recv, here.map(|(_, link)| link))?));
        }
    }
    let links = rails.iter().zip(carried).zip(plan);
    let open = |(((port, rail), carried), link): ((&(&_, Arc<Rail>), _), &PlannedLink)| {
        let here = registered.iter().find(|known| Arc::ptr_eq(&known.nic, &rail.nic));
        Unconnected::new(port, rail, here.expect("each NIC's"), carried, link.capacity)
    };
    links.map(open).collect()
}

fn links_of(recv: &RecvWindow, nics: Vec<Address>, apart: bool, ends: Vec<LinkEnd>) -> Links {
    Links { address: recv.mapping().as_ptr() as u64, bytes: recv.bytes() as u64, nics, apart, ends }
}

fn end_of(link: &Unconnected, nic: u16) -> LinkEnd {
    LinkEnd { nic, number: link.number(), first_packet: link.first_packet, keys: link.receive_keys() }
}

fn connected(
    link: Unconnected,
    end: &LinkEnd,
    address: &Address,
    theirs: &Links,
    ours: &SendWindow,
) -> Result<Link, ConnectError> {
    if theirs.bytes < ours.bytes() as u64 {
        return Err(WindowError::TooSmall { expected: ours.bytes(), seen: theirs.bytes }.into());
    }
    let (seen, expected) = (end.keys.len(), link.sent_ranges());
    if seen != expected {
        return Err(ConnectError::Nonsense(format!(
            "the other end has {seen} keys for a link that carries {expected} ranges of its window: do both ends place chunks in the same way?"
        )));
    }
    let peer = Peer { address: address.clone(), number: end.number, first_packet: end.first_packet };
    Ok(link.connect(&peer, ours.start_for_nics(), theirs.address, &end.keys, theirs.apart)?)
}

pub(super) fn expect_ports(
    message: Message,
    recv_bytes: usize,
    plan: &[PlannedLink],
) -> Result<Vec<Address>, ConnectError> {
    let planned = ports_with_links(plan, |ports| ports.hub);
    match message {
        Message::Ports { send_bytes, .. } if send_bytes < recv_bytes as u64 => {
            Err(WindowError::TooSmall { expected: recv_bytes, seen: send_bytes }.into())
        }
        Message::Ports { ports, .. } if planned.last().is_some_and(|last| last.index() >= ports.len()) => {
            Err(ConnectError::Nonsense(format!(
                "the hub offers {} ports, and this end expects {planned:?}; install the same version at both ends",
                ports.len()
            )))
        }
        Message::Ports { ports, .. } => Ok(ports),
        Message::Refused(why) => Err(ConnectError::Refused(why)),
        other => Err(unexpected("the hub's ports", &other)),
    }
}

/// Receives the other side's ends, one for each planned link.
fn expect_links(stream: &mut MessageStream, plan: &[PlannedLink]) -> Result<Links, ConnectError> {
    let links = match stream.receive().map_err(talking)? {
        Message::Links(links) => links,
        Message::Refused(why) => return Err(ConnectError::Refused(why)),
        other => return Err(unexpected("ends of links", &other)),
    };
    let (seen, expected) = (links.ends.len(), plan.len());
    if seen != expected {
        return Err(ConnectError::Nonsense(format!(
            "the other end offers {seen} links, and this end expects {expected}; install the same version at both ends"
        )));
    }
    Ok(links)
}

pub(in crate::verbs) fn unexpected(expected: &str, seen: &Message) -> ConnectError {
    ConnectError::Nonsense(format!("expected {expected}, got {}", seen.name()))
}

pub(super) fn talking(error: io::Error) -> ConnectError {
    ConnectError::Nonsense(error.to_string())
}
