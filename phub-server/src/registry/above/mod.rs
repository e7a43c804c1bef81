//! A job at a hub below other hubs. At the hubs above, this hub is one member of the job, for all its
//! workers.
//!
//! ```text
//!   workers --join--> this hub --join, as machine 1 of 4--> hubs above
//!           <- placement: where the hubs above have each chunk -
//!   the job fails here   --leave, reason-->   it fails there, or continues without this machine
//!   the job fails there  --heartbeat-->       it fails here, for the same reason
//! ```
//!
//! This module must not depend on single workers.

mod follow;
mod joined;
mod links;
mod meeting;
mod relink;
mod relinks;

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use authority::{ABOVE_SUFFIX, Credential};
use fabric::any;
use fabric::{PortId, RecvWindow, SendWindow, WindowError};
use membership::{Join, LOOKUP_LIMIT, LetIn, MemberError, Named, PeerList, Ports, Way, look_up};
use pbox_core::control::{JoinRequest, MAX_JOB_NAME_BYTES, Machine, Mesh, PROTOCOL, RefusalCode, Versions};
use pbox_core::{Above, Below, JobTerms, LevelTerms, Members, ShardSpec, WindowsBelow, Wire};
use tokio::sync::watch;

use super::{Because, Refusal};

use links::{LinkSpec, Linked};

pub(crate) use joined::JoinedAbove;
pub(super) use links::LinksAbove;
pub(crate) use meeting::Meetings;
pub(super) use relinks::RelinksAbove;

/// The most levels of hubs that a job may have.
pub(super) const MAX_DEPTH: usize = 16;

/// Returns the name of a job at the hubs above. It differs from the name here, because in a mesh one hub has the job
/// and also the job above.
pub(super) fn name_above(name: &str) -> String {
    format!("{name}{ABOVE_SUFFIX}")
}

/// The connections of this hub to other hubs: addresses, credentials, limits and ports.
#[derive(Debug)]
pub(crate) struct Up {
    /// The hubs above each job of this hub, if the settings name them.
    pub above: Option<HubsAbove>,
    /// The control port of this hub.
    pub control: SocketAddr,
    /// The secret that proves requests to the hubs above.
    pub credential: Option<Credential>,
    /// The secret that proves requests to hubs whose addresses come from joins. `None` if everybody may join. Requests
    /// to these hubs then carry no proof.
    pub for_outside: Option<Credential>,
    /// The hosts and networks that this hub may contact if a join or an answer names them.
    pub peers: PeerList,
    /// The address of the interface by which hubs of other machines reach this hub, if the settings name an interface.
    pub interface: Option<IpAddr>,
    /// The time limit of each request to the hubs above. A join has more time for the memory of the job.
    pub limit: Duration,
    /// The time that the hubs above may take to start.
    pub start_limit: Duration,
    /// The transports of this hub's ports.
    pub group: any::Group,
    /// Whether the ports have RDMA, or the reason why they have no RDMA.
    pub rdma: Result<(), String>,
}

/// The hubs above a job.
#[derive(Clone, Debug)]
pub(crate) struct HubsAbove {
    pub hubs: Vec<String>,
    /// The number of this hub's machine at the hubs above, and the number of machines.
    pub machine: Machine,
    /// The number of this hub among the hubs above, in a mesh, where this hub owns a share itself.
    pub own: Option<usize>,
}

/// A job to which the hubs above have admitted this hub, before the links are made.
pub(super) struct LetInAbove {
    pub above: HubsAbove,
    hubs: Vec<LetIn>,
    terms: JobTerms,
    wire: Wire,
    placed: Above,
}

/// The parts of a job that are made with its links to the hubs above.
pub(super) struct MadeAbove {
    pub joined: JoinedAbove,
    /// The window that the hubs above write and the workers read.
    pub weights: Arc<SendWindow>,
    pub shards: Vec<ShardSpec>,
    pub level: LevelTerms,
    pub links: LinksAbove,
}

struct Bell(watch::Sender<()>);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.send_replace(());
    }
}

impl Up {
    /// Returns the origin of the addresses that a join names. They are the addresses of other hubs of the mesh or of
    /// the job.
    pub(super) fn outside(&self) -> Named {
        Named::Outside(self.peers.clone())
    }

    /// Whether this hub sends the sums of a job to hubs above.
    pub(super) fn relays(&self, request: &JoinRequest) -> bool {
        request.mesh.is_some() || self.above.is_some() && request.terms.level.members != Members::Mesh
    }

    /// Returns the hubs above a job. In a mesh, first waits until all hubs have met.
    fn of_job(
        &self,
        name: &str,
        request: &JoinRequest,
        deadline: Instant,
        given_up: &dyn Fn() -> bool,
    ) -> Result<HubsAbove, Refusal> {
        let conflict = |why: String| RefusalCode::NoMesh.because(format!("job {name:?}: {why}"));
        let mesh = match (&request.mesh, &self.above) {
            (None, above) => return Ok(above.clone().expect("a job that is relayed has hubs above")),
            (Some(_), Some(above)) => {
                let hubs = above.hubs.join(", ");
                return Err(conflict(format!(
                    "the worker asks for a mesh, and this hub is below the hubs at {hubs}; leave the mesh out, or \
                     start the hub without --above"
                )));
            }
            (Some(mesh), None) => mesh,
        };
        let (named, credential) = (self.outside(), self.for_outside.as_ref());
        membership::wait_for(&[&mesh.meet], &named, deadline, given_up).map_err(not_joined)?;
        let address = self.address_for(mesh).map_err(conflict)?;
        let until = (deadline, given_up);
        let hubs = membership::meet(mesh, name, &address, credential, &named, until).map_err(not_joined)?;
        Ok(HubsAbove { hubs, machine: mesh.machine, own: Some(mesh.machine.number as usize) })
    }

    /// Returns the address of this hub's control port for the hubs of a mesh.
    fn address_for(&self, mesh: &Mesh) -> Result<String, String> {
        let meet = || {
            let connect = || {
                let mut found = look_up(&mesh.meet, &self.outside(), LOOKUP_LIMIT)?;
                // The other hubs will use the local address of this connection. If this hub listens only at IPv4
                // addresses (0.0.0.0), IPv6 addresses are tried last.
                found.sort_by_key(|each| self.control.is_ipv4() && each.is_ipv6());
                let mut tried = found.iter().map(|each| TcpStream::connect_timeout(each, self.limit));
                let first = tried.next().expect("a lookup finds an address, or fails");
                let to = first.or_else(|error| tried.find_map(Result::ok).ok_or(error))?;
                Ok::<_, io::Error>((to.local_addr()?, to.peer_addr()?))
            };
            connect().map_err(|error| format!("connecting to the first machine at {}: {error}", mesh.meet))
        };
        let ip = match (self.interface, self.control.ip()) {
            (Some(ip), _) => ip,
            // All machines know the first machine by this address. On the first machine itself, the name may
            // resolve differently.
            (None, _) if mesh.machine.number == 0 => return Ok(mesh.meet.clone()),
            (None, ip) if ip.is_unspecified() => meet()?.0.ip(),
            (None, ip) if ip.is_loopback() && !meet()?.1.ip().is_loopback() => {
                return Err(format!(
                    "this hub listens on {}, which other machines do not reach; start the hub with --listen \
                     0.0.0.0:{}",
                    self.control,
                    self.control.port()
                ));
            }
            (None, ip) => ip,
        };
        Ok(SocketAddr::new(ip, self.control.port()).to_string())
    }

    /// Joins the job at the hubs above. Waits for hubs that are not up yet, until `given_up` returns true.
    pub(super) fn join(
        &self,
        name: &str,
        request: &JoinRequest,
        id: &str,
        given_up: &dyn Fn() -> bool,
    ) -> Result<LetInAbove, Refusal> {
        let refused = |why: String| Refusal::bad(format!("job {name:?}: {why}"));
        let deadline = Instant::now() + self.start_limit;
        request.terms.check_below().map_err(|error| refused(error.to_string()))?;
        let (letters, most) = (name.len(), MAX_JOB_NAME_BYTES - ABOVE_SUFFIX.len());
        if letters > most {
            return Err(refused(format!(
                "the name has {letters} letters, and this hub appends {ABOVE_SUFFIX:?} to it at the hubs above: use a name of at most {most} letters"
            )));
        }
        let above = self.of_job(name, request, deadline, given_up)?;
        let (Machine { number, of }, hubs) = (above.machine, above.hubs.len() as u32);
        let members = if above.own.is_some() { Members::Mesh } else { Members::Hubs };
        let terms = request.terms.above(members, hubs, of).map_err(|error| refused(error.to_string()))?;
        terms.check().map_err(|error| refused(format!("at the hubs above: {error}")))?;
        let wire = Wire::of_terms(&terms).map_err(|error| refused(error.to_string()))?;
        let through = request.through.iter().cloned().chain([id.to_owned()]).collect();
        let trial = request.trial;
        // The worker gets the placement of the hubs above, so the placement has speeds only if the worker knows them.
        let protocol = if request.versions().know_speeds() { PROTOCOL } else { Versions::SPEEDS - 1 };
        let request = JoinRequest {
            protocol,
            relinks: true,
            trial,
            through,
            ..JoinRequest::new(number, terms.clone())
        };
        let name = name_above(name);
        let addresses: Vec<&str> = above.hubs.iter().map(String::as_str).collect();
        let (named, credential) = match above.own {
            Some(_) => (self.outside(), self.for_outside.as_ref()),
            None => (Named::Here, self.credential.as_ref()),
        };
        let (job, limit, named) = (&name, self.limit, &named);
        let join = Join { addresses: &addresses, job, limit, request: &request, credential, named };
        let hubs = join.when_up(deadline, given_up).map_err(not_joined)?;
        let wire = hubs[0].wire(wire).map_err(not_joined)?;
        let placed = Above {
            schedule: terms.level.schedule,
            split_above: terms.splits_above(),
            cores: hubs.iter().map(LetIn::cores).collect(),
            above: hubs[0].above().cloned().map(Box::new),
        };
        Ok(LetInAbove { above, hubs, terms, wire, placed })
    }

    /// Makes the windows of a job between this hub and its workers, and the links to the hubs above.
    /// `numbers` are the job's cores here. In a mesh, `share` is the window of this hub's share. The workers
    /// read it, unless the links to the hubs above carry encoded frames. `huge_pages` runs before a NIC registers
    /// the windows into which cores write.
    pub(super) fn link(
        &self,
        let_in: LetInAbove,
        (terms, wire): (&Arc<JobTerms>, &Wire),
        below: &Below,
        numbers: &[usize],
        share: Option<Arc<SendWindow>>,
        huge_pages: impl FnOnce(&[ShardSpec]),
    ) -> Result<MadeAbove, Refusal> {
        let exhausted = |error: WindowError| {
            RefusalCode::NoMemory.because(format!("no memory for a job below other hubs: {error}"))
        };
        let LetInAbove { above, hubs, terms: terms_above, wire: wire_above, placed } = let_in;
        let (level, machine) = (terms_above.level, above.machine.number);
        let (WindowsBelow { sums, shown }, shards) =
            ShardSpec::of_cores_below((terms, wire), (level, &wire_above), below, machine)
                .map_err(exhausted)?;
        huge_pages(&shards);
        let is_coded = shown.is_some();
        let weights = match shown.or(share) {
            Some(weights) => weights,
            None => Arc::new(SendWindow::new(wire.weights_window_bytes()).map_err(exhausted)?),
        };
        let spec = LinkSpec {
            level,
            wire: wire_above,
            sums,
            shown: Arc::new(RecvWindow::shown(&weights)),
            is_coded,
            own: above.own,
            ports: Ports {
                group: self.group.clone(),
                dealt_to: numbers.iter().map(|&number| PortId(number as u16)).collect(),
                rdma: self.rdma.clone(),
                transport: None,
                on_one_node: false,
            },
            by_core: below.cores_above.clone(),
        };
        let deadline = membership::deadline(&hubs, self.limit);
        let Linked { links, cores, paths } = spec.make(&hubs, deadline).map_err(not_joined)?;
        for (way, hub) in paths.iter().zip(&above.hubs) {
            tracing::info!(hub, transport = %way.transport, reason = way.reason, "sums go up");
        }
        let level = spec.level_of(&cores);
        let (rung, news) = watch::channel(());
        let bell = Waker::from(Arc::new(Bell(rung)));
        let hubs = hubs.into_iter().zip(cores).map(|(hub, cores)| hub.keep(cores, bell.clone())).collect();
        let may_break = paths.iter().any(Way::may_break);
        let joined = JoinedAbove { hubs, machine: above.machine, placed, spec, may_break, news };
        Ok(MadeAbove { joined, weights, shards, level, links })
    }
}

impl LetInAbove {
    /// Whether this hub owns a share of the job above.
    pub fn is_mesh(&self) -> bool {
        self.above.own.is_some()
    }

    /// Returns the wire format of the links to this hub's own members. It is `wire`, with additional places in the
    /// windows for the parts of the gradient norm that the top hubs send.
    pub fn wire(&self, wire: Wire) -> Result<Wire, Refusal> {
        wire.below(&self.placed)
            .map_err(|saw| RefusalCode::NoneAbove.because(format!("the hubs above: {saw}")))
    }

    /// Returns the placement of the chunks on `cores` cores of this hub.
    pub fn place(&self, cores: usize) -> Result<Below, Refusal> {
        let (schedule, layout) = (self.terms.level.schedule, self.wire.layout());
        let above = membership::placements(&self.hubs, schedule, layout).map_err(not_joined)?;
        Ok(Below::new(&above, cores))
    }
}

/// Returns this hub's refusal, if a hub above has refused it or cannot be reached.
pub(super) fn not_joined(error: MemberError) -> Refusal {
    match error {
        MemberError::Refused { .. } => RefusalCode::RefusedAbove.because(error.to_string()),
        error => RefusalCode::NoneAbove.because(format!("this hub cannot join the hubs above: {error}")),
    }
}
