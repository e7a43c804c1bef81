//! Joining: a member's request to each hub of a job, and a hub that has accepted it.
//!
//! Runs once, on the thread that joins.

use std::ops::Range;
use std::task::Waker;
use std::time::{Duration, Instant};

use authority::Credential;
use pbox_core::control::{
    HubReply, JoinReply, JoinRequest, LeaveRequest, MeetReply, MeetRequest, Mesh, PROTOCOL, Peers, Versions,
    check_address,
};
use pbox_core::{Above, Below, CoreNodes, Layout, MAX_HUBS, Placement, Round, Schedule, Share, Wire};

use crate::control::Control;
use crate::error::MemberError;
use crate::failure::{Cause, Failure};
use crate::heartbeat::Heartbeat;
use crate::hub::Hub;
use crate::named::Named;

/// Time limit for the notice to a hub that an admitted member does not come.
const FAREWELL_LIMIT: Duration = Duration::from_secs(2);

/// Time limit for the question whether a hub is up, and the pause before the next question.
const HEALTH_LIMIT: Duration = Duration::from_secs(2);
const HEALTH_PAUSE: Duration = Duration::from_millis(50);

/// Returns the addresses in a list of hubs: `host:port`, separated by commas. Each may begin with `http://`, as a hub
/// prints its address when it starts. This prefix does not mean that requests are unencrypted.
///
/// # Errors
/// Returns an error if an address is missing, invalid or listed twice, or if there are too many.
pub fn hub_addresses(list: &str) -> Result<Vec<&str>, MemberError> {
    let mut hubs: Vec<&str> = list.split(',').map(str::trim).collect();
    for hub in &mut hubs {
        let bare = hub.strip_prefix("http://").or(hub.strip_prefix("https://"));
        *hub = bare.map_or(*hub, |bare| bare.trim_end_matches('/'));
    }
    let wrong = |why: String| Err(MemberError::Hubs { seen: list.to_owned(), why });
    if hubs.contains(&"") {
        return wrong("one of them is empty".into());
    }
    if let Some(error) = hubs.iter().find_map(|hub| check_address(hub).err()) {
        return wrong(error.to_string());
    }
    if hubs.len() > MAX_HUBS as usize {
        return wrong(format!("{} of them", hubs.len()));
    }
    if let Some(twice) = hubs.iter().enumerate().find(|(at, hub)| hubs[..*at].contains(hub)) {
        return wrong(format!("{} is there twice", twice.1));
    }
    Ok(hubs)
}

/// Waits until workers can join at each of these hubs. Logs that it waits.
///
/// # Errors
/// Returns an error if they cannot until the deadline, if the caller gives up, or if TLS with a hub fails.
pub fn wait_for(
    addresses: &[&str],
    named: &Named,
    deadline: Instant,
    given_up: &dyn Fn() -> bool,
) -> Result<(), MemberError> {
    let (begun, mut tries) = (Instant::now(), 0);
    for address in addresses {
        let control = Control::new(address, "", HEALTH_LIMIT, None, named)?;
        while let Err(Failure { cause, error }) = control.check_health() {
            tries += 1;
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || given_up() || cause == Cause::Refused {
                return Err(error.after(tries, begun.elapsed()));
            }
            if tries == 1 {
                tracing::warn!("{error}; waiting up to {} s for the hub", left.as_secs());
            }
            // No event signals that a program on another machine begins to listen.
            std::thread::sleep(HEALTH_PAUSE);
        }
    }
    Ok(())
}

/// Returns a hub's description of itself.
///
/// # Errors
/// Returns an error if the hub cannot be reached, or refuses to describe itself to this process.
pub fn describe(
    address: &str,
    limit: Duration,
    credential: Option<&Credential>,
) -> Result<HubReply, MemberError> {
    Control::new(address, "", limit, credential, &Named::Here)?.describe()
}

/// Sends the address of this machine's hub to the hub of a mesh's first machine, and waits for the hubs of the other
/// machines. Returns the addresses of the hubs of all machines. `named` says who named the first hub's address, and so all
/// addresses.
///
/// # Errors
/// Returns an error if a machine is missing at the deadline, or there are two of a number.
pub fn meet(
    mesh: &Mesh,
    job: &str,
    address: String,
    deadline: Instant,
    credential: Option<&Credential>,
    named: &Named,
) -> Result<Vec<String>, MemberError> {
    let left = deadline.saturating_duration_since(Instant::now());
    let wait_ms = left.as_millis() as u64;
    let protocol_lowest = Versions::OURS.lowest_of_several();
    let machine = mesh.machine;
    let request = MeetRequest { protocol: PROTOCOL, protocol_lowest, machine, address, wait_ms };
    // Within this time the hub can still report which machine is missing.
    let control = Control::new(&mesh.meet, job, left + FAREWELL_LIMIT, credential, named)?;
    let MeetReply { hubs } = control
        .post("meet", "wait for the hubs of the other machines", &request)
        .map_err(|failure| failure.error)?;
    let list = hubs.join(",");
    match hub_addresses(&list) {
        Ok(each) if each.len() == mesh.machine.of as usize => Ok(hubs),
        _ => Err(MemberError::Nonsense {
            hub: mesh.meet.clone(),
            what: "meet",
            saw: format!("{} hubs, not all different, of {} machines", hubs.len(), mesh.machine.of),
        }),
    }
}

/// Joins a job at each of its hubs. `request` is for the first hub; each hub gets its own number. `limit` is the time limit
/// of each request. `credential` proves the requests, and `named` says who named the addresses.
///
/// # Errors
/// Returns an error if a hub cannot be reached or refuses. The hubs that have let this member in are then notified
/// that it does not come.
pub fn join_all(
    addresses: &[&str],
    job: &str,
    limit: Duration,
    request: &JoinRequest,
    credential: Option<&Credential>,
    named: &Named,
) -> Result<Vec<LetIn>, MemberError> {
    let names = addresses.iter().map(|&address| address.to_owned()).collect();
    let mut peers = (addresses.len() > 1).then_some(Peers { hubs: names, pass: None });
    let mut let_in: Vec<LetIn> = Vec::with_capacity(addresses.len());
    for (&address, hub) in addresses.iter().zip(0..) {
        // The other hubs require the pass that the first hub gives.
        if let (Some(peers), Some(first)) = (&mut peers, let_in.first()) {
            peers.pass = first.reply.pass.clone();
        }
        let request = JoinRequest { hub, peers: peers.clone(), ..request.clone() };
        let_in.push(LetIn::join(Control::new(address, job, limit, credential, named)?, request)?);
    }
    Ok(let_in)
}

/// A hub that has admitted this member, before the links are made. If it is dropped, the hub is notified that the member
/// does not come, and notifies the members that wait.
#[derive(Debug)]
pub struct LetIn {
    pub(crate) control: Control,
    pub(crate) share: Share,
    pub(crate) reply: JoinReply,
    /// The secret that proves the connection of the data path.
    pub(crate) token: String,
    heartbeat: Heartbeat,
    /// The client that reports that the member does not come. A single hub needs no report: it sees the links end.
    farewell: Option<Control>,
}

impl LetIn {
    fn join(control: Control, request: JoinRequest) -> Result<Self, MemberError> {
        let reply: JoinReply = control.join(&request)?;
        if !request.versions().contains(reply.protocol) {
            let (hub, ours) = (control.hub.clone(), request.versions());
            return Err(MemberError::Protocol { hub, used: reply.protocol, ours });
        }
        let control = control.of_member(&reply.token);
        let share = Share::of_hub(&request.terms, request.hub);
        let farewell = (!share.is_whole()).then(|| control.within(FAREWELL_LIMIT));
        // The heartbeat starts now. The hub's time limit may be shorter than the time to make windows and links.
        let heartbeat = Heartbeat::start(&control, &reply.token, reply.limit())?;
        let token = reply.token.clone();
        Ok(LetIn { control, share, reply, token, heartbeat, farewell })
    }

    /// Offers the state before a round, with which a new job then begins. `steps` are the steps of each key, if they differ
    /// from one per round. If the hub wants the state, returns how many of its bytes.
    ///
    /// # Errors
    /// Returns an error if the hub refuses. The hub is notified at the end that this member does not come.
    pub fn offer(
        &mut self,
        state_before: Round,
        steps: Option<Vec<u32>>,
    ) -> Result<Option<u64>, MemberError> {
        let offered = self.control.offer(&self.reply.token, state_before, steps);
        if offered.is_err() {
            self.farewell = Some(self.control.within(FAREWELL_LIMIT));
        }
        offered
    }

    /// Returns the cores that the job has at the hub.
    pub fn cores(&self) -> CoreNodes {
        self.reply.nodes.clone().unwrap_or_else(|| self.reply.cores.len().into())
    }

    /// Returns how the hubs above this hub place chunks, if it is below others.
    pub fn above(&self) -> Option<&Above> {
        self.reply.above.as_ref()
    }

    /// Returns the wire format of the links to this hub: `wire`, with the lines of the hubs above if the hub has hubs above it.
    ///
    /// # Errors
    /// Returns an error if the hubs in the reply are impossible.
    pub fn wire(&self, wire: Wire) -> Result<Wire, MemberError> {
        let nonsense = |saw| MemberError::Nonsense { hub: self.control.hub.clone(), what: "join", saw };
        match self.above() {
            None => Ok(wire),
            Some(above) => wire.below(above).map_err(nonsense),
        }
    }

    /// Returns the error for an invalid answer of the hub.
    fn nonsense(&self, saw: String) -> MemberError {
        MemberError::Nonsense { hub: self.control.hub.clone(), what: "join", saw }
    }

    /// Returns the cores that the job has at the hub, if the hub's answer is consistent.
    fn checked_cores(&self) -> Result<CoreNodes, MemberError> {
        let LetIn { share, reply, .. } = self;
        let nonsense = |saw| self.nonsense(saw);
        let cores = &reply.cores;
        if cores.is_empty()
            || !cores.is_sorted_by(|core, next| core < next)
            || cores.iter().any(|&core| core >= reply.ports)
        {
            return Err(nonsense(format!("cores {cores:?} of {}", reply.ports)));
        }
        let nodes = self.cores();
        if nodes.cores() != cores.len() {
            return Err(nonsense(format!("NUMA nodes for {} cores, of {}", nodes.cores(), cores.len())));
        }
        if reply.above.is_some() && !share.is_whole() {
            return Err(nonsense("it is one of several hubs, and has hubs above it".into()));
        }
        Ok(nodes)
    }

    /// Returns the places of the chunks on these cores of the hub.
    fn place(&self, schedule: Schedule, layout: &Layout, cores: CoreNodes) -> Result<Placement, MemberError> {
        let Some(above) = &self.reply.above else {
            return Ok(Placement::of_share(layout, schedule, self.share, cores));
        };
        let above = above.placements(layout).map_err(|saw| self.nonsense(saw))?;
        Ok(Below::new(&above, cores.cores()).placement)
    }

    /// Returns the placement that this member has computed, if the hub's answer has the same.
    fn agreed(&self, placement: Placement) -> Result<Placement, MemberError> {
        let (theirs, ours) = (&self.reply.placement, placement.digest());
        if *theirs != ours {
            return Err(self
                .nonsense(format!("a placement of its share with digest {theirs}, which has {ours} here")));
        }
        Ok(placement)
    }

    /// Returns a hub that waits for new links of this member, by a connection with this token. `reply` is the hub's answer.
    pub(crate) fn again(hub: &Hub, reply: JoinReply, token: String) -> Self {
        let Hub { control, share, heartbeat, .. } = hub;
        let (control, heartbeat) = (control.clone(), heartbeat.clone());
        LetIn { control, share: *share, reply, token, heartbeat, farewell: None }
    }

    /// Notifies the hub that no transport reaches it, which the hub cannot see. Then no other member waits for this one. A
    /// member that makes new links keeps trying.
    pub(crate) fn does_not_come(&self, why: &MemberError) {
        let is_new = self.token == self.reply.token;
        if is_new {
            let (token, failed) = (self.token.clone(), Some(why.to_string()));
            let request = LeaveRequest { token, failed, ..LeaveRequest::default() };
            let _ = self.control.within(FAREWELL_LIMIT).leave(&request);
        }
    }

    /// Keeps the links, which are made. `cores` are the hub's cores in the placement. Each piece of news wakes `waker`.
    pub fn keep(mut self, cores: Range<usize>, waker: Waker) -> Hub {
        self.heartbeat.wake(waker);
        self.farewell = None;
        Hub {
            control: self.control.clone(),
            share: self.share,
            heartbeat: self.heartbeat.clone(),
            token: self.reply.token.clone(),
            limit: self.reply.limit(),
            relinks: self.reply.relinks,
            protocol: self.reply.protocol,
            answers_ahead: self.reply.answers_ahead,
            cores,
        }
    }
}

/// Returns the places of the chunks at each of these hubs.
///
/// # Errors
/// Returns an error if a hub places chunks differently.
pub fn placements(
    hubs: &[LetIn],
    schedule: Schedule,
    layout: &Layout,
) -> Result<Vec<Placement>, MemberError> {
    let cores: Vec<CoreNodes> = hubs.iter().map(LetIn::checked_cores).collect::<Result<_, _>>()?;
    // A member that makes new links to some hubs places only the chunks of those hubs.
    let are_all = |share: Share| !share.is_whole() && hubs.iter().map(|hub| hub.share.hub).eq(0..share.hubs);
    let placed = match hubs.first().map(|hub| hub.share).filter(|&share| are_all(share)) {
        Some(share) => Placement::of_shares(layout, schedule, share, &cores),
        None => {
            let placed = hubs.iter().zip(cores).map(|(hub, cores)| hub.place(schedule, layout, cores));
            placed.collect::<Result<_, _>>()?
        }
    };
    hubs.iter().zip(placed).map(|(hub, placement)| hub.agreed(placement)).collect()
}

impl Drop for LetIn {
    fn drop(&mut self) {
        if let Some(control) = &self.farewell {
            let token = self.reply.token.clone();
            let _ = control.leave(&LeaveRequest { token, ..LeaveRequest::default() });
        }
    }
}
