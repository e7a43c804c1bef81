//! How a worker comes to the hub's data path: which transport, and then windows and links by it.
//!
//! Once, at the join. Knows the hub's offer and this worker's settings; nothing of rounds.

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Instant;

use fabric::SendWindow;
use fabric::any::{self, Address, Joined, Transport};
use pbox_core::control::{JoinReply, TransportAddress};
use pbox_core::{Layout, Placement};

use crate::config::{SessionConfig, WeightsMode};
use crate::error::SessionError;
use crate::windows::Windows;

/// By which transport a worker reaches the hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Way {
    /// The transport.
    pub transport: Transport,
    /// Why by this one, in words.
    pub reason: String,
}

/// A worker's end of the data path, before the first round.
pub(crate) struct DataPath {
    pub port: any::Port,
    pub endpoints: Vec<any::Endpoint>,
    pub placement: Placement,
    pub windows: Windows,
    pub way: Way,
}

/// Makes the windows, and connects by the best transport that leads to the hub.
pub(crate) fn open(
    config: &SessionConfig,
    reply: &JoinReply,
    layout: &Arc<Layout>,
    deadline: Instant,
) -> Result<DataPath, SessionError> {
    let nonsense = |saw: String| SessionError::Nonsense { hub: config.hub.clone(), what: "join", saw };
    let token = token_bytes(&reply.token).ok_or_else(|| nonsense(format!("the token {:?}", reply.token)))?;
    let cores = &reply.cores;
    if cores.is_empty() || !cores.is_sorted() || cores.iter().any(|&core| core >= reply.ports) {
        return Err(nonsense(format!("cores {cores:?} of {}", reply.ports)));
    }
    let placement = Placement::new(layout, cores.len());
    let mut capacities = vec![0; reply.ports as usize];
    for (&core, capacity) in cores.iter().zip(placement.capacities()) {
        capacities[core as usize] = capacity.max(1);
    }
    let (window, gradients) = Windows::gradients(layout)?;
    let (group, mut ports) = any::group(1)?;
    let joining =
        Joining { config, token, group: &group, window: &window, capacities: &capacities, deadline };
    let (joined, way) = joining.by_the_best_of(&reply.transports)?;
    let private = config.weights == WeightsMode::Private;
    let windows = Windows::new(Arc::clone(layout), gradients, joined.recv, private)?;
    Ok(DataPath { port: ports.remove(0), endpoints: joined.endpoints, placement, windows, way })
}

/// What every attempt to connect needs.
struct Joining<'a> {
    config: &'a SessionConfig,
    token: [u8; 16],
    group: &'a any::Group,
    window: &'a Arc<SendWindow>,
    capacities: &'a [u32],
    deadline: Instant,
}

impl Joining<'_> {
    /// Tries the hub's transports, best first. One that does not lead there is passed over; a hub that is
    /// reached and says no has the last word.
    fn by_the_best_of(&self, offered: &[TransportAddress]) -> Result<(Joined, Way), SessionError> {
        let SessionConfig { hub, transport: wanted, .. } = self.config;
        let mut tried = Vec::new();
        for address in offered {
            let (transport, way) = self.way(address);
            let usable = match wanted {
                Some(wanted) if *wanted != transport => Err("not the one that was asked for".to_owned()),
                _ => way,
            };
            let (address, why) = match usable {
                Ok(usable) => usable,
                Err(why_not) => {
                    tried.push(format!("{transport}: {why_not}"));
                    continue;
                }
            };
            match self.connect(&address) {
                Ok(joined) => {
                    let reason = tried.into_iter().chain([why]).collect::<Vec<_>>().join("; ");
                    return Ok((joined, Way { transport, reason }));
                }
                Err(error) if error.is_unreachable() => tried.push(format!("{transport}: {error}")),
                Err(error) => return Err(error.into()),
            }
        }
        if let Some(wanted) = wanted.filter(|wanted| !offered.iter().any(|each| self.way(each).0 == *wanted))
        {
            tried.push(format!("{wanted}: the hub does not offer it; see its --transports"));
        }
        Err(SessionError::NoTransport { hub: hub.clone(), tried })
    }

    /// The transport of an offer; where to connect and why, or why not.
    fn way(&self, offer: &TransportAddress) -> (Transport, Result<(Address, String), String>) {
        match offer {
            TransportAddress::Shm { machine, address } => {
                let here = any::machine();
                let usable = if here.is_empty() || *machine != here {
                    Err("the hub is on another machine".to_owned())
                } else {
                    Ok((Address::Shm(address.clone()), "the hub is on this machine".to_owned()))
                };
                (Transport::Shm, usable)
            }
            TransportAddress::Tcp { addresses } => {
                (Transport::Tcp, self.tcp(addresses).map(|at| (at, "TCP leads everywhere".to_owned())))
            }
        }
    }

    /// A hub that listens at all its addresses is reached at the one of its control port.
    fn tcp(&self, addresses: &[SocketAddr]) -> Result<Address, String> {
        if addresses.len() != self.capacities.len() {
            return Err(format!(
                "the hub gives {} addresses for {} ports",
                addresses.len(),
                self.capacities.len()
            ));
        }
        let hub = &self.config.hub;
        let mut resolved = None;
        let addresses = addresses.iter().map(|&address| {
            if !address.ip().is_unspecified() {
                return Ok(address);
            }
            let ip = match resolved {
                Some(ip) => ip,
                None => hub
                    .to_socket_addrs()
                    .map_err(|error| format!("resolving {hub}: {error}"))?
                    .next()
                    .ok_or_else(|| format!("{hub} has no address"))?
                    .ip(),
            };
            resolved = Some(ip);
            Ok(SocketAddr::new(ip, address.port()))
        });
        addresses.collect::<Result<_, String>>().map(Address::Tcp)
    }

    fn connect(&self, address: &Address) -> Result<Joined, any::ConnectError> {
        let Joining { token, group, window, capacities, deadline, .. } = *self;
        let limit = deadline.saturating_duration_since(Instant::now());
        any::connect(address, token, group, window, window.bytes(), capacities, limit)
    }
}

fn token_bytes(hex: &str) -> Option<[u8; 16]> {
    (hex.len() == 32).then_some(())?;
    Some(u128::from_str_radix(hex, 16).ok()?.to_be_bytes())
}
