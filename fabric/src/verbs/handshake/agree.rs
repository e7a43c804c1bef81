//! The choice of NICs for a connection's links. Both ends agree on pairs of NICs between which packets can
//! cross.
//!
//! The handshake's threads agree before anything is registered.
//!
//! ```text
//!   the hub offers a NIC for each port --> the joiner pairs its own NICs with them --> both ends try the untried pairs
//!     a pair fails: the joiner pairs again without it     a port has no pair left: the hub offers another NIC for it
//! ```

use std::sync::Arc;
use std::time::Instant;

use super::connect::ConnectError;
use super::join::{expect_ports, talking, unexpected};
use super::message::{LinkEnd, MAX_TRIALS, Message};
use super::pairing::{Candidates, DeadPair, Pairing, Unreached, pair};
use super::stream::MessageStream;
use super::trial::TrialEnd;
use crate::memory::SendWindow;
use crate::plan::PlannedLink;
use crate::verbs::address::Address;
use crate::verbs::error::VerbsError;
use crate::verbs::group::Group;
use crate::verbs::nic::Nic;
use crate::verbs::port::rails::{PortState, Rail};

/// The most messages of the joiner (trials, and requests for other NICs of the hub) in one handshake.
const MAX_TURNS: usize = 256;

/// A port of the hub, and the rail (a NIC with its completion queue) that one of its links uses.
pub(super) type OnRail<'a> = (&'a Arc<PortState>, Arc<Rail>);

/// Returns the hub's rails for the links of a plan, and the address of each port's NIC. The joiner's NICs
/// reach these NICs.
pub(super) fn agree<'a>(
    stream: &mut MessageStream,
    group: &'a Group,
    peer: &[Address],
    ours: &SendWindow,
    plan: &[PlannedLink],
) -> Result<(Vec<OnRail<'a>>, Vec<Address>), ConnectError> {
    let mut passed = Vec::new(); // ports with NICs that no NIC of the joiner reaches
    let (mut rails, mut addresses) = offer(stream, group, peer, ours, plan, &passed)?;
    let mut _tried; // keeps the queue pairs until the joiner reports the results
    for _ in 0..MAX_TURNS {
        match stream.receive().map_err(talking)? {
            Message::Trial { nics, ends } => {
                let on_port = |port: u16| plan.iter().position(|link| link.ports.hub.0 == port);
                let join = |(port, end): &(u16, LinkEnd)| {
                    let (Some(link), Some(nic)) = (on_port(*port), nics.get(usize::from(end.nic))) else {
                        let what = format!(
                            "the worker tries the hub's port {port} with its NIC {} of {}: this port or this NIC does not exist",
                            end.nic,
                            nics.len()
                        );
                        return Err(ConnectError::Nonsense(what));
                    };
                    let own = TrialEnd::new(&rails[link].1.nic)?;
                    let joined = own.connect(nic, end);
                    Ok((joined.map(|()| own.name(*port)), own))
                };
                let ends = ends.iter().map(join).collect::<Result<Vec<_>, ConnectError>>()?;
                let (said, own): (Vec<_>, Vec<_>) = ends.into_iter().unzip();
                stream.send(&Message::Tried(said)).map_err(talking)?;
                _tried = own;
            }
            Message::Unreached(ports) if ports.is_empty() => return Ok((rails, addresses)),
            Message::Unreached(ports) => {
                for port in ports.into_iter().map(usize::from) {
                    let address = addresses.get(port).cloned();
                    let nonsense = || ConnectError::Nonsense(format!("the hub has no port {port}"));
                    passed.push((port, address.ok_or_else(nonsense)?));
                }
                (rails, addresses) = offer(stream, group, peer, ours, plan, &passed)?;
            }
            Message::Refused(why) => return Err(ConnectError::Refused(why)),
            other => return Err(unexpected("pairs of NICs to try, or the ports without a pair", &other)),
        }
    }
    Err(ConnectError::Nonsense(format!("the worker has tried pairs of NICs {MAX_TURNS} times, the maximum")))
}

/// Chooses the NICs for the hub's ends of the links, and offers them to the joiner. `passed` lists for each
/// port the NICs that must not be used.
fn offer<'a>(
    stream: &mut MessageStream,
    group: &'a Group,
    peer: &[Address],
    ours: &SendWindow,
    plan: &[PlannedLink],
    passed: &[(usize, Address)],
) -> Result<(Vec<OnRail<'a>>, Vec<Address>), ConnectError> {
    let mut addresses = group.addresses();
    let rails = plan.iter().map(|link| {
        let port = link.ports.hub.index();
        let rail = match group.rail(port, peer, |nic| !passed.contains(&(port, nic.clone()))) {
            Err(_) if passed.iter().any(|(of, _)| *of == port) => {
                return Err(ConnectError::NoPath(format!(
                    "port {port} of the hub has no further NIC to try"
                )));
            }
            rail => rail?,
        };
        addresses[port].clone_from(&rail.nic.address);
        Ok((&group.ports[port], rail))
    });
    let rails = rails.collect::<Result<Vec<_>, ConnectError>>()?;
    let ports = Message::Ports { send_bytes: ours.bytes() as u64, ports: addresses.clone() };
    stream.send(&ports).map_err(talking)?;
    Ok((rails, addresses))
}

/// The NICs that the joiner has chosen.
pub(super) struct Chosen {
    /// The address of each port of the hub.
    pub hub: Vec<Address>,
    /// One entry for each link.
    pub pairings: Vec<Pairing>,
    /// The pairs that failed a trial.
    pub dead: Vec<DeadPair>,
}

/// Chooses pairs of NICs that reach each other. The hub's NICs in the result may differ from its first offer.
pub(super) fn choose(
    stream: &mut MessageStream,
    group: &Group,
    own: &OwnNics,
    mut hub: Vec<Address>,
    recv_bytes: usize,
    plan: &[PlannedLink],
) -> Result<Chosen, ConnectError> {
    let deadline = Instant::now() + stream.timeout();
    let (mut alive, mut dead): (Vec<Pairing>, Vec<DeadPair>) = Default::default();
    while Instant::now() < deadline {
        let candidates = plan.iter().map(|link| Candidates {
            hub_port: link.ports.hub.index(),
            nics: &own.by_port[link.ports.joiner.index()],
        });
        let mut loads = group.loads().clone();
        loads.resize(own.addresses.len(), 0);
        match pair(&hub, candidates, &own.addresses, &group.options.rails, &dead, &mut loads) {
            Ok(pairings) => {
                let untried = untried(&pairings, &alive);
                if untried.is_empty() {
                    stream.send(&Message::Unreached(Vec::new())).map_err(talking)?;
                    let mut loads = group.loads();
                    loads.resize(own.addresses.len(), 0);
                    pairings.iter().for_each(|pairing| loads[pairing.nic] += 1);
                    return Ok(Chosen { hub, pairings, dead });
                }
                let outcomes = try_pairs(stream, own, &untried)?;
                for (pairing, outcome) in untried.into_iter().zip(outcomes) {
                    let Pairing { nic, hub, worker, .. } = &pairing;
                    match outcome {
                        Ok(()) => alive.push(pairing),
                        Err(why) => {
                            let why = format!("nothing crosses from {worker} to the hub's {hub}: {why}");
                            dead.push(DeadPair { hub: hub.clone(), nic: *nic, why });
                        }
                    }
                }
            }
            Err(Unreached { ports, why }) => {
                stream.send(&Message::Unreached(ports)).map_err(talking)?;
                hub = match stream.receive().map_err(talking)? {
                    Message::Refused(theirs) => {
                        let tried = if dead.is_empty() { why } else { in_words(&dead) };
                        return Err(ConnectError::NoPath(format!("{tried}; the hub says: {theirs}")));
                    }
                    message => expect_ports(message, recv_bytes, plan)?,
                };
            }
        }
    }
    let limit = stream.timeout();
    Err(ConnectError::NoPath(format!("none was found within {limit:?}: {}", in_words(&dead))))
}

fn in_words(dead: &[DeadPair]) -> String {
    dead.iter().map(|pair| &*pair.why).collect::<Vec<_>>().join("; ")
}

/// Returns the pairs of NICs that have not passed a trial, each once.
fn untried(pairings: &[Pairing], alive: &[Pairing]) -> Vec<Pairing> {
    let mut untried: Vec<Pairing> = Vec::new();
    for pairing in pairings {
        let mut known = alive.iter().chain(&untried);
        if !known.any(|other| (&other.hub, other.nic) == (&pairing.hub, pairing.nic)) {
            untried.push(pairing.clone());
        }
    }
    untried.truncate(MAX_TRIALS);
    untried
}

/// Tries each pair by a write. Returns for each pair whether the write was acknowledged, or the reason why
/// not.
fn try_pairs(
    stream: &mut MessageStream,
    own: &OwnNics,
    pairs: &[Pairing],
) -> Result<Vec<Result<(), String>>, ConnectError> {
    let end = |pair: &Pairing| TrialEnd::new(&own.nics[pair.nic]);
    let ours = pairs.iter().map(end).collect::<Result<Vec<_>, VerbsError>>()?;
    let ends = pairs.iter().zip(&ours).map(|(pair, end)| (pair.port as u16, end.name(pair.nic as u16)));
    let trial = Message::Trial { nics: own.addresses.clone(), ends: ends.collect() };
    stream.send(&trial).map_err(talking)?;
    let theirs = match stream.receive().map_err(talking)? {
        Message::Tried(theirs) if theirs.len() == pairs.len() => theirs,
        Message::Refused(why) => return Err(ConnectError::Refused(why)),
        other => return Err(unexpected("an end of each pair of NICs", &other)),
    };
    // All writes are posted before the wait for the first acknowledgement.
    let written = |((end, pair), theirs): ((&TrialEnd, &Pairing), Result<LinkEnd, String>)| {
        theirs.and_then(|theirs| end.connect(&pair.hub, &theirs)).and_then(|()| end.write())
    };
    let written: Vec<Result<Instant, String>> = ours.iter().zip(pairs).zip(theirs).map(written).collect();
    let outcome = |(end, written): (&TrialEnd, Result<Instant, String>)| end.acknowledged(written?);
    Ok(ours.iter().zip(written).map(outcome).collect())
}

/// The NICs of a group, each once, and the indices of each port's NICs in the order of its rails.
pub(super) struct OwnNics {
    pub addresses: Vec<Address>,
    pub by_port: Vec<Vec<usize>>,
    pub rails: Vec<Vec<Arc<Rail>>>,
    nics: Vec<Arc<Nic>>,
}

impl OwnNics {
    pub fn of_group(group: &Group) -> Self {
        let rails: Vec<Vec<Arc<Rail>>> = (0..group.ports.len()).map(|port| group.rails(port)).collect();
        let mut nics: Vec<&Arc<Nic>> = Vec::new();
        let mut index_of = |nic| match nics.iter().position(|known| Arc::ptr_eq(known, nic)) {
            Some(index) => index,
            None => {
                nics.push(nic);
                nics.len() - 1
            }
        };
        let by_port = rails.iter().map(|rails| rails.iter().map(|rail| index_of(&rail.nic)).collect());
        let by_port = by_port.collect();
        let nics: Vec<Arc<Nic>> = nics.into_iter().cloned().collect();
        OwnNics { addresses: nics.iter().map(|nic| nic.address.clone()).collect(), by_port, rails, nics }
    }
}
