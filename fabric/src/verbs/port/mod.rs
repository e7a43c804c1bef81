//! The port over verbs: its links, and what the contract asks of it.
//!
//! Owned by one thread, which polls, posts and sleeps; what other threads have to say comes through its
//! [`PortState`]. Completions are taken in by `arrivals.rs`, links end in `ending.rs`, `sleeping.rs` sleeps.

mod arrivals;
mod ending;
pub(super) mod link;
pub(super) mod registered;
mod sleeping;
pub(super) mod work;

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use super::group::{Group, MAX_RAILS, PortState};
use crate::connection::Connection;
use crate::ids::{Imm, LinkId, Span};
use crate::port::{Arrival, CloseReason, Closed, Posted, Until};
use crate::verbs::handles::ffi::ibv_wc;
use arrivals::{BATCH, Early};
use ending::{GRACE, Linger};
use link::Link;
use work::Tally;

/// A connected link that no port polls yet.
pub struct Endpoint {
    pub(super) connection: Arc<Connection>,
    /// The port that it is for: its completions go there.
    port: Arc<PortState>,
    pub(super) link: Link,
    /// Who is at the other end, in words.
    pub(super) peer: String,
}

impl Endpoint {
    pub(super) fn new(connection: Arc<Connection>, port: Arc<PortState>, link: Link, peer: String) -> Self {
        Endpoint { connection, port, link, peer }
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

/// Dropped in whatever way, by `detach`, with its port or unattached, it is a peer that left.
impl Drop for Endpoint {
    fn drop(&mut self) {
        self.connection.shut();
    }
}

pub(super) enum LinkState {
    Open,
    /// Ends when what arrived before has been shown.
    Ending(CloseReason),
    /// Closed and not yet reported by `closed`.
    Closing(CloseReason),
    Reported,
}

pub(super) struct Attached {
    pub endpoint: Endpoint,
    pub state: LinkState,
    /// Posted to since the last flush.
    pub dirty: bool,
    /// A post found no room since the last wait.
    pub refused: bool,
    /// Its arrivals in the stash.
    pub stashed: u32,
}

/// Whose the completions of a route are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// A link that is not attached yet, or not any more.
    Nobody,
    /// The link of this index.
    Link(usize),
    /// A detached link, whose last sends are still under way.
    Lingering,
}

/// A port over verbs.
pub struct Port {
    _group: Arc<Group>,
    pub(super) state: Arc<PortState>,
    pub(super) links: Vec<Option<Attached>>,
    /// By route: its generation, and whose it is.
    pub(super) routes: Vec<(u32, Owner)>,
    /// Links posted to since the last flush.
    dirty: Vec<LinkId>,
    /// Arrivals that were taken from a completion queue by somebody else than `poll`.
    pub(super) stash: VecDeque<Arrival>,
    /// Completions of links that are not attached yet.
    pub(super) early: Vec<Early>,
    /// Detached links whose last sends are under way.
    pub(super) lingering: Vec<Linger>,
    pub(super) batch: Box<[ibv_wc; BATCH]>,
    /// The NIC that the next poll looks at first.
    pub(super) first: usize,
    /// Links that are ending or closing.
    pub(super) ends: usize,
    /// A link that had no room has some again.
    pub(super) relieved: bool,
    /// By NIC: the next completion makes its channel readable.
    pub(super) armed: [bool; MAX_RAILS],
    pub(super) changes_seen: u32,
    pub(super) tally: Tally,
}

impl Port {
    pub(super) fn new(group: Arc<Group>, state: Arc<PortState>) -> Self {
        Port {
            _group: group,
            state,
            links: Vec::new(),
            routes: Vec::new(),
            dirty: Vec::new(),
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

    #[inline]
    fn try_post(&mut self, id: LinkId, span: Span, imm: Imm) -> Posted {
        let Some(attached) = self.links.get_mut(id.index()).and_then(Option::as_mut) else {
            return Posted::Closed;
        };
        if !matches!(attached.state, LinkState::Open) || attached.endpoint.connection.is_dead() {
            return Posted::Closed;
        }
        match attached.endpoint.link.post(span, imm, &mut self.tally) {
            Ok(Posted::Accepted) => {
                if !attached.dirty {
                    attached.dirty = true;
                    self.dirty.push(id);
                }
                Posted::Accepted
            }
            Ok(posted) => posted,
            Err(errno) => {
                self.fail_call(id.index(), "ibv_post_send", errno);
                Posted::Closed
            }
        }
    }

    /// Forgets a link, which goes on by itself as long as it has to.
    fn release(&mut self, id: LinkId) {
        let Some(attached) = self.links.get_mut(id.index()).and_then(Option::take) else { return };
        self.dirty.retain(|&dirty| dirty != id);
        self.stash.retain(|arrival| arrival.link != id);
        self.linger(attached);
    }

    /// There was no room; some of the sends may have completed, and nobody looked yet.
    #[cold]
    fn post_again(&mut self, id: LinkId, span: Span, imm: Imm) -> Posted {
        self.take_all();
        let posted = self.try_post(id, span, imm);
        if posted == Posted::Full
            && let Some(attached) = &mut self.links[id.index()]
        {
            attached.refused = true;
        }
        posted
    }

    /// What the NICs did for this port so far.
    pub fn tally(&self) -> Tally {
        self.tally
    }
}

impl crate::Port for Port {
    type Endpoint = Endpoint;

    fn attach(&mut self, endpoint: Endpoint) -> LinkId {
        assert!(
            Arc::ptr_eq(&self.state, &endpoint.port),
            "link i of a handshake belongs to port i of its group"
        );
        let (route, generation) = (endpoint.link.route.number as usize, endpoint.link.route.generation);
        let attached =
            Attached { endpoint, state: LinkState::Open, dirty: false, refused: false, stashed: 0 };
        // The connection may have died before this port had the link.
        self.changes_seen = self.changes_seen.wrapping_sub(1);
        let index = self.links.iter().position(Option::is_none).unwrap_or(self.links.len());
        match self.links.get_mut(index) {
            Some(free) => *free = Some(attached),
            None => {
                self.links.push(Some(attached));
                self.dirty.reserve(self.links.len());
            }
        }
        let unread = self.links.iter().flatten().map(|link| link.endpoint.link.most_unread() as usize);
        self.stash.reserve(unread.sum::<usize>().saturating_sub(self.stash.len()));
        if self.routes.len() <= route {
            self.routes.resize(route + 1, (0, Owner::Nobody));
        }
        self.routes[route] = (generation, Owner::Link(index));
        self.take_early(route, generation, index);
        LinkId(index as u32)
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
        if let Some(attached) = self.links.get_mut(id.index()).and_then(Option::as_mut) {
            attached.endpoint.link.set_credit(bytes);
        }
    }

    fn flush(&mut self) {
        while let Some(id) = self.dirty.pop() {
            let Some(attached) = &mut self.links[id.index()] else { continue };
            attached.dirty = false;
            if !matches!(attached.state, LinkState::Open) {
                continue;
            }
            if let Err(errno) = attached.endpoint.link.flush(&mut self.tally) {
                self.fail_call(id.index(), "ibv_post_send", errno);
            }
        }
    }

    fn poll(&mut self, into: &mut [Arrival]) -> usize {
        self.look();
        let mut filled = 0;
        while filled < into.len()
            && let Some(arrival) = self.stash.pop_front()
        {
            if let Some(attached) = &mut self.links[arrival.link.index()] {
                attached.stashed -= 1;
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
        for (index, attached) in self.links.iter_mut().enumerate() {
            let Some(attached) = attached else { continue };
            if let LinkState::Closing(reason) = &attached.state {
                let closed = Closed { link: LinkId(index as u32), reason: reason.clone() };
                attached.state = LinkState::Reported;
                self.ends -= 1;
                return Some(closed);
            }
        }
        None
    }

    fn wait(&mut self, until: Until, timeout: Duration) {
        self.sleep(until, Instant::now().checked_add(timeout));
    }

    fn waker(&self) -> Waker {
        Waker::from(Arc::clone(&self.state))
    }
}

/// Detaches all links, and waits until their last posts are out, or so long that they never will be.
impl Drop for Port {
    fn drop(&mut self) {
        for link in 0..self.links.len() {
            self.release(LinkId(link as u32));
        }
        self.part_from_all();
    }
}
