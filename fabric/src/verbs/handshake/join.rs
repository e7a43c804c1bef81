//! What both ends of a handshake do between the hello and the links.
//!
//! The handshake's thread. Every window is registered once for the connection on each NIC that it uses, in a
//! domain of its own: a worker's keys open nothing of another's (decision 12).

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use super::connect::{ConnectError, Joined};
use super::message::{LinkEnd, Links, Message};
use super::pairing::{Pairing, pair};
use super::wire::Wire;
use crate::connection::{Alarm, Connection};
use crate::memory::{RecvWindow, SendWindow, WindowError};
use crate::verbs::address::Address;
use crate::verbs::error::VerbsError;
use crate::verbs::group::Group;
use crate::verbs::handles::queue_pair::Peer;
use crate::verbs::nic::Nic;
use crate::verbs::port::Endpoint;
use crate::verbs::port::link::{Link, PeerWindow, Unconnected};
use crate::verbs::port::registered::Registered;
use crate::verbs::rails::PortState;

/// All that a connection has but the socket.
pub(in crate::verbs) struct Parts {
    recv: RecvWindow,
    links: Vec<(Arc<PortState>, Link)>,
    pairings: Vec<Pairing>,
    peer: String,
}

impl Parts {
    /// With the socket, which the watch looks after from now on.
    pub fn watched(self, group: &Arc<Group>, wire: Wire) -> Result<Joined, ConnectError> {
        let Parts { recv, links, pairings, peer } = self;
        let mut ports: Vec<Arc<dyn Alarm>> = Vec::new();
        let mut known: Vec<*const PortState> = Vec::new();
        for (port, _) in &links {
            if !known.contains(&Arc::as_ptr(port)) {
                known.push(Arc::as_ptr(port));
                ports.push(Arc::clone(port) as Arc<dyn Alarm>);
            }
        }
        let connection = Connection::watched(&group.watch, wire.into_socket(), ports)
            .map_err(|error| ConnectError::Nonsense(format!("watching the socket: {error}")))?;
        let endpoints = links
            .into_iter()
            .map(|(port, link)| Endpoint::new(Arc::clone(&connection), port, link, peer.clone()))
            .collect();
        Ok(Joined { recv, endpoints, pairings })
    }
}

/// The hub's half.
pub(in crate::verbs) fn welcome(
    wire: &mut Wire,
    group: &Arc<Group>,
    ours: &Arc<SendWindow>,
    recv_bytes: usize,
    capacities: &[u32],
    place: impl FnOnce(&RecvWindow),
) -> Result<Parts, ConnectError> {
    let addresses: Vec<Address> =
        group.ports.iter().map(|port| port.own.rails[0].nic.address.clone()).collect();
    let ports = Message::Ports { send_bytes: ours.bytes() as u64, ports: addresses.clone() };
    wire.send(&ports).map_err(talking)?;
    let recv = RecvWindow::local(recv_bytes)?;
    place(&recv);
    let mut windows = Windows::new(ours, &recv);
    let mut opened = Vec::new();
    for (port, &capacity) in group.ports.iter().zip(capacities) {
        opened.push(match capacity {
            0 => None,
            capacity => Some(windows.open(port, 0, capacity)?),
        });
    }
    let theirs = expect_links(wire, capacities)?;
    let mut ends = Vec::new();
    let mut links = Vec::new();
    let mut pairings = Vec::new();
    for (port, (link, end)) in opened.into_iter().zip(&theirs.ends).enumerate() {
        let (Some(link), Some(end)) = (link, end) else {
            ends.push(None);
            continue;
        };
        let worker = theirs.nics.get(usize::from(end.nic)).ok_or_else(|| {
            ConnectError::Nonsense(format!("link {port} is on NIC {} of {}", end.nic, theirs.nics.len()))
        })?;
        ends.push(Some(end_of(&link, port as u16)));
        links.push((Arc::clone(&group.ports[port]), connected(link, end, worker, &theirs, ours)?));
        let reason = "the worker's choice".into();
        let (hub, worker) = (addresses[port].clone(), worker.clone());
        pairings.push(Pairing { port, nic: usize::from(end.nic), hub, worker, reason });
    }
    wire.send(&Message::Links(windows.links(Vec::new(), ends))).map_err(talking)?;
    match wire.receive().map_err(talking)? {
        Message::Ready => Ok(Parts { recv, links, pairings, peer: format!("worker at {}", wire.peer()) }),
        Message::Refused(why) => Err(ConnectError::Refused(why)),
        other => Err(unexpected("ready", &other)),
    }
}

/// The worker's half.
pub(in crate::verbs) fn connect(
    wire: &mut Wire,
    address: SocketAddr,
    group: &Arc<Group>,
    ours: &Arc<SendWindow>,
    recv_bytes: usize,
    capacities: &[u32],
) -> Result<Parts, ConnectError> {
    let waiting = |error: io::Error| match error.kind() {
        io::ErrorKind::InvalidData => talking(error),
        _ => ConnectError::Socket { doing: "waiting for the welcome", address, error },
    };
    let hub = expect_ports(wire.receive().map_err(waiting)?, recv_bytes, capacities.len())?;
    let port = &group.ports[0];
    let nics: Vec<Address> = port.own.rails.iter().map(|rail| rail.nic.address.clone()).collect();
    let pairings = pair(&hub, |port| capacities[port] > 0, &nics).map_err(ConnectError::NoPath)?;
    let recv = RecvWindow::local(recv_bytes)?;
    let mut windows = Windows::new(ours, &recv);
    let mut opened: Vec<Option<Unconnected>> = capacities.iter().map(|_| None).collect();
    let mut ends = vec![None; capacities.len()];
    for Pairing { port: number, nic, .. } in &pairings {
        let link = windows.open(port, *nic, capacities[*number])?;
        ends[*number] = Some(end_of(&link, *nic as u16));
        opened[*number] = Some(link);
    }
    wire.send(&Message::Links(windows.links(nics, ends))).map_err(talking)?;
    let theirs = expect_links(wire, capacities)?;
    let mut links = Vec::new();
    for (number, (link, end)) in opened.into_iter().zip(&theirs.ends).enumerate() {
        if let (Some(link), Some(end)) = (link, end) {
            links.push((Arc::clone(port), connected(link, end, &hub[number], &theirs, ours)?));
        }
    }
    wire.send(&Message::Ready).map_err(talking)?;
    Ok(Parts { recv, links, pairings, peer: format!("hub at {address}") })
}

/// A connection's windows, registered with the NICs that its links use, each once.
struct Windows<'a> {
    ours: &'a Arc<SendWindow>,
    recv: &'a RecvWindow,
    registered: Vec<Arc<Registered>>,
}

impl<'a> Windows<'a> {
    fn new(ours: &'a Arc<SendWindow>, recv: &'a RecvWindow) -> Self {
        Windows { ours, recv, registered: Vec::new() }
    }

    /// One end of a link, on a NIC of a port.
    fn open(&mut self, port: &Arc<PortState>, rail: usize, capacity: u32) -> Result<Unconnected, VerbsError> {
        let nic: &Arc<Nic> = &port.own.rails[rail].nic;
        // Ports of one device share it, whichever of its own ports they are on.
        let here = |known: &&Arc<Registered>| Arc::ptr_eq(&known.nic, nic);
        let registered = match self.registered.iter().find(here) {
            Some(registered) => Arc::clone(registered),
            None => {
                let registered = Arc::new(Registered::new(nic, self.ours, self.recv)?);
                self.registered.push(Arc::clone(&registered));
                registered
            }
        };
        Unconnected::new(port, rail, &registered, capacity)
    }

    fn links(&self, nics: Vec<Address>, ends: Vec<Option<LinkEnd>>) -> Links {
        let address = self.registered.first().map_or(0, |registered| registered.receive.address);
        Links { address, bytes: self.recv.bytes() as u64, nics, ends }
    }
}

fn end_of(link: &Unconnected, nic: u16) -> LinkEnd {
    LinkEnd { nic, number: link.number(), first_packet: link.first_packet, key: link.receive_key() }
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
    let peer = Peer { address: address.clone(), number: end.number, first_packet: end.first_packet };
    let window = PeerWindow { address: theirs.address, bytes: theirs.bytes, key: end.key };
    Ok(link.connect(&peer, window)?)
}

fn expect_ports(message: Message, recv_bytes: usize, ports: usize) -> Result<Vec<Address>, ConnectError> {
    match message {
        Message::Ports { send_bytes, .. } if send_bytes < recv_bytes as u64 => {
            Err(WindowError::TooSmall { expected: recv_bytes, seen: send_bytes }.into())
        }
        Message::Ports { ports: addresses, .. } if addresses.len() != ports => Err(ConnectError::Nonsense(
            format!("the hub has {} ports, the plan says {ports}", addresses.len()),
        )),
        Message::Ports { ports, .. } => Ok(ports),
        Message::Refused(why) => Err(ConnectError::Refused(why)),
        other => Err(unexpected("the hub's ports", &other)),
    }
}

/// The other side's ends: one where there is a capacity, none elsewhere.
fn expect_links(wire: &mut Wire, capacities: &[u32]) -> Result<Links, ConnectError> {
    let links = match wire.receive().map_err(talking)? {
        Message::Links(links) => links,
        Message::Refused(why) => return Err(ConnectError::Refused(why)),
        other => return Err(unexpected("ends of links", &other)),
    };
    let planned = capacities.iter().map(|&capacity| capacity > 0);
    if !links.ends.iter().map(Option::is_some).eq(planned.clone()) {
        return Err(ConnectError::Nonsense(format!(
            "the other end has {} links for {} ports, the plan says {} for {}",
            links.ends.iter().flatten().count(),
            links.ends.len(),
            planned.filter(|&linked| linked).count(),
            capacities.len()
        )));
    }
    Ok(links)
}

pub(in crate::verbs) fn unexpected(expected: &str, seen: &Message) -> ConnectError {
    ConnectError::Nonsense(format!("expected {expected}, got {}", seen.name()))
}

fn talking(error: io::Error) -> ConnectError {
    ConnectError::Nonsense(error.to_string())
}
