//! The port over verbs: its links, and the methods of the contract.
//!
//! One thread owns the port: it polls, posts and sleeps. Other threads report to the port through its
//! [`PortState`]. `arrivals.rs` handles completions, `ending.rs` ends links, and `sleeping.rs` sleeps.

mod arrivals;
mod ending;
pub(super) mod link;
pub(super) mod rails;
pub(super) mod registered;
mod sleeping;

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use super::error::VerbsError;
use super::group::{Group, GroupOptions};
use super::handles::ffi::ibv_wc;
use super::handles::work::Tally;
use super::nic::NicOptions;
use crate::connection::Connection;
use crate::ids::{Imm, LinkId, Span};
use crate::links::Links;
use crate::port::{Arrival, Closed, Crossed, FrameRule, Posted, Until};
use arrivals::{BATCH, Early};
use ending::{GRACE, Linger};
use link::Link;
use rails::{MAX_RAILS, PortState, Rail};

/// A connected link that no port polls yet.
pub struct Endpoint {
    pub(super) connection: Arc<Connection>,
    /// The port that gets the link's completions.
    port: Arc<PortState>,
    pub(super) link: Link,
    /// The name of the other end, for errors.
    pub(super) peer: String,
    /// Whether a post found no room since the last wait.
    refused: bool,
    /// The number of the link's arrivals in the port's stash.
    stashed: u32,
    ends_with_port: bool,
    rule: Option<Box<dyn FrameRule>>,
}

impl Endpoint {
    pub(super) fn new(connection: Arc<Connection>, port: Arc<PortState>, link: Link, peer: String) -> Self {
        Endpoint {
            connection,
            port,
            link,
            peer,
            refused: false,
            stashed: 0,
            ends_with_port: false,
            rule: None,
        }
    }

    /// Returns the NIC's [name](super::nic::Nic::name).
    pub fn device(&self) -> String {
        self.link.route.rail.nic.name()
    }

    /// Makes the link also end when its NIC's port is down for as long as packets are retried.
    pub fn end_with_port(&mut self) {
        self.ends_with_port = true;
    }

    /// Sets the rule for frames. From now on, the link closes if the rule refuses the length of a write.
    pub fn obey(&mut self, rule: Box<dyn FrameRule>) {
        self.rule = Some(rule);
    }
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("verbs::Endpoint")
            .field("connection", &self.connection.number)
            .field("peer", &self.peer)
            .finish()
    }
}

/// Shuts the connection, so the peer sees that this end left: after `detach`, when the port is dropped, and
/// when an unattached endpoint is dropped.
impl Drop for Endpoint {
    fn drop(&mut self) {
        self.connection.shut();
    }
}

/// The owner of a route's completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// No link owns the route: its link is not attached yet, or has ended.
    Nobody,
    /// This link.
    Link(LinkId),
    /// A detached link with sends that are still in flight.
    Lingering,
}

/// A port over verbs.
pub struct Port {
    _group: Arc<Group>,
    pub(super) state: Arc<PortState>,
    pub(super) links: Links<Endpoint>,
    /// The generation and the owner of each route.
    pub(super) routes: Vec<(u32, Owner)>,
    /// Arrivals that were taken from a completion queue outside of `poll`.
    pub(super) stash: VecDeque<Arrival>,
    /// Completions of links that are not attached yet.
    pub(super) early: Vec<Early>,
    /// Detached links with sends that are still in flight.
    pub(super) lingering: Vec<Linger>,
    pub(super) batch: Box<[ibv_wc; BATCH]>,
    /// The rails (NICs with their completion queues) that the port uses, as of its last call of `look`.
    pub(super) rails: Vec<Arc<Rail>>,
    /// The index of the rail that was polled first in the last poll.
    pub(super) first: usize,
    /// The number of links that are ending or closing.
    pub(super) ends: usize,
    /// Whether a link that had no room now has room again.
    pub(super) relieved: bool,
    /// Whether the next completion makes the channel readable, for each rail.
    pub(super) armed: [bool; MAX_RAILS],
    pub(super) changes_seen: u32,
    pub(super) tally: Tally,
}

/// Makes the ports of a hub: one for each entry of `nics`, on that NIC. Several ports may use one NIC. If a
/// port's NIC is not open, the port has no NIC until [`Group::mend`] opens it.
///
/// # Errors
/// Returns an error if libibverbs is missing, no NIC can be opened, or memory or descriptors run out.
pub fn group(nics: &[NicOptions], options: GroupOptions) -> Result<(Arc<Group>, Vec<Port>), VerbsError> {
    let ports: Vec<&[NicOptions]> = nics.chunks(1).collect();
    let group = Group::new(&ports, options)?;
    let ports = group.ports.iter().map(|state| Port::new(Arc::clone(&group), Arc::clone(state))).collect();
    Ok((group, ports))
}

/// Makes the single port of a worker, over all of its NICs. If several NICs are equally good for a link, the
/// port uses the first.
///
/// # Errors
/// Returns the errors of [`group`].
pub fn worker_group(nics: &[NicOptions], options: GroupOptions) -> Result<(Arc<Group>, Port), VerbsError> {
    let group = Group::new(&[nics], options)?;
    let port = Port::new(Arc::clone(&group), Arc::clone(&group.ports[0]));
    Ok((group, port))
}

impl Port {
    fn new(group: Arc<Group>, state: Arc<PortState>) -> Self {
        Port {
            _group: group,
            rails: state.own.open(),
            state,
            links: Links::default(),
            routes: Vec::new(),
            stash: VecDeque::new(),
            early: Vec::new(),
            lingering: Vec::new(),
            batch: Box::new([ibv_wc::default(); BATCH]),
            first: 0,
            ends: 0,
            relieved: false,
            armed: [false; MAX_RAILS],
            changes_seen: 0,
            tally: Tally::default(),
        }
    }

    /// Returns the bytes that crossed a link.
    pub(crate) fn crossed(&self, id: LinkId) -> Option<Crossed> {
        Some(self.links.get(id)?.link.link.crossed)
    }

    #[inline]
    fn try_post(&mut self, id: LinkId, span: Span, imm: Imm) -> Posted {
        let tally = &mut self.tally;
        let posted = self.links.post(id, |endpoint| match endpoint.connection.is_dead() {
            true => Ok(Posted::Closed),
            false => {
                let posted = endpoint.link.post(span, imm, tally)?;
                if let Some(rule) =
                    endpoint.rule.as_mut().filter(|_| span.bytes == 0 && posted == Posted::Accepted)
                {
                    rule.posted_empty(imm);
                }
                Ok(posted)
            }
        });
        posted.unwrap_or_else(|errno| {
            self.fail_call(id, "ibv_post_send", errno);
            Posted::Closed
        })
    }

    /// Posts again after there was no room: some sends may have completed since the last look at the queues.
    #[cold]
    fn post_again(&mut self, id: LinkId, span: Span, imm: Imm) -> Posted {
        self.take_all();
        let posted = self.try_post(id, span, imm);
        if posted == Posted::Full
            && let Some(attached) = self.links.get_mut(id)
        {
            attached.link.refused = true;
        }
        posted
    }

    /// Removes a link. The link lingers until its last posts have been sent.
    fn release(&mut self, id: LinkId) {
        if let Some(attached) = self.links.remove(id) {
            self.stash.retain(|arrival| arrival.link != id);
            self.linger(attached);
        }
    }

    /// Returns the counts of what the NICs did for this port so far.
    pub fn tally(&self) -> Tally {
        self.tally
    }
}

impl crate::Port for Port {
    type Endpoint = Endpoint;

    fn attach(&mut self, endpoint: Endpoint) -> LinkId {
        assert!(
            Arc::ptr_eq(&self.state, &endpoint.port),
            "an endpoint belongs to the port that its connection was made for"
        );
        let (route, generation) = (endpoint.link.route.number as usize, endpoint.link.route.generation);
        // The next poll looks for an ended connection: the new link's connection may have ended before the
        // port got the link.
        self.changes_seen = self.changes_seen.wrapping_sub(1);
        let id = self.links.insert(endpoint);
        let unread = self.links.iter().map(|(_, attached)| attached.link.link.most_unread() as usize);
        self.stash.reserve(unread.sum::<usize>().saturating_sub(self.stash.len()));
        if self.routes.len() <= route {
            self.routes.resize(route + 1, (0, Owner::Nobody));
        }
        self.routes[route] = (generation, Owner::Link(id));
        self.take_early(route, generation, id);
        id
    }

    fn detach(&mut self, id: LinkId) {
        let alone = self.lingering.is_empty();
        self.release(id);
        self.look();
        if alone && !self.lingering.is_empty() {
            self.part(Instant::now() + GRACE);
        }
    }

    fn post(&mut self, id: LinkId, span: Span, imm: Imm) -> Posted {
        match self.try_post(id, span, imm) {
            Posted::Full => self.post_again(id, span, imm),
            posted => posted,
        }
    }

    fn set_credit(&mut self, id: LinkId, bytes: Option<usize>) {
        if let Some(attached) = self.links.get_mut(id) {
            attached.link.link.set_credit(bytes);
        }
    }

    fn flush(&mut self) {
        let Port { links, tally, .. } = self;
        let mut failed = Vec::new(); // allocates only when a call fails
        links.flush(|id, attached| {
            if attached.is_open()
                && let Err(errno) = attached.link.link.flush(tally)
            {
                failed.push((id, errno));
            }
        });
        for (id, errno) in failed {
            self.fail_call(id, "ibv_post_send", errno);
        }
    }

    /// Does nothing. Posts wait for the flush, or until their chain is full. So a link rings one doorbell per
    /// flush, not one per post.
    fn flush_early(&mut self) {}

    fn poll(&mut self, into: &mut [Arrival]) -> usize {
        self.look();
        let mut filled = 0;
        while filled < into.len()
            && let Some(arrival) = self.stash.pop_front()
        {
            if let Some(attached) = self.links.get_mut(arrival.link) {
                attached.link.stashed -= 1;
            }
            into[filled] = arrival;
            filled += 1;
            self.shown(arrival);
        }
        self.poll_queues(into, filled)
    }

    fn closed(&mut self) -> Option<Closed> {
        self.look();
        if self.ends == 0 {
            return None;
        }
        let closed = self.links.report_closed()?;
        self.ends -= 1;
        Some(closed)
    }

    fn wait(&mut self, until: Until, timeout: Duration) {
        self.sleep(until, Instant::now().checked_add(timeout));
    }

    fn waker(&self) -> Waker {
        Waker::from(Arc::clone(&self.state))
    }
}

/// Detaches all links, and waits until their last posts have been sent or given up.
impl Drop for Port {
    fn drop(&mut self) {
        for id in self.links.ids() {
            self.release(id);
        }
        self.part_from_all();
    }
}
