//! How a worker comes to the hub's data path: which transport, and then windows and links by it.
//!
//! Once, at the join. Knows the hub's offer and this worker's settings; nothing of rounds.

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Instant;

use fabric::SendWindow;
use fabric::any::{self, Address, Joined, Transport};
use fabric::verbs::{self, Device, NicList, NicOptions};
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
    /// Which NICs the links go over, and why, in words; nothing where there is no choice.
    pub paths: Vec<String>,
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
    let joining = Joining { config, token, window: &window, capacities: &capacities, deadline };
    let (port, joined, way) = joining.by_the_best_of(&reply.transports)?;
    let private = config.weights == WeightsMode::Private;
    let windows = Windows::new(Arc::clone(layout), gradients, joined.recv, private)?;
    Ok(DataPath { port, endpoints: joined.endpoints, placement, windows, way })
}

/// What every attempt to connect needs.
struct Joining<'a> {
    config: &'a SessionConfig,
    token: [u8; 16],
    window: &'a Arc<SendWindow>,
    capacities: &'a [u32],
    deadline: Instant,
}

/// Where an attempt goes.
struct Attempt {
    address: Address,
    rdma: Option<any::Rdma>,
    why: &'static str,
}

impl Joining<'_> {
    /// Tries the hub's transports, best first. One that does not lead there is passed over; a hub that is
    /// reached and says no has the last word.
    fn by_the_best_of(&self, offered: &[TransportAddress]) -> Result<(any::Port, Joined, Way), SessionError> {
        let SessionConfig { hub, transport: wanted, .. } = self.config;
        let mut tried = Vec::new();
        for offer in offered {
            let transport = offer.transport();
            if wanted.is_some_and(|wanted| wanted != transport) {
                tried.push(format!("{transport}: not the one that was asked for"));
                continue;
            }
            let Attempt { address, rdma, why } = match self.attempt(offer) {
                Ok(attempt) => attempt,
                Err(why_not) => {
                    tried.push(format!("{transport}: {why_not}"));
                    continue;
                }
            };
            let (group, mut ports) = any::group(1, rdma)?;
            match self.connect(&address, &group) {
                Ok(mut joined) => {
                    let paths = std::mem::take(&mut joined.paths);
                    let reason = tried.into_iter().chain([why.to_owned()]).collect::<Vec<_>>().join("; ");
                    return Ok((ports.remove(0), joined, Way { transport, reason, paths }));
                }
                Err(error) if error.is_unreachable() => tried.push(format!("{transport}: {error}")),
                Err(error) => return Err(error.into()),
            }
        }
        let is_offered = |wanted: &Transport| offered.iter().any(|offer| offer.transport() == *wanted);
        if let Some(wanted) = wanted.filter(|wanted| !is_offered(wanted)) {
            tried.push(format!("{wanted}: the hub does not offer it; see its --transports, and its log"));
        }
        Err(SessionError::NoTransport { hub: hub.clone(), tried })
    }

    /// Where an offer leads from here, or why nowhere.
    fn attempt(&self, offer: &TransportAddress) -> Result<Attempt, String> {
        match offer {
            TransportAddress::Shm { machine, address } => {
                let here = any::machine();
                if here.is_empty() || *machine != here {
                    return Err("the hub is on another machine".into());
                }
                let address = Address::Shm(address.clone());
                Ok(Attempt { address, rdma: None, why: "the hub is on this machine" })
            }
            TransportAddress::Verbs { address } => {
                let (group, port) = verbs::worker_group(&self.nics()?).map_err(|error| error.to_string())?;
                let address = Address::Verbs(self.reached_at(*address)?);
                Ok(Attempt { address, rdma: Some((group, vec![port])), why: "both ends have RDMA" })
            }
            TransportAddress::Tcp { addresses } => {
                let (seen, ports) = (addresses.len(), self.capacities.len());
                if seen != ports {
                    return Err(format!("the hub gives {seen} addresses for {ports} ports"));
                }
                let addresses = addresses.iter().map(|&address| self.reached_at(address));
                let address = Address::Tcp(addresses.collect::<Result<_, _>>()?);
                Ok(Attempt { address, rdma: None, why: "TCP leads everywhere" })
            }
        }
    }

    /// The RDMA NICs of this machine that may be used: those that are named, or all that can be.
    fn nics(&self) -> Result<Vec<NicOptions>, String> {
        let list = self.config.nics.clone().map_or_else(NicList::of_nccl, Ok).map_err(|e| e.to_string())?;
        let devices = verbs::devices().map_err(|error| error.to_string())?;
        let usable = |device: &Device| {
            list.names_devices() || device.ports.iter().any(|port| port.active && port.gid.is_ok())
        };
        let nics: Vec<NicOptions> = devices
            .iter()
            .filter(|device| usable(device))
            .filter_map(|device| list.choose(&device.name))
            .collect();
        if nics.is_empty() {
            let names: Vec<&str> = devices.iter().map(|device| &*device.name).collect();
            return Err(format!("none of this machine's RDMA devices can be used, of {names:?}"));
        }
        Ok(nics)
    }

    /// A hub that listens at all its addresses is reached at the one of its control port.
    fn reached_at(&self, address: SocketAddr) -> Result<SocketAddr, String> {
        if !address.ip().is_unspecified() {
            return Ok(address);
        }
        let hub = &self.config.hub;
        let mut found = hub.to_socket_addrs().map_err(|error| format!("resolving {hub}: {error}"))?;
        let found = found.next().ok_or_else(|| format!("{hub} has no address"))?;
        Ok(SocketAddr::new(found.ip(), address.port()))
    }

    fn connect(&self, address: &Address, group: &any::Group) -> Result<Joined, any::ConnectError> {
        let Joining { token, window, capacities, deadline, .. } = *self;
        let limit = deadline.saturating_duration_since(Instant::now());
        any::connect(address, token, group, window, window.bytes(), capacities, limit)
    }
}

fn token_bytes(hex: &str) -> Option<[u8; 16]> {
    (hex.len() == 32).then_some(())?;
    Some(u128::from_str_radix(hex, 16).ok()?.to_be_bytes())
}
