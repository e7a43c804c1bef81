//! Joining a job: a member's request to each hub of the job, and the state between a hub's answer and the links.
//!
//! Runs once, on the thread that joins.

use std::io;
use std::ops::Range;
use std::task::Waker;
use std::time::{Duration, Instant};

use authority::Credential;
use pbox_core::control::{
    HubReply, JoinReply, JoinRequest, LeaveRequest, MeetReply, MeetRequest, Mesh, PROTOCOL, Pass, Peers,
    RefusalCode, Versions, check_address,
};
use pbox_core::{
    Above, Below, JobCores, JobTerms, Layout, MAX_HUBS, Placement, Round, Schedule, Share, Wire,
};

use crate::control::Control;
use crate::error::MemberError;
use crate::failure::{Cause, Failure, RETRY};
use crate::heartbeat::Heartbeat;
use crate::hub::Hub;
use crate::named::Named;

/// The timeout of the notice to a hub that an admitted member will not connect.
const FAREWELL_LIMIT: Duration = Duration::from_secs(2);

/// The reason that the hub gets for a member that will not connect.
const UNLINKED: &str = "its join ended before it had links to all hubs; its own error says why";

/// The timeout of the question whether a hub is up. The pause before the next question is [`HEALTH_PAUSE`].
const HEALTH_LIMIT: Duration = Duration::from_secs(2);
const HEALTH_PAUSE: Duration = Duration::from_millis(50);

/// The least speed at which a hub reads a checkpoint and makes its memory. A slower hub counts as stuck.
const SLOWEST_BYTES_PER_S: f64 = 0.5e9;

/// Returns the addresses in a list of hubs: `host:port`, separated by commas. An address may begin with `http://`, as a hub
/// prints it when it starts. With this prefix, requests may nevertheless be encrypted.
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
        return wrong("one address is empty".into());
    }
    if let Some(error) = hubs.iter().find_map(|hub| check_address(hub).err()) {
        return wrong(error.to_string());
    }
    if hubs.len() > MAX_HUBS as usize {
        return wrong(format!("{} of them", hubs.len()));
    }
    if let Some(twice) = hubs.iter().enumerate().find(|(at, hub)| hubs[..*at].contains(hub)) {
        return wrong(format!("{} is listed twice", twice.1));
    }
    Ok(hubs)
}

/// Waits until workers can join at each of these hubs, and logs the wait.
///
/// # Errors
/// Returns an error if workers cannot join before the deadline, if the caller gives up, or if TLS with a hub fails.
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
            // No event reports that a program on another machine begins to listen, so this thread polls.
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

/// Waits until workers can join at each of these hubs, and asks the hubs. If a hub stops, or a connection ends before the
/// answer, the hub may be about to restart. So this function waits and asks again, also while the rank is taken. A hub whose
/// answer was lost has admitted this member, and keeps the rank until it notices that nobody connects.
///
/// # Errors
/// Returns the errors of [`wait_for`] and of the request. Returns the error of a connection that ended only at the deadline,
/// or if the caller gives up.
fn ask_when_up<T>(
    addresses: &[&str],
    named: &Named,
    deadline: Instant,
    given_up: &dyn Fn() -> bool,
    ask: impl Fn() -> Result<T, Failure>,
) -> Result<T, MemberError> {
    let mut was_cut = false;
    loop {
        if deadline > Instant::now() {
            wait_for(addresses, named, deadline, given_up)?;
        }
        let failure = match ask() {
            Ok(answer) => return Ok(answer),
            Err(failure) => failure,
        };
        let (is_cut, code) = (failure.cause == Cause::Cut, failure.error.code());
        let stops = code == Some(RefusalCode::HubStops);
        let is_own_rank = was_cut && code == Some(RefusalCode::RankTaken);
        if !(is_cut || stops || is_own_rank) || deadline <= Instant::now() || given_up() {
            return Err(failure.error);
        }
        if is_cut || stops {
            tracing::warn!("{}; asking again", failure.error);
        }
        was_cut |= is_cut;
        std::thread::sleep(RETRY);
    }
}

/// Sends the address of this machine's hub to the hub of a mesh's first machine, and waits for the hubs of the other
/// machines. If the connection ends meanwhile, waits until that hub is up and sends the address again. Returns the addresses
/// of the hubs of all machines. `named` says who gave the first hub's address.
///
/// # Errors
/// Returns an error if a machine is missing at the deadline, or if two machines have the same number. Returns the errors of
/// [`wait_for`].
pub fn meet(
    mesh: &Mesh,
    job: &str,
    address: &str,
    credential: Option<&Credential>,
    named: &Named,
    (deadline, given_up): (Instant, &dyn Fn() -> bool),
) -> Result<Vec<String>, MemberError> {
    let MeetReply { hubs } = ask_when_up(&[&mesh.meet], named, deadline, given_up, || {
        let left = deadline.saturating_duration_since(Instant::now());
        let request = MeetRequest {
            protocol: PROTOCOL,
            protocol_lowest: Versions::OURS.lowest_of_several(),
            machine: mesh.machine,
            address: address.to_owned(),
            wait_ms: left.as_millis() as u64,
        };
        // The extra time lets the hub report which machine is missing.
        let control = Control::new(&mesh.meet, job, left + FAREWELL_LIMIT, credential, named)?;
        control.post("meet", "wait for the hubs of the other machines", &request)
    })?;
    let list = hubs.join(",");
    match hub_addresses(&list) {
        Ok(each) if each.len() == mesh.machine.of as usize => Ok(hubs),
        _ => Err(MemberError::Nonsense {
            hub: mesh.meet.clone(),
            what: "meet",
            saw: format!(
                "{} addresses of hubs, for {} machines: expected a different address for each machine",
                hubs.len(),
                mesh.machine.of
            ),
        }),
    }
}

/// A worker's or lower hub's requests to join one job, at each of the job's hubs.
#[derive(Clone, Copy, Debug)]
pub struct Join<'a> {
    /// The addresses of the job's hubs, in order.
    pub addresses: &'a [&'a str],
    /// The job's name.
    pub job: &'a str,
    /// The timeout of each request, without the time for the hub's memory.
    pub limit: Duration,
    /// The request to the first hub. The requests to the other hubs have another hub number, and the pass from the
    /// first hub's reply.
    pub request: &'a JoinRequest,
    /// The secret or token that proves the requests.
    pub credential: Option<&'a Credential>,
    /// The origin of the addresses.
    pub named: &'a Named,
}

impl Join<'_> {
    /// Joins first at the first hub, and then at all other hubs at the same time. Inside the request, a hub reads its
    /// checkpoint and makes its memory.
    ///
    /// # Errors
    /// Returns an error if a hub cannot be reached or refuses. The hubs that have already admitted this member are then
    /// notified that it will not connect.
    pub fn once(&self) -> Result<Vec<LetIn>, MemberError> {
        self.at_each().map_err(|failure| failure.error)
    }

    /// Waits until all hubs are up, and joins. If a connection ends during a join, joins again. Ends at the deadline, or when
    /// the caller gives up.
    ///
    /// # Errors
    /// Returns the errors of [`wait_for`] and [`Join::once`].
    pub fn when_up(&self, deadline: Instant, given_up: &dyn Fn() -> bool) -> Result<Vec<LetIn>, MemberError> {
        ask_when_up(self.addresses, self.named, deadline, given_up, || self.at_each())
    }

    fn at_each(&self) -> Result<Vec<LetIn>, Failure> {
        let first = self.at(0, None)?;
        // The other hubs require the pass from the first hub's reply.
        let pass = first.reply.pass.clone();
        let mut let_in = vec![first];
        std::thread::scope(|scope| {
            let thread = |hub| {
                let pass = pass.clone();
                std::thread::Builder::new()
                    .name("phub-ask".into())
                    .spawn_scoped(scope, move || self.at(hub, pass))
            };
            let threads: Vec<_> =
                (1..self.addresses.len()).map(thread).collect::<Result<_, _>>().map_err(MemberError::from)?;
            for thread in threads {
                let_in.push(thread.join().expect("joining does not panic")?);
            }
            Ok(let_in)
        })
    }

    /// Joins at one of the hubs.
    fn at(&self, hub: usize, pass: Option<Pass>) -> Result<LetIn, Failure> {
        let Join { addresses, job, limit, request, credential, named } = *self;
        let hubs = || addresses.iter().map(|&address| address.to_owned()).collect();
        let peers = (addresses.len() > 1).then(|| Peers { hubs: hubs(), pass });
        let request = JoinRequest { hub: hub as u32, peers, ..request.clone() };
        LetIn::join(Control::new(addresses[hub], job, limit, credential, named)?, request)
    }
}

/// Returns the deadline for the links to these hubs: `limit` from now, plus the time that the hubs need to make their memory.
pub fn deadline(hubs: &[LetIn], limit: Duration) -> Instant {
    let for_memory = hubs.iter().map(|hub| hub.for_memory).max().unwrap_or_default();
    Instant::now() + limit + for_memory
}

/// Returns the longest time in which a hub reads its share of a job's checkpoint and makes its memory. The hub reads the state
/// and keeps a copy, so the state counts twice. The hub also makes two windows for each member.
///
/// If the members are hubs, only the hubs at the top of all levels read the state. One top hub may read the whole state, so the
/// whole state counts.
fn time_for_memory(terms: &JobTerms) -> Duration {
    let elements: f64 = terms.keys.iter().map(|key| key.elements().unwrap_or(0) as f64).sum();
    let hubs = f64::from(terms.hubs.max(1));
    let at_the_top = if terms.level.members.are_hubs() { 1.0 } else { hubs };
    let saved = terms.tensors().saved_per_element() as f64 / at_the_top;
    let values = 2.0 * (saved + f64::from(terms.workers) / hubs);
    let bytes = elements * values * size_of::<f32>() as f64;
    // No machine has so much memory that this takes a day.
    Duration::from_secs_f64((bytes / SLOWEST_BYTES_PER_S).min(86_400.0))
}

/// A hub that has admitted this member, before the links are made. When this value is dropped, the hub is notified that the
/// member will not connect. The hub then notifies the members that wait.
#[derive(Debug)]
pub struct LetIn {
    pub(crate) control: Control,
    pub(crate) share: Share,
    pub(crate) reply: JoinReply,
    /// The secret with which the member connects to the data path.
    pub(crate) token: String,
    heartbeat: Heartbeat,
    /// The longest time in which the hub reads its checkpoint and makes its memory.
    pub(crate) for_memory: Duration,
    /// The client for the notice that the member will not connect. `None` for a member that reconnects, and once there are
    /// links: the hub sees them end.
    farewell: Option<Control>,
}

impl LetIn {
    fn join(control: Control, request: JoinRequest) -> Result<Self, Failure> {
        let for_memory = time_for_memory(&request.terms);
        let reply: JoinReply = control.within(control.timeout + for_memory).join(&request)?;
        if !request.versions().contains(reply.protocol) {
            let (hub, ours) = (control.hub.clone(), request.versions());
            return Err(MemberError::Protocol { hub, used: reply.protocol, ours }.into());
        }
        let control = control.of_member(&reply.token);
        let share = Share::of_hub(&request.terms, request.hub);
        let farewell = Some(control.within(FAREWELL_LIMIT));
        // The heartbeat starts now, because the hub's limit may be shorter than the time for making windows and links.
        let started = Heartbeat::start(&control, &reply.token, reply.limit());
        let heartbeat = started.map_err(|error| {
            say_unlinked(&control.within(FAREWELL_LIMIT), &reply.token);
            let why = format!(
                "cannot start the thread of the heartbeat to the hub at {}: {error}; raise the limit on threads (ulimit -u)",
                control.hub
            );
            MemberError::System(io::Error::new(error.kind(), why))
        })?;
        let token = reply.token.clone();
        Ok(LetIn { control, share, reply, token, heartbeat, for_memory, farewell })
    }

    /// Offers the hub the state before a round, with which a new job can begin. `steps` are the numbers of steps of the
    /// keys, if some key has not made one step per round. If the hub wants the state, returns the number of bytes that
    /// it wants.
    ///
    /// # Errors
    /// Returns an error if the hub refuses. When this value is dropped, the hub is notified that the member will not
    /// connect.
    pub fn offer(&self, state_before: Round, steps: Option<Vec<u32>>) -> Result<Option<u64>, MemberError> {
        let offered = self.control.offer(&self.reply.token, state_before, steps);
        offered.map_err(|failure| failure.error)
    }

    /// Returns the cores that the job has at the hub.
    pub fn cores(&self) -> JobCores {
        self.reply.nodes.clone().unwrap_or_else(|| self.reply.cores.len().into())
    }

    /// Returns the way in which the hubs above this hub place chunks, if the hub is below other hubs.
    pub fn above(&self) -> Option<&Above> {
        self.reply.above.as_ref()
    }

    /// Returns the wire format of the links to this hub. If the hub is below other hubs, the format also has room for
    /// the gradient norms of the hubs above.
    ///
    /// # Errors
    /// Returns an error if the hubs in the reply cannot exist.
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

    /// Returns the cores that the job has at the hub, if the hub's reply is consistent.
    fn checked_cores(&self) -> Result<JobCores, MemberError> {
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
            return Err(nonsense(format!(
                "a list of the nodes of {} cores, but a job on {} cores",
                nodes.cores(),
                cores.len()
            )));
        }
        if reply.above.is_some() && !share.is_whole() {
            return Err(nonsense("hubs above, for a job over several hubs".into()));
        }
        Ok(nodes)
    }

    /// Returns the placement of the chunks on these cores of the hub.
    fn place(&self, schedule: Schedule, layout: &Layout, cores: JobCores) -> Result<Placement, MemberError> {
        let Some(above) = &self.reply.above else {
            return Ok(Placement::of_share(layout, schedule, self.share, cores));
        };
        let above = above.placements(layout).map_err(|saw| self.nonsense(saw))?;
        Ok(Below::new(&above, cores.cores()).placement)
    }

    /// Returns the placement that this member has computed, if the hub's reply has the same digest.
    fn agreed(&self, placement: Placement) -> Result<Placement, MemberError> {
        let (theirs, ours) = (&self.reply.placement, placement.digest());
        if *theirs != ours {
            return Err(self.nonsense(format!(
                "a placement of its share with digest {theirs}, and this member has computed digest {ours}"
            )));
        }
        Ok(placement)
    }

    /// Creates the value for a member that reconnects to `hub`. The member shows `token`. `reply` is the hub's answer
    /// to the request for new links.
    pub(crate) fn again(hub: &Hub, reply: JoinReply, token: String) -> Self {
        let Hub { control, share, heartbeat, for_memory, .. } = hub;
        let (control, heartbeat) = (control.clone(), heartbeat.clone());
        LetIn { control, share: *share, reply, token, heartbeat, for_memory: *for_memory, farewell: None }
    }

    /// Notifies the hub that this member has no data path to it: the hub perhaps does not notice this itself. Other members
    /// then no longer wait for this member. A member that reconnects does not notify the hub, because the member keeps trying.
    /// Returns the error, as the loss of the hub if the hub stops or does not answer.
    pub(crate) fn does_not_come(&self, why: MemberError) -> MemberError {
        if self.token != self.reply.token {
            return why;
        }
        let (token, failed) = (self.token.clone(), Some(why.to_string()));
        let request = LeaveRequest { token, failed, ..LeaveRequest::default() };
        let control = self.control.within(FAREWELL_LIMIT);
        let _ = control.leave(&request);
        if control.check_health().is_ok() {
            return why;
        }
        MemberError::HubLost { job: control.job, hub: control.hub, cause: why.to_string() }
    }

    /// Turns this value into a hub of the member, after the links are made. `cores` are the hub's cores in the placement. Every
    /// change of the news wakes the member's port, by `waker`.
    pub fn keep(mut self, cores: Range<usize>, waker: Waker) -> Hub {
        self.heartbeat.wake(waker);
        self.farewell = None;
        Hub {
            control: self.control.clone(),
            share: self.share,
            heartbeat: self.heartbeat.clone(),
            token: self.reply.token.clone(),
            limit: self.reply.limit(),
            for_memory: self.for_memory,
            relinks: self.reply.relinks,
            protocol: self.reply.protocol,
            answers_ahead: self.reply.answers_ahead,
            cores,
        }
    }
}

/// Returns the placement of the chunks at each of these hubs.
///
/// # Errors
/// Returns an error if a hub's placement differs from the computed one.
pub fn placements(
    hubs: &[LetIn],
    schedule: Schedule,
    layout: &Layout,
) -> Result<Vec<Placement>, MemberError> {
    let cores: Vec<JobCores> = hubs.iter().map(LetIn::checked_cores).collect::<Result<_, _>>()?;
    // A member that reconnects to some of the hubs places the chunks of those hubs alone.
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
            say_unlinked(control, &self.reply.token);
        }
    }
}

/// Notifies a hub that the member with this token will not connect.
fn say_unlinked(control: &Control, token: &str) {
    let (token, failed) = (token.to_owned(), Some(UNLINKED.to_owned()));
    let _ = control.leave(&LeaveRequest { token, failed, ..LeaveRequest::default() });
}

#[cfg(test)]
mod tests {
    use pbox_core::{Key, Members, Optimizer};

    use super::*;

    /// Returns the time for memory, for a model of 100 MB with Adam's state of two more tensors.
    fn seconds(members: Members, workers: u32, hubs: u32) -> f64 {
        let adam =
            Optimizer::Adam { learning_rate: 0.1, weight_decay: 0.0, beta1: 0.9, beta2: 0.99, epsilon: 1e-8 };
        let mut terms = JobTerms::new(workers, vec![Key::f32("a", [25_000_000])], adam);
        (terms.hubs, terms.level.members) = (hubs, members);
        time_for_memory(&terms).as_secs_f64()
    }

    /// Eight hubs are above 16 machines, and one hub with the whole state is above the eight.
    #[test]
    fn a_hub_waits_for_the_restore_at_the_top_of_three_levels() {
        let (at_the_top, windows) = (seconds(Members::Hubs, 8, 1), 2.0 * 16.0 / 8.0 * 0.2);
        let of_state = 2.0 * 3.0 * 0.2; // at 0.5 GB/s
        assert!((at_the_top - (of_state + 2.0 * 8.0 * 0.2)).abs() < 1e-6, "{at_the_top}");
        let in_between = seconds(Members::Hubs, 16, 8);
        assert!((in_between - (of_state + windows)).abs() < 1e-6, "{in_between}");
        // If there are no hubs above, each of the hubs reads its own part of the state.
        let flat = seconds(Members::Workers, 16, 8);
        assert!((flat - (of_state / 8.0 + windows)).abs() < 1e-6, "{flat}");
    }
}
